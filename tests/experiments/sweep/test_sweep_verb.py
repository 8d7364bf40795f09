"""`pagelab sweep`: the folder, dry runs, failures, mistakes. Ends at any moment are in test_interruptions."""

import csv
import errno
import io
import json
import os
from pathlib import Path

import pandas as pd
import pytest

from experiments.settings import Config

AXES = ("--axis", "kv.allocator=paged,orca-max", "--axis", "kv.block_size=8,16")

BROKEN = """
from engine.core.registry import PoolConfig, make_allocator

class Broken:
    def __init__(self, pool: PoolConfig) -> None:
        self._inner = make_allocator("paged", pool)

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def admit(self, *args, **more):
        raise RuntimeError("no memory today")
"""


def rows(folder):
    return list(csv.DictReader(io.StringIO((folder / "summary.csv").read_text())))


def test_the_folder_holds_a_row_a_cell_in_the_plans_order(sweep, tmp_path, trace_file):
    done = sweep(*AXES, "-o", "out", "--record", "requests,timeline")
    assert done.code == 0, done.err
    folder = tmp_path / "out"
    found = rows(folder)
    assert list(found[0])[:5] == ["cell", "repeat", "seed", "kv.allocator", "kv.block_size"]
    assert [(row["kv.allocator"], row["kv.block_size"]) for row in found] == [
        (allocator, size) for allocator in ("paged", "orca-max") for size in ("8", "16")
    ]
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["kind"] == "sweep"
    assert manifest["status"] == "ok"
    assert manifest["axes"] == {"kv.allocator": ["paged", "orca-max"], "kv.block_size": [8, 16]}
    assert "equal capacity along kv.block_size: 4,000 tokens" in manifest["notes"][0]
    for row in found:
        place = folder / "cells" / row["cell"]
        assert row["allocator"] == row["kv.allocator"]
        assert row["block_size"] == row["kv.block_size"]
        assert json.loads((place / "summary.json").read_text())["num_finished"] == 12
        assert json.loads((place / "validation.json").read_text())["passed"]
        assert len(pd.read_parquet(place / "requests.parquet")) == 12
        assert len(pd.read_parquet(place / "timeline.parquet")) > 1
    assert Config.load(folder / "config.resolved.toml").kv.kv_tokens == 4000
    entries = [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]
    assert [entry["state"] for entry in entries] == ["sweep", *["running", "done"] * 4]


def test_cells_keep_no_tables_unless_asked(sweep, tmp_path):
    assert sweep("--axis", "kv.block_size=8,16", "-o", "out").code == 0
    names = {path.name for path in (tmp_path / "out/cells").glob("*/*")}
    assert names == {"summary.json", "validation.json"}


def test_a_finished_sweep_is_valid(sweep, pagelab, tmp_path):
    assert sweep(*AXES, "-o", "out").code == 0
    assert pagelab("validate", "out").code == 0
    row = rows(tmp_path / "out")[0]
    path = tmp_path / "out/cells" / row["cell"] / "summary.json"
    path.write_text(path.read_text().replace("12", "13", 1))
    assert pagelab("validate", "out").code == 4


def test_a_cell_has_the_numbers_of_a_run(sweep, small, tiny_file, pagelab, strict_object, tmp_path):
    assert sweep("--axis", "kv.block_size=8,32", "-o", "out").code == 0
    for row in rows(tmp_path / "out"):
        words = ("--kv-tokens", "4000", "--step-model", "linear:0.02,0.0001,0.000001,0.0001", "--max-model-len", "2048")
        run = pagelab("run", "--trace", tiny_file, *words, "--block-size", row["kv.block_size"], "--json")
        [alone] = strict_object(run.out)["runs"]
        stored = json.loads((tmp_path / "out/cells" / row["cell"] / "summary.json").read_text())
        assert {key: value for key, value in alone.items() if key not in ("cell", "seed")} == stored


def test_a_dry_run_says_what_and_how_long_and_writes_nothing(sweep, tmp_path, strict_object):
    done = sweep("--axis", "kv.block_size=1,1,2,2", "--dry-run", "-o", "out")
    assert done.code == 0, done.err
    assert "4 kv.block_size: 2 cells; 2 merged" in done.err
    assert "2 duplicate points are merged" in done.err
    assert "equal capacity along kv.block_size: 4,000 tokens" in done.err
    assert "2 cells: about 1 s with 1 at a time" in done.out
    answer = strict_object(sweep("--axis", "kv.block_size=1,1,2,2", "--dry-run", "--json").out)
    assert [cell["point"] for cell in answer["cells"]] == [{"kv.block_size": 1}, {"kv.block_size": 2}]
    assert answer["num_merged"] == 2
    assert answer["estimate"]["wall_s"] > 0
    assert list(tmp_path.iterdir()) == []


def test_a_null_is_a_row_with_an_empty_field(sweep, tmp_path):
    assert sweep("--axis", "kv.block_size=null,32", "-o", "out").code == 0
    assert [(row["kv.block_size"], row["block_size"]) for row in rows(tmp_path / "out")] == [("", "16"), ("32", "32")]
    assert json.loads((tmp_path / "out/manifest.json").read_text())["axes"] == {"kv.block_size": [None, 32]}


def test_axes_of_a_file_and_flags_give_the_same_folder(sweep, pagelab, tiny_file, tmp_path, cells):
    assert sweep(*AXES, "-o", "flags").code == 0
    (tmp_path / "exp.toml").write_text(
        f'[workload]\ntrace = "{tiny_file}"\n[kv]\nkv_tokens = 4000\n[model]\nmax_model_len = 2048\n'
        '[measure]\nstep_model = "linear:0.02,0.0001,0.000001,0.0001"\n'
        '[sweep.grid]\n"kv.allocator" = ["paged", "orca-max"]\n"kv.block_size" = [8, 16]\n'
    )
    assert pagelab("sweep", "-c", "exp.toml", "-o", "file", "--jobs", 1).code == 0
    assert cells(tmp_path / "file") == cells(tmp_path / "flags")
    words = ("-c", "flags/config.resolved.toml", "-c", "flags/sweep.toml")
    assert pagelab("sweep", *words, "-o", "again", "--jobs", 1).code == 0
    assert cells(tmp_path / "again") == cells(tmp_path / "flags")


def test_other_verbs_do_not_pass_over_axes(pagelab, tmp_path):
    (tmp_path / "exp.toml").write_text('[sweep.grid]\n"kv.block_size" = [8, 16]\n')
    done = pagelab("run", "-c", "exp.toml")
    assert done.code == 2
    assert "exp.toml: [sweep] is what `pagelab sweep` reads" in done.err


def test_the_command_line_wins_over_the_file_and_an_axis_over_both(sweep, tmp_path):
    (tmp_path / "exp.toml").write_text("[kv]\nblock_size = 64\n[scheduler]\nmax_num_seqs = 3\n")
    words = ("-c", "exp.toml", "--block-size", "32", "--max-num-seqs", "5", "-o", "out")
    assert sweep(*words, "--axis", "kv.block_size=8,null").code == 0
    assert [row["block_size"] for row in rows(tmp_path / "out")] == ["8", "16"]
    assert Config.load(tmp_path / "out/config.resolved.toml").scheduler.max_num_seqs == 5


@pytest.mark.parametrize(
    "words,said",
    [
        (("--axis", "kv.block_sise=8,16"), "kv.block_sise: unknown key; did you mean kv.block_size?"),
        (("--axis", "kv.block_size=8,16", "-c", "slip.toml"), "slip.toml:2: kv.block_sise: unknown key"),
        (("--axis", "kv.block_size=8,16", "--shard", "3/2"), "--shard is I/N"),
        (("--axis", "kv.block_size=8,16", "--launcher", "kubernetes"), "known are local, ray, slurm"),
        (("--axis", "kv.block_size=8,16", "--address", "auto"), "--address is for"),
        (
            ("--axis", "kv.block_size=8,16", "--record", "maps"),
            "knows requests, timeline, steps, residency, sharing, got maps",
        ),
        (("--axis", "kv.block_size=8,16", "--record", "steps,map"), "sharing, got map; --map-frames keeps maps"),
        (("--axis", "kv.block_size=8,16", "--overwrite", "--resume"), "say one of them"),
        (("--resume",), "nothing is varied"),
    ],
)
def test_mistakes_are_told_before_anything_is_written(sweep, tmp_path, words, said):
    (tmp_path / "slip.toml").write_text("[kv]\nblock_sise = 32\n")
    done = sweep(*words, "-o", "out")
    assert (done.code, said in done.err) == (2, True), done.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("folder", ["file", "file/below", "nowhere", "itself", "x" * 300, "locked/out"])
def test_where_there_can_be_no_folder_it_is_a_mistake_and_nothing_of_a_sweep(sweep, tmp_path, folder, monkeypatch):
    """Not a full disk, which --resume goes on from, and no bug of ours."""
    (tmp_path / "file").write_text("kept")
    (tmp_path / "nowhere").symlink_to("not there")
    (tmp_path / "itself").symlink_to("itself")
    make = Path.mkdir

    def denied(path, *args, **more):  # root may write anywhere
        if "locked" in path.parts:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        make(path, *args, **more)

    monkeypatch.setattr(Path, "mkdir", denied)
    before = sorted(tmp_path.iterdir())
    done = sweep("--axis", "kv.block_size=8,16", "-o", folder)
    assert (done.code, "another -" in done.err or "cannot be a folder" in done.err) == (2, True), done.err
    assert "resume" not in done.err
    assert sorted(tmp_path.iterdir()) == before
    assert (tmp_path / "file").read_text() == "kept"


def test_a_folder_behind_a_link_is_a_folder(sweep, tmp_path, cells):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert sweep("--axis", "kv.block_size=8,16", "-o", "link").code == 0
    before = cells(tmp_path / "real")
    assert sweep("--axis", "kv.block_size=8,16", "-o", "real", "--resume").code == 0
    assert cells(tmp_path / "link") == before


def test_results_are_replaced_only_when_asked(sweep, tmp_path, cells):
    assert sweep("--axis", "kv.block_size=8,16", "-o", "out").code == 0
    before = cells(tmp_path / "out")
    done = sweep("--axis", "kv.block_size=8,32", "-o", "out")
    assert done.code == 2
    assert "say --resume, --overwrite" in done.err
    assert cells(tmp_path / "out") == before
    assert sweep("--axis", "kv.block_size=8,32", "-o", "out", "--overwrite").code == 0
    assert [row["block_size"] for row in rows(tmp_path / "out")] == ["8", "32"]
    assert len(list((tmp_path / "out/cells").iterdir())) == 2


def test_a_failed_cell_is_kept_with_its_error_and_run_again_when_resumed(sweep, tmp_path, pagelab):
    (tmp_path / "pools_of_sweep.py").write_text(BROKEN)
    words = ("--axis", "kv.allocator=pools_of_sweep:Broken,paged", "-o", "out")
    done = sweep(*words)
    assert done.code == 3
    assert "RuntimeError: no memory today" in done.err
    folder = tmp_path / "out"
    assert [row["allocator"] for row in rows(folder)] == ["paged"]
    manifest = json.loads((folder / "manifest.json").read_text())
    failed, fine = manifest["cells"]
    assert (failed["status"], fine["status"], manifest["status"]) == ("failed", "ok", "failed")
    assert "no memory today" in failed["error"]
    assert "no memory today" in (folder / "cells" / failed["cell"] / "error.txt").read_text()
    untouched = (folder / "cells" / fine["cell"] / "summary.json").stat().st_mtime_ns
    again = pagelab("sweep", "--resume", "-o", "out", "--jobs", 1)
    assert again.code == 3
    assert "[1/1] kv.allocator=pools_of_sweep:Broken" in again.err
    assert (folder / "cells" / fine["cell"] / "summary.json").stat().st_mtime_ns == untouched


def test_fail_fast_stops_at_the_first_failure_and_can_be_gone_on_from(sweep, tmp_path):
    (tmp_path / "pools_of_sweep_two.py").write_text(BROKEN)
    words = ("--axis", "kv.allocator=paged,pools_of_sweep_two:Broken,orca-max", "-o", "out")
    done = sweep(*words, "--fail-fast")
    assert done.code == 3
    assert "1 of 3 cells are finished and kept; go on with: pagelab sweep --resume -o out" in done.err
    assert not (tmp_path / "out/summary.csv").exists()
    assert sweep(*words, "--resume").code == 3
    assert [row["allocator"] for row in rows(tmp_path / "out")] == ["paged", "orca-max"]


def test_a_point_that_cannot_be_run_leaves_the_others_and_exit_code_3(sweep, tmp_path):
    done = sweep("--axis", "kv.allocator=paged,no-such", "-o", "out")
    assert done.code == 3
    assert "1 points cannot be run; the first: kv.allocator=no-such: unknown allocator" in done.err
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    assert manifest["infeasible"][0]["point"] == {"kv.allocator": "no-such"}
    assert "infeasible" in (tmp_path / "out/plan.csv").read_text()


def test_where_nothing_completes_there_are_nulls_a_word_and_exit_code_3(pagelab, tiny_file, tmp_path, strict_object):
    words = ("--kv-tokens", "16", "--axis", "kv.block_size=8,16", "-o", "out", "--jobs", "1", "--json")
    done = pagelab("sweep", "--trace", tiny_file, *words)
    assert done.code == 3
    answer = strict_object(done.out)
    assert [(run["num_finished"], run["mean_ttft_s"]) for run in answer["runs"]] == [(0, None), (0, None)]
    assert any("no completed request in kv.block_size=8" in note for note in answer["notes"])
    for path in (tmp_path / "out/cells").glob("*/summary.json"):
        strict_object(path.read_text())
    assert pagelab("report", "out").code == 0
    assert "There was no completed request" in (tmp_path / "out/report.html").read_text()


def test_a_check_that_does_not_hold_gives_exit_4(sweep, monkeypatch, tmp_path):
    from sim import simulate
    from sim.reconcile import Check

    monkeypatch.setattr(simulate, "reconcile", lambda run, rows: [Check("one is two", False, 1, 2)])
    assert sweep("--axis", "kv.block_size=8,16", "-o", "out").code == 4
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    assert [cell["status"] for cell in manifest["cells"]] == ["invalid", "invalid"]


def test_axes_that_are_zipped_go_together(sweep, tmp_path):
    words = ("--axis", "kv.block_size=8,16", "--axis", "scheduler.max_num_seqs=2,4", "-o", "out")
    done = sweep(*words, "--zip", "kv.block_size,scheduler.max_num_seqs", "--axis", "kv.allocator=paged")
    assert done.code == 0
    assert "2 (kv.block_size, scheduler.max_num_seqs) x 1 kv.allocator: 2 cells" in done.err
    found = [(row["kv.block_size"], row["scheduler.max_num_seqs"]) for row in rows(tmp_path / "out")]
    assert found == [("8", "2"), ("16", "4")]


def test_sizes_of_pages_that_nobody_has_are_one_cell(sweep, tmp_path):
    words = ("--axis", "kv.allocator=paged,virtual", "--axis", "kv.page_bytes=16KiB,64KiB,null", "-m", "llama-2-7b")
    done = sweep(*words, "-o", "out")
    assert done.code == 0, done.err
    assert "2 merged" in done.err
    found = [(row["allocator"], row["kv.page_bytes"]) for row in rows(tmp_path / "out")]
    assert found[:2] == [("paged", "16KiB"), ("virtual", "16KiB")]
    assert len(found) == 4


def test_repeats_are_rows_with_seeds_of_their_own(pagelab, tmp_path):
    words = ("--num-requests", "12", "--num-runs", "2", "--axis", "kv.allocator=paged,orca-max", "--jobs", "1")
    assert pagelab("sweep", *words, "-o", "out").code == 0
    found = rows(tmp_path / "out")
    assert [(row["kv.allocator"], row["repeat"]) for row in found] == [
        ("paged", "0"), ("paged", "1"), ("orca-max", "0"), ("orca-max", "1")
    ]  # fmt: skip
    assert len({row["seed"] for row in found}) == 2
    assert found[0]["seed"] == found[2]["seed"]
    assert {row["cell"][:-3] for row in found[:2]} == {found[0]["cell"][:-3]}
