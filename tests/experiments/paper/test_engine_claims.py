"""Claims that are measured on the real engine: they pass, and they can miss."""

import pytest

from experiments.csv_text import to_csv
from experiments.exits import UsageError
from experiments.paper import chapter_table, fig18b, size_main, size_runs, verb
from experiments.paper.runs import Lab

torch = pytest.importorskip("torch")


def verdicts(results):
    return {result.claim.id: result.verdict for result in results}


def test_the_block_table_of_the_engine_is_the_chapters():
    results = chapter_table.judge()
    assert set(verdicts(results).values()) == {"pass"}
    assert {name.split("/")[1] for name in verdicts(results)} == {"S19", "S20"}
    upload = next(result for result in results if result.claim.id == "chapter/S19/upload")
    assert "12 and 12 entries" in upload.note


@pytest.mark.parametrize(
    "fault,claim",
    [
        ("all rows", "chapter/S19/behind"),
        ("nothing", "chapter/S19/inside"),
        ("whole rows", "chapter/S19/upload"),
        ("off by one", "chapter/S20/worker_differences"),
    ],
)
def test_a_fault_in_the_table_is_a_miss(monkeypatch, fault, claim):
    from engine.worker.block_table import BlockTable

    commit, slots = BlockTable.commit, BlockTable.slot_mapping

    def broken(self, num_rows):
        if fault == "all rows":
            return commit(self, len(self.cpu))
        if fault == "nothing" and self.num_uploaded:
            return 0
        if fault == "whole rows":
            self.gpu[:num_rows] = torch.from_numpy(self.cpu[:num_rows])
            self.num_uploaded += num_rows * self.max_blocks
            return num_rows * self.max_blocks
        return commit(self, num_rows)

    monkeypatch.setattr(BlockTable, "commit", broken)
    if fault == "off by one":
        monkeypatch.setattr(BlockTable, "slot_mapping", lambda self, rows, at: slots(self, rows, at) + 1)
    if fault == "nothing":
        monkeypatch.setattr(chapter_table, "_uploaded", chapter_table._slots)  # it would raise before it is judged
    assert verdicts(chapter_table.judge())[claim] == "miss"


@pytest.fixture
def lab(monkeypatch, tiny_model):
    """Fig 18b on this machine's CPU, on a model that takes milliseconds."""
    monkeypatch.setattr(size_runs, "lacking", lambda lab, model, lengths: "")
    monkeypatch.setattr(size_runs, "BACKEND", "cpu")
    monkeypatch.setattr(fig18b, "MODELS", (str(tiny_model),) * 2)
    monkeypatch.setattr(size_runs, "NUM_REQUESTS", {"sharegpt": 9, "alpaca": 15})
    return Lab(num_seeds=1, quick=True)


@pytest.mark.slow
def test_fig18b_serves_the_same_requests_at_every_block_size(lab):
    results, shown = fig18b.judge(lab), fig18b.tables(lab)
    assert set(verdicts(results)) == {"fig18b/sharegpt/best", "fig18b/alpaca/best", "fig18b/alpaca/256-degrades"}
    assert all(result.got is not None and result.verdict in ("pass", "miss") for result in results)
    assert [row[0] for row in shown[0].rows] == list(size_runs.QUICK_SIZES)
    curve = fig18b.curve(lab, "alpaca")
    assert {row["num_finished"] + row["num_truncated"] for row in curve.by_size.values()} == {5}
    assert all(value > 0 for value in curve.latency_s.values())


@pytest.mark.slow
def test_runs_that_were_kept_are_judged_as_if_they_ran_here(lab, tmp_path, tiny_model):
    """A CPU's times differ from run to run: what is kept is read, and nothing runs again."""
    words = ["--models", str(tiny_model), "--quick", "--output-dir", str(tmp_path)]
    assert size_main.main([*words, "--lengths", "sharegpt", "alpaca"]) == 0
    rows = size_runs.read(tmp_path)
    assert len(rows) == 2 * len(size_runs.QUICK_SIZES)
    lab.block_sizes = tmp_path
    latency = fig18b.curve(lab, "alpaca").latency_s
    assert latency == {int(r["block_size"]): r["mean_normalized_latency_s"] for r in rows if r["lengths"] == "alpaca"}


def kept(folder, *rows):
    """A folder of runs by hand."""
    words = {"trace_sha256": "ab12", "device": "Test card", "asked_rate_per_s": 2.0}
    words |= dict.fromkeys(fig18b.COLUMNS, 1.0)
    texts = [{**words, "model": "opt-13b", "lengths": "sharegpt", "mean_normalized_latency_s": 0.5, **r} for r in rows]
    (folder / size_runs.RUNS_FILE).write_text(to_csv(texts), "utf-8")
    (folder / size_runs.ABOUT_FILE).write_text("{}", "utf-8")
    return Lab(block_sizes=folder)


def test_lengths_that_are_not_among_the_kept_runs_are_not_here(tmp_path):
    lab = kept(tmp_path, {"block_size": 16}, {"block_size": 1, "mean_normalized_latency_s": 0.6})
    found = verdicts(fig18b.judge(lab))
    assert found == {
        "fig18b/sharegpt/best": "pass",
        "fig18b/alpaca/best": "not here",
        "fig18b/alpaca/256-degrades": "not here",
    }
    assert [one.name for one in fig18b.tables(lab)] == ["fig18b/sharegpt"]
    assert "no runs of opt-13b with alpaca lengths" in size_runs.lacking(lab, "opt-13b", "alpaca")


def test_a_folder_without_runs_is_refused_by_name(tmp_path):
    with pytest.raises(UsageError, match="no runs of the engine by block size"):
        size_runs.read(tmp_path)
    kept(tmp_path, {"block_size": 16})
    text = (tmp_path / size_runs.RUNS_FILE).read_text("utf-8")
    (tmp_path / size_runs.RUNS_FILE).write_text(text.replace("block_size", "size"), "utf-8")
    with pytest.raises(UsageError, match="columns block_size are missing"):
        size_runs.read(tmp_path)


def test_fig18b_is_judged_on_the_curve(monkeypatch):
    monkeypatch.setattr(size_runs, "lacking", lambda lab, model, lengths: "")
    best = {1: 2.0, 16: 1.0, 64: 1.5, 256: 1.2}
    rows = {size: {"mean_normalized_latency_s": value} for size, value in best.items()}
    monkeypatch.setattr(fig18b, "curve", lambda lab, lengths: size_runs.Curve(1.0, "Test card", rows))
    found = verdicts(fig18b.judge(Lab()))
    assert found == {
        "fig18b/sharegpt/best": "pass",
        "fig18b/alpaca/best": "pass",
        "fig18b/alpaca/256-degrades": "pass",
    }
    best.update({1: 0.9, 256: 1.05})
    rows |= {size: {"mean_normalized_latency_s": value} for size, value in best.items()}
    assert set(verdicts(fig18b.judge(Lab())).values()) == {"miss"}


def test_without_a_device_the_names_are_not_here_and_exit_6(capsys):
    if torch.cuda.is_available():
        pytest.skip("there is one")
    assert verb.reproduce(["caching-allocator"]) == 6
    assert "no device" in capsys.readouterr().err
