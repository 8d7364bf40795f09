"""The figures of the two: what they plot is what was measured."""

from __future__ import annotations

import pytest

from experiments.paper import pressure_pictures
from experiments.paper.cache_lab import CacheLab
from experiments.paper.pressure import MARKS, MarkKey
from experiments.paper.runs import Lab
from experiments.style import PAGE_IN, new_figure, style
from sim.cache_only import POLICIES, Prompts
from workloads import Trace


@pytest.fixture
def lab() -> Lab:
    """Twenty prompts of two blocks, the first of which all share."""
    prompts = Prompts([[0, 1 + index % 7] for index in range(20)], [8] * 20, 4)
    trace = Trace.build([0], [8], [1], name="made-up")
    return Lab(num_seeds=2, cached=CacheLab(trace, (4,), _prompts=prompts))


def drawn(picture):
    with style():
        canvas = new_figure(PAGE_IN, picture.height_in)
        plotted = picture.draw(canvas)
        canvas.canvas.draw()
    return canvas, plotted


def test_a_curve_a_policy_and_a_line_without_bound(lab, monkeypatch):
    monkeypatch.setattr(pressure_pictures, "CURVE", (2, 4, 16))
    (picture,) = pressure_pictures.hit_rates(lab)
    canvas, plotted = drawn(picture)

    assert len(plotted) == len(POLICIES) * 3
    assert plotted[plotted["policy"] == "optimal"]["hit_pct"].is_monotonic_increasing
    *curves, bound = canvas.axes[0].lines
    assert [len(line.get_xdata()) for line in curves] == [3] * len(POLICIES)
    assert set(bound.get_ydata()) == {100.0}
    assert "n = 20 prompts, the last 10 measured" in picture.caption


def test_the_sizes_that_were_asked_for_are_on_the_curve(lab):
    lab.cached.sizes = (3, 5)
    (picture,) = pressure_pictures.hit_rates(lab)
    _, plotted = drawn(picture)

    assert set(plotted["num_blocks"]) == {3, 5, *pressure_pictures.CURVE}


def test_nothing_is_drawn_without_a_trace():
    assert pressure_pictures.hit_rates(Lab()) == []


def test_the_watermarks_of_both_seeds(lab):
    for index, mark in enumerate(MARKS):
        for seed in range(2):
            lab._done[MarkKey(mark, seed)] = {
                "num_preemptions": 100.0 - 10 * index + seed,
                "makespan_output_tok_per_s": 500.0 + 2 * seed,
            }
    (picture,) = pressure_pictures.watermarks(lab)
    _, plotted = drawn(picture)

    assert plotted["watermark_pct"].tolist() == [100 * mark for mark in MARKS]
    assert plotted["num_preemptions"].tolist() == [100.5 - 10 * index for index in range(len(MARKS))]
    assert set(plotted["makespan_output_tok_per_s"]) == {501.0}
    assert plotted["num_runs"].tolist() == [2] * len(MARKS)
