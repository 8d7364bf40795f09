"""`experiments.api.sweep`: the same cells from Python, in memory or in a folder, nothing said."""

import pandas as pd
import pytest

from experiments.api import Config, sweep

GRID = {"kv.allocator": ["paged", "orca-max"], "kv.block_size": [8, None]}


@pytest.fixture
def quiet(capsys):
    """Nothing may be printed."""
    yield
    assert capsys.readouterr() == ("", "")


@pytest.mark.usefixtures("quiet")
def test_in_memory_and_in_a_folder_the_rows_are_the_same(base, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    memory = sweep(base, GRID)
    assert list(tmp_path.iterdir()) == []
    folder = sweep(base, GRID, out="out")
    assert memory.rows == folder.rows
    assert memory.failed == folder.failed == {}
    assert list(memory.summary["kv.allocator"]) == ["paged", "paged", "orca-max", "orca-max"]
    assert memory.summary["kv.block_size"].isna().tolist() == [False, True, False, True]
    stored = pd.read_csv(tmp_path / "out/summary.csv")
    pd.testing.assert_frame_equal(stored, memory.summary, check_dtype=False)


def test_a_folder_is_gone_on_with_only_when_asked(base, tmp_path):
    made = sweep(base, GRID, out=tmp_path / "out")
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("cells/*/*")}
    with pytest.raises(ValueError, match="resume=True"):
        sweep(base, GRID, out=tmp_path / "out")
    again = sweep(base, GRID, out=tmp_path / "out", resume=True)
    assert again.rows == made.rows
    assert {path: path.stat().st_mtime_ns for path in times} == times
    with pytest.raises(ValueError, match=r"kv.kv_tokens: 4000 there, 5000 now"):
        sweep(base.with_(kv_tokens=5000), GRID, out=tmp_path / "out", resume=True)


def test_repeats_zips_and_exclusions(base):
    seeded = Config.of(num_requests=10)
    zipped = sweep(
        seeded,
        {"kv.block_size": [8, 16, 32], "scheduler.max_num_seqs": [2, 4, 8]},
        num_runs=2,
        zips=[("kv.block_size", "scheduler.max_num_seqs")],
        exclude=["kv.block_size == 32"],
    )
    found = zipped.summary[["kv.block_size", "scheduler.max_num_seqs", "repeat"]].to_numpy().tolist()
    assert found == [[8, 2, 0], [8, 2, 1], [16, 4, 0], [16, 4, 1]]


def test_a_cell_that_fails_is_told_and_the_others_are_there(base, monkeypatch):
    from experiments import cells

    original = cells.executor_of

    def broken(task):
        if task.cell.block_size == 8:
            raise RuntimeError("no steps today")
        return original(task)

    monkeypatch.setattr(cells, "executor_of", broken)
    made = sweep(base, GRID)
    assert len(made.rows) == len(made.failed) == 2
    assert set(made.failed.values()) == {"RuntimeError: no steps today"}


def test_mistakes_are_value_errors(base):
    with pytest.raises(ValueError, match="did you mean"):
        sweep(base, {"kv.block_sise": [8]})
    with pytest.raises(ValueError, match="jobs needs at least 1"):
        sweep(base, GRID, jobs=0)
