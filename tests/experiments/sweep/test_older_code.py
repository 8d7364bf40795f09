"""A sweep that older code began: gone on with where its cells are still the same, refused with the reason where not."""

import json

import pytest

from experiments.cli import main
from experiments.settings import Config
from experiments.sweep import folder as sweep_folder
from experiments.sweep import launchers, schema
from experiments.sweep.axes import axes_of_keys
from experiments.sweep.planning import plan_sweep

AXES = ("--axis", "kv.block_size=8,16,32")
CUT = ("--end", "1")


@pytest.fixture
def older(sweep, monkeypatch):
    """Begins a sweep as the first pagelab with sweeps did, and stops it at its second cell."""
    original = launchers.run_job

    def begin(*words):
        seen = []

        def run_job(job):
            seen.append(job)
            if len(seen) == 2:
                raise KeyboardInterrupt
            return original(job)

        with monkeypatch.context() as patch:
            patch.setattr(schema, "CHANGES", ())
            patch.setattr(sweep_folder, "written_by", dict)
            patch.setattr(launchers, "run_job", run_job)
            assert sweep(*AXES, *words, "-o", "out").code == 130

    return begin


def ledger_of(folder):
    return [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]


def kept(files):
    """Without who was at work."""
    return {name: data for name, data in files.items() if not name.startswith(".locks")}


def rewrite(folder, edit):
    first, *rest = ledger_of(folder)
    lines = [edit(first), *rest]
    (folder / "ledger.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize("words", [("--resume", "-o", "out"), (*AXES, *CUT, "--resume", "-o", "out")])
def test_cut_runs_of_an_older_pagelab_are_not_gone_on_with(older, sweep, pagelab, tmp_path, words, tree):
    older(*CUT)
    before = kept(tree(tmp_path / "out"))
    done = pagelab("sweep", *words) if len(words) == 3 else sweep(*words)
    assert done.code == 2
    assert "results of an older sweep; choose another folder, or --overwrite them" in done.err
    assert "it was begun with an older pagelab of cell schema 1" in done.err
    assert "the window of a run that is cut (--end) ends at the cut" in done.err
    assert "block size is no part" not in done.err
    assert kept(tree(tmp_path / "out")) == before
    assert sweep(*AXES, *CUT, "--overwrite", "-o", "out").code == 0
    assert ledger_of(tmp_path / "out")[0]["cell_schema"] == schema.NEWEST


def test_runs_that_no_change_touches_are_gone_on_with(older, sweep, tmp_path):
    older()
    [begun] = [line["cell"] for line in ledger_of(tmp_path / "out") if line["state"] == "done"]
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "out/cells" / begun).iterdir()}
    assert "cell_schema" not in ledger_of(tmp_path / "out")[0]
    done = sweep(*AXES, "--resume", "-o", "out")
    assert done.code == 0, done.err
    assert {path: path.stat().st_mtime_ns for path in times} == times
    assert sum(line["state"] == "done" for line in ledger_of(tmp_path / "out")) == 3


def test_what_begins_now_says_by_which_code(sweep, tmp_path):
    assert sweep(*AXES, "-o", "out").code == 0
    first = ledger_of(tmp_path / "out")[0]
    assert first["cell_schema"] == schema.NEWEST == max(change.schema for change in schema.CHANGES)
    assert "pagelab" in first  # none where it is not installed


def test_a_sweep_of_a_newer_pagelab_asks_for_an_update(sweep, tmp_path):
    assert sweep(*AXES, "-o", "out").code == 0
    rewrite(tmp_path / "out", lambda line: line | {"cell_schema": 99, "asked": line["asked"] | {"cells": "other"}})
    done = sweep(*AXES, "--resume", "-o", "out")
    assert done.code == 2
    assert f"of cell schema 99, and this one knows up to {schema.NEWEST}: update pagelab" in done.err


def test_a_changed_trace_is_not_blamed_on_the_code(sweep, tmp_path):
    assert sweep(*AXES, "-o", "out").code == 0
    rewrite(tmp_path / "out", lambda line: line | {"asked": line["asked"] | {"cells": "other"}})
    done = sweep(*AXES, "--resume", "-o", "out")
    assert "no key differs: a trace or a table of step times has other contents" in done.err
    assert "schema" not in done.err


def test_keys_that_came_later_and_say_nothing_new_make_no_other_sweep(sweep, tmp_path):
    assert sweep(*AXES, "-o", "out").code == 0
    newer = [key for key in ledger_of(tmp_path / "out")[0]["asked"] if key in schema.NEWER_KEYS]
    assert newer
    rewrite(
        tmp_path / "out",
        lambda line: line | {"asked": {key: value for key, value in line["asked"].items() if key not in newer}},
    )
    assert sweep(*AXES, "--resume", "-o", "out").code == 0


TOUCHED = {
    2: {"end": 1.0},
    3: {"step_model": "calibrated:rows.json"},
    4: {"allocator": "virtual"},
}


@pytest.mark.parametrize("change", schema.CHANGES, ids=lambda change: str(change.schema))
def test_a_change_is_the_schema_of_the_cells_that_it_touches_and_of_no_others(change):
    plain, touched = Config.of(num_blocks=100), Config.of(num_blocks=100, **TOUCHED[change.schema])
    assert (schema.schema_of(plain), schema.schema_of(touched)) == (schema.FIRST, change.schema)
    assert schema.changes_since(change.schema - 1, [plain, touched]) == [change]
    assert schema.changes_since(change.schema, [plain, touched]) == []
    assert schema.changes_since(schema.FIRST, [plain]) == []


def test_keys_of_cells_change_with_their_schema_alone(base, monkeypatch):
    def keys(config):
        plan = plan_sweep(config, axes_of_keys({"kv.block_size": [8, 16]}))
        return [cell.key for cell in plan.cells]

    now = keys(base), keys(base.with_(end=1.0))
    monkeypatch.setattr(schema, "CHANGES", ())
    first = keys(base), keys(base.with_(end=1.0))
    assert now[0] == first[0]
    assert set(now[1]).isdisjoint(first[1])


def test_another_process_of_older_code_cannot_join(older, sweep, tmp_path, tiny_file):
    """A shard of a sweep whose first shard older code began."""
    older(*CUT, "--shard", "1/2")
    fixed = ("--kv-tokens", "4000", "--step-model", "linear:0.02,0.0001,0.000001,0.0001", "--max-model-len", "2048")
    words = ("sweep", "--trace", str(tiny_file), *fixed, *AXES, *CUT, "--shard", "2/2", "--jobs", "1", "-o", "out")
    assert main(list(words)) == 2
