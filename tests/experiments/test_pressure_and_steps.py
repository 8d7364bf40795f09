"""Queue and preemptions over time, the pool step by step, and end-to-end latency: plotted is what the tables hold."""

import numpy as np
import pandas as pd
import pytest

from engine.core.allocator import FREE
from engine.core.limits import SchedulerConfig
from engine.core.registry import PoolConfig
from experiments.figures import FIGURES, latency_ecdf, queue_and_preemptions
from experiments.figures.memory import paint
from experiments.figures.memory_steps import sheet, steps_of
from experiments.figures.pressure import QUEUE, RATE, pressure_over_time
from experiments.figures.variance import live_over_spread
from experiments.style import new_figure, style
from sim.cost import LinearModel
from sim.cost_executor import CostExecutor
from sim.simulate import RunSpec, simulate
from workloads import synthetic_trace


@pytest.fixture(scope="module")
def tight():
    """A paged run in which memory runs short all the time."""
    trace = synthetic_trace("poisson", "uniform:1-60,1-60", 200, seed=1, rate_per_s=400.0)
    spec = RunSpec("paged", PoolConfig(24, 8, 128, enable_caching=False), SchedulerConfig(128), num_snapshots=20)
    return simulate(spec, trace, CostExecutor(LinearModel(10**9, 0, 0, 0)))


@pytest.fixture
def canvas():
    with style():
        yield new_figure(6.9, 3.5)


def test_the_timeline_counts_every_preemption_once(tight):
    counted = tight.timeline()["num_preemptions"]

    assert counted.sum() == sum(row.num_preemptions for row in tight.rows) > 20
    assert (counted > 0).sum() > 5


def test_preemptions_lie_in_the_bin_in_which_they_happened(tight):
    timeline, times = tight.timeline(), np.array(list(tight.recorder.away.starts)) / 1e12
    for _, row in timeline.iterrows():
        inside = (row["time_s"] <= times) & (times < row["time_s"] + row["duration_s"])
        assert inside.sum() == row["num_preemptions"]


def test_the_plotted_rates_add_up_to_the_preemptions(tight, canvas):
    timeline = tight.timeline()
    plotted = queue_and_preemptions({"paged": timeline}, list(canvas.subplots(2, 1)))
    end = (plotted["time_s"] + plotted["duration_s"]).max()
    counted = timeline.loc[timeline["time_s"] < end - 1e-9, "num_preemptions"].sum()

    assert (plotted[RATE] * plotted["duration_s"]).sum() == pytest.approx(counted)
    assert counted > 20
    assert list(plotted) == ["allocator", "time_s", "duration_s", QUEUE, RATE]


def test_the_rest_of_a_step_after_a_cut_is_left_out():
    bins = pd.DataFrame(
        {"time_s": [0, 3, 6, 9], "duration_s": [3, 3, 3, 0.02], QUEUE: [1.0, 2.0, 3.0, 0.0], "num_preemptions": 3}
    )
    shown = pressure_over_time(bins)

    assert shown[QUEUE].tolist() == [1, 2, 3]
    assert shown[RATE].tolist() == [1, 1, 1]


def test_a_result_without_counted_preemptions_says_so(tmp_path):
    class Old:
        def one_each(self, name):
            return {"paged": pd.DataFrame({"time_s": [0.0], "duration_s": [1.0], QUEUE: [0.0]})}

    with pytest.raises(Exception, match="before timelines counted preemptions"):
        FIGURES["queue_and_preemptions"].draw(Old(), new_figure(4, 3))


def test_steps_are_evenly_spaced_and_end_with_the_last_snapshot(tight):
    frame = tight.memory_map()
    times = sorted(frame["time_s"].unique())
    shown = [time for time, _ in steps_of(frame)]

    assert len(shown) == 6
    assert shown[-1] == times[-1]
    assert set(shown) <= set(times)


@pytest.mark.parametrize("num_blocks", [1, 2, 16, 17, 24])
def test_a_sheet_shows_each_block_once_in_reading_order(num_blocks):
    owner = np.arange(num_blocks, dtype=np.int64)
    image = sheet(owner)
    height, width, _ = image.shape

    assert height * width - num_blocks < width
    assert width - height in (0, 1)
    assert (image.reshape(-1, 3)[:num_blocks] == paint(owner)).all()
    assert (image.reshape(-1, 3)[num_blocks:] == 1).all()
    assert (sheet(np.full(num_blocks, FREE)) == 1).all()


def test_end_to_end_latency_is_finish_less_arrival(canvas):
    requests = pd.DataFrame(
        {
            "status": ["finished", "unfinished", "finished"],
            "arrival_s": [1.0, 2.0, 3.0],
            "first_token_s": [2.0, 3.0, 4.0],
            "finish_s": [9.0, np.nan, 5.0],
            "num_output_tokens": [4, 2, 2],
        }
    )
    plotted = latency_ecdf({"paged": requests}, canvas.subplots(), "e2e_s")

    assert plotted["e2e_s"].tolist() == [2.0, 8.0]
    assert plotted["share"].tolist() == [0.5, 1.0]


def test_live_memory_over_the_spread_is_plotted_in_order_of_the_spread(canvas):
    rows = [("below", "paged", cv, 0.9 - cv / 10) for cv in (2.0, 0.0, 0.5)] + [("high", "paged", 0.0, 0.5)]
    frame = pd.DataFrame(rows, columns=["load", "allocator", "cv", "live_frac"])
    axes = list(canvas.subplots(1, 2))
    live_over_spread(frame, axes, {"below": "a", "high": "b"})
    line = axes[0].lines[0]

    assert line.get_xdata().tolist() == [0, 1, 2]
    assert line.get_ydata().tolist() == pytest.approx([0.9, 0.85, 0.7])
    assert [tick.get_text() for tick in axes[0].get_xticklabels()] == ["0", "0.5", "2"]
