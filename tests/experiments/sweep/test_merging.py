"""Axes that are nothing to some allocators: one run stands for several points, and every point shows it."""

import itertools
import json

import pandas as pd
import pytest

from experiments.cells import run_task, task_of
from experiments.figures.intervals import with_intervals
from experiments.figures.repeats import runs_of
from experiments.figures.stored import Stored
from experiments.figures.together import Together
from experiments.report_of_sweep import means
from experiments.resolve import plan_of
from experiments.sweep.axes import axes_of_keys
from experiments.sweep.planning import plan_sweep

SIZES, PAGES = (8, 16, 32), ("64KiB", "256KiB")
GRID = {"kv.allocator": ["paged", "virtual"], "kv.block_size": list(SIZES), "kv.page_bytes": list(PAGES)}
FLAGS = tuple(word for key, values in GRID.items() for word in ("--axis", f"{key}={','.join(map(str, values))}"))


def planned(config, grid, **more):
    return plan_sweep(config, axes_of_keys(grid, **more))


@pytest.fixture
def merged(sweep, tmp_path):
    """A sweep of both axes and both allocators."""
    done = sweep(*FLAGS, "-o", "out")
    assert done.code == 0, done.err
    return tmp_path / "out", done


def test_an_axis_that_is_nothing_to_an_allocator_makes_no_further_cells_of_it(base):
    plan = planned(base, GRID)
    own = {(cell.allocator, cell.point["kv.block_size"], cell.point["kv.page_bytes"]) for cell in plan.cells}
    assert own == {*(("paged", size, PAGES[0]) for size in SIZES), *(("virtual", SIZES[0], page) for page in PAGES)}
    assert len(plan.cells) + len(plan.merged) == plan.num_points == 12
    notes = " | ".join(plan.notes)
    assert "kv.block_size changes nothing for virtual, whose blocks are its pages (kv.page_bytes): 4 points" in notes
    assert "kv.page_bytes changes nothing for allocators that map no pages: 3 points" in notes
    assert "7 duplicate points are merged" in notes
    assert "show the run at each of its points, summary.csv has it once" in notes


def test_a_block_size_that_sizes_the_pool_is_something_to_every_allocator(base):
    """Zipped with blocks, the pools differ, whatever a block is."""
    grid = {"kv.block_size": [8, 16], "kv.num_blocks": [400, 300]}
    plan = planned(base.with_(allocator="virtual"), grid, zips=[("kv.block_size", "kv.num_blocks")])
    assert [cell.num_blocks for cell in plan.cells] == [400, 300]
    assert plan.merged == ()


def test_a_merged_point_is_what_a_run_of_it_gives(merged, base):
    folder, _ = merged
    shown = Stored(folder).summary
    assert len(shown) == 12
    assert len(pd.read_csv(folder / "summary.csv")) == 5
    for allocator, size, page in itertools.product(*GRID.values()):
        plan = plan_of(base.with_(allocator=allocator, block_size=size, page_bytes=page), verb="run", writes=False)
        summary = run_task(task_of(plan, plan.cells[0])).summary
        keys = (shown["kv.allocator"] == allocator) & (shown["kv.block_size"] == size)
        [row] = shown[keys & (shown["kv.page_bytes"] == page)].to_dict("records")
        for name in ("kv_live_frac", "mean_ttft_s", "num_preemptions", "block_size", "num_blocks"):
            assert row[name] == pytest.approx(summary[name]), (allocator, size, page, name)


def test_points_come_in_the_order_of_the_axes(merged):
    shown = Stored(merged[0]).summary
    assert list(zip(*(shown[key] for key in GRID), strict=True)) == list(itertools.product(*GRID.values()))
    assert len(means(Stored(merged[0]))) == 12


def test_a_run_at_several_points_counts_once_in_a_mean(merged):
    shown = Stored(merged[0]).summary
    table = with_intervals(shown, ["kv.allocator"], ["kv_live_frac"]).set_index("kv.allocator")
    assert table["num_runs"].to_dict() == {"paged": 3, "virtual": 2}
    runs = pd.read_csv(merged[0] / "summary.csv").groupby("kv.allocator")["kv_live_frac"]
    assert table["kv_live_frac"].to_dict() == pytest.approx(runs.mean().to_dict())
    assert table["kv_live_frac_sd"].to_dict() == pytest.approx(runs.std().to_dict())


def test_a_plot_over_the_axis_has_a_value_at_each_of_its_points(merged, pagelab, strict_object, tmp_path):
    words = ("plot", merged[0], "--var-x", "kv.block_size", "--filter-by", "kv.page_bytes=64KiB", "-o", "a.png")
    points = strict_object(pagelab(*words, "--json").out)["points"]
    virtual = [point for point in points if point["allocator"] == "virtual"]
    assert [point["kv.block_size"] for point in virtual] == list(SIZES)
    assert len({point["kv_live_frac"] for point in virtual}) == 1
    assert [point["num_runs"] for point in points] == [1] * 6


def test_null_and_the_default_are_one_run_at_two_points(sweep, tmp_path):
    assert sweep("--axis", "kv.block_size=null,16,32", "-o", "out").code == 0
    shown = Stored(tmp_path / "out").summary
    assert shown["kv.block_size"].fillna(0).tolist() == [0, 16, 32]
    assert shown["kv_live_frac"].iloc[0] == shown["kv_live_frac"].iloc[1]
    assert shown["kv.block_size"].dtype.kind == "f"


def test_the_same_point_twice_is_one_row(sweep, tmp_path):
    assert sweep("--axis", "kv.block_size=8,8,16", "-o", "out").code == 0
    assert Stored(tmp_path / "out").summary["kv.block_size"].tolist() == [8, 16]
    assert json.loads((tmp_path / "out/manifest.json").read_text())["merged"] == []


def test_the_report_counts_runs_and_configurations(merged, pagelab):
    assert pagelab("report", merged[0]).code == 0
    text = (merged[0] / "report.html").read_text()
    assert "12 configurations (2 of allocator × 3 of block size × 2 of page bytes) finished in 5 runs." in text
    assert "kv.block_size changes nothing for virtual" in text


def test_beside_results_without_merged_points_every_run_still_counts(merged, sweep, tmp_path):
    assert sweep("--allocator", "paged", "--axis", "kv.block_size=8,16", "-o", "plain").code == 0
    both = Together([merged[0], tmp_path / "plain"]).summary
    assert len(both) == 12 + 2
    assert len(runs_of(both)) == 5 + 2
    table = with_intervals(both, ["allocator"], ["kv_live_frac"]).set_index("allocator")
    assert table["num_runs"].to_dict() == {"paged": 3 + 2, "virtual": 2}
