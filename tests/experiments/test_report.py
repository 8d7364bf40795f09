import csv
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest

from engine.core.limits import SchedulerConfig
from engine.core.registry import PoolConfig
from experiments import report
from experiments.figures import FIGURES
from experiments.figures.caption import traces_of
from experiments.report import build_report, write_report
from sim.cost import PAPER_13B
from sim.cost_executor import CostExecutor
from sim.simulate import RunSpec, simulate
from tests.experiments.pages import PageReader
from workloads import named_trace

EVIL = "<script>alert(1)</script>"
ALLOCATORS = ("orca-max", "paged")


def run_cells(folder, allocators=ALLOCATORS, block_sizes=(16,), seeds=(0,), snapshots=12):
    rows = []
    for allocator in allocators:
        for size in block_sizes:
            for seed in seeds:
                pool = PoolConfig(2048 * 3 // size + 8, size, 2048, enable_caching=False)
                limits = SchedulerConfig(max_model_len=2048, max_num_seqs=64, max_num_batched_tokens=2560)
                spec = RunSpec(allocator, pool, limits, num_snapshots=snapshots)
                run = simulate(spec, named_trace("paper-fig2", seed=seed).slice(0, 60), CostExecutor(PAPER_13B))
                name = f"{allocator}-bs{size}-s{seed}"
                rows.append({"cell": name, "seed": seed, **run.summary})
                write_cell(folder / "cells" / name, run)
    pd.DataFrame(rows).to_csv(folder / "summary.csv", index=False)
    write_manifest(folder)


def write_cell(folder, run):
    folder.mkdir(parents=True)
    for name, frame in {"requests": run.requests(), "timeline": run.timeline(), "map": run.memory_map()}.items():
        frame.to_parquet(folder / f"{name}.parquet")
    checks = [{"name": check.name, "holds": check.holds} for check in run.checks]
    (folder / "validation.json").write_text(json.dumps({"passed": True, "checks": checks}))


def write_manifest(folder, **changes):
    manifest = {
        "experiment": "demo",
        "argv": ["pagelab", "run", "--set", "kv.block_size=16"],
        "config": {"kv": {"block_size": 16}, "measure": {"step_model": "paper-13b"}},
        "seeds": [0],
        "trace": {"name": "paper-fig2", "sha256": "0123456789abcdef" * 4, "num_requests": 60},
        "capacity": {"tokens": 6272, "bytes": 6272 * 819_200},
        "step_model": PAPER_13B.coefficients(),
        "device": "simulated",
        "status": "complete",
    }
    (folder / "manifest.json").write_text(json.dumps(manifest | changes))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    run_cells(folder, block_sizes=(16, 32), seeds=(0, 1))
    return folder, build_report(folder)


@pytest.fixture
def small(tmp_path, monkeypatch):
    """One cell and two figures."""
    quick = ("batched_requests", "free_extents")
    monkeypatch.setattr(report, "FIGURES", {name: FIGURES[name] for name in quick})
    run_cells(tmp_path, allocators=("paged",))
    return tmp_path


class Page(HTMLParser):
    """Tags, links and text of a page."""

    def __init__(self, path: Path):
        super().__init__()
        self.tags, self.links, self.words = [], [], []
        self.feed(path.read_text("utf-8"))
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data):
        self.words.append(data)


def test_every_figure_is_drawn_with_its_numbers_beside_it(finished):
    folder, built = finished
    assert built.errors == []
    assert {drawn.figure.name for drawn in built.figures if drawn.picture and drawn.numbers} == set(FIGURES)
    assert {path.name for path in (folder / "figures").iterdir()} == {
        f"{name}{suffix}" for name in FIGURES for suffix in (".png", ".csv")
    }


def test_the_written_numbers_are_the_means_of_the_summary(finished):
    folder, _ = finished
    summary = pd.read_csv(folder / "summary.csv")
    at_16 = summary[summary["block_size"] == 16].groupby("allocator")["kv_live_frac"].mean()
    with (folder / "figures" / "waste_breakdown.csv").open(newline="") as file:
        written = {row["allocator"]: float(row["kv_live_frac"]) for row in csv.DictReader(file)}
    assert written == pytest.approx(dict(at_16))


def test_the_page_stands_alone(finished):
    assert PageReader(finished[1].path).faults == []
    page = Page(finished[1].path)
    assert page.tags.count("img") == len(FIGURES)
    outside = [
        link for link in page.links if not link.startswith(("data:image/png;base64,", "#", "figures/", "tables/"))
    ]
    assert outside == []
    assert not {"script", "link", "iframe", "object"} & set(page.tags)
    text = finished[1].path.read_text("utf-8")
    assert "@import" not in text
    assert re.search(r"url\(", text) is None


def test_the_page_answers_first_and_every_caption_names_its_origin(finished):
    page = Page(finished[1].path)
    assert "Given memory for 6,272 tokens in blocks of 16 and the same 60 requests" in page.text
    assert "pagelab run --set kv.block_size=16" in page.text
    caption = "n = 60 requests a run · seed 0 · trace paper-fig2 sha256 0123456789ab · block size"
    rest = " · device: simulated · step model paper-13b · pagelab run"
    assert page.text.count(f"{caption} 16{rest}") == len(FIGURES) - 1
    assert page.text.count(f"{caption}s 16, 32{rest}") == 1
    assert page.text.count("What to see.") == len(FIGURES)
    assert "The paper draws buddy round-up inside “external & others”, while strict counts it as internal." in page.text


def test_the_badge_counts_the_checks(finished):
    checks = sum(len(json.loads(p.read_text())["checks"]) for p in finished[0].glob("cells/*/validation.json"))
    assert f"all {checks} checks passed" in Page(finished[1].path).text


def test_the_same_folder_gives_the_same_bytes(small):
    def taken():
        write_report(small)
        return {path.name: path.read_bytes() for path in [small / "report.html", *(small / "figures").iterdir()]}

    assert taken() == taken()


def test_what_comes_from_files_is_escaped(small):
    summary = pd.read_csv(small / "summary.csv")
    summary["allocator"] = EVIL
    summary.to_csv(small / "summary.csv", index=False)
    trace = {"name": EVIL, "sha256": EVIL, "num_requests": 60}
    cells = [{"cell": EVIL, "status": "failed", "error": EVIL}]
    write_manifest(small, trace=trace, experiment=EVIL, argv=[EVIL], cells=cells, notes=[EVIL], status=EVIL)
    checks = [{"name": EVIL, "holds": False}]
    next(small.glob("cells/*/validation.json")).write_text(json.dumps(checks))
    page = Page(write_report(small))
    assert "script" not in page.tags
    assert page.text.count(EVIL) >= 8
    assert "0 checks passed, 1 failed" in page.text


def test_a_missing_map_costs_its_figures_only(small):
    next(small.glob("cells/*/map.parquet")).unlink()
    built = build_report(small)
    assert built.errors == []
    assert [drawn.figure.name for drawn in built.figures if drawn.missing] == ["free_extents"]
    assert "Not shown: this result has no map.parquet" in Page(built.path).text


def test_a_damaged_file_is_named(small):
    next(small.glob("cells/*/map.parquet")).write_bytes(b"PAR1 no")
    built = build_report(small)
    assert built.problems == ["cells/paged-bs16-s0/map.parquet cannot be read (ArrowInvalid)"]
    assert built.problems[0] in Page(built.path).text


def test_one_bad_figure_is_named_and_the_rest_is_drawn(small, monkeypatch):
    def fail(stored, canvas):
        raise ZeroDivisionError("no <width>")

    bad = replace(FIGURES["batched_requests"], draw=fail)
    monkeypatch.setitem(report.FIGURES, "batched_requests", bad)
    built = build_report(small)
    assert built.errors == ["batched_requests: ZeroDivisionError: no <width>"]
    assert [drawn.figure.name for drawn in built.figures if drawn.picture] == ["free_extents"]
    assert "This figure could not be drawn. ZeroDivisionError: no <width>" in Page(built.path).text


def test_a_result_without_finished_cells_still_has_a_page(tmp_path):
    write_manifest(tmp_path, status="failed")
    (tmp_path / "cells" / "paged-s0").mkdir(parents=True)
    (tmp_path / "cells" / "paged-s0" / "error.txt").write_text("ValueError: pool too small\nmore")
    built = build_report(tmp_path)
    page = Page(built.path)
    assert built.errors == []
    assert "No run of this experiment finished" in page.text
    assert "paged-s0: ValueError: pool too small" in page.text
    assert "no checks recorded" in page.text


def test_a_run_that_completes_nothing_says_so(small):
    summary = pd.read_csv(small / "summary.csv")
    summary[["num_finished", "num_truncated"]] = 0
    summary[["mean_ttft_s", "mean_tpot_s"]] = None
    summary.to_csv(small / "summary.csv", index=False)
    assert "No request was completed by paged." in Page(write_report(small)).text


def test_trace_lengths_are_read_where_they_are_stored(small, monkeypatch):
    monkeypatch.setattr(report, "FIGURES", {"trace_lengths": FIGURES["trace_lengths"]})
    (small / "trace_lengths.csv").write_text("num_prompt_tokens,num_output_tokens\n5,9\n6,300\n")
    built = build_report(small)
    assert built.problems == []
    assert pd.read_csv(small / "figures" / "trace_lengths.csv")["num_prompt"].sum() == 2


@pytest.mark.parametrize(
    "own, told",
    [
        ([], "trace x sha256 aa"),
        (["aa", "aa"], "trace x sha256 aa"),
        (["aa", None, "bb"], "trace x sha256 aa and 1 other"),
        (["bb", "aa", "cc", "bb"], "trace x sha256 aa and 2 others"),
    ],
)
def test_a_caption_counts_the_traces_behind_it(own, told):
    cells = [{"cell": str(place), "trace_sha256": sha} for place, sha in enumerate(own)]
    assert traces_of({"trace": {"name": "x", "sha256": "aa"}, "cells": cells}) == told
