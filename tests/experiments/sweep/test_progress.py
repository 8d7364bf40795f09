"""How far a sweep is, and what is left of it."""

import pytest

from experiments.console import Talk
from experiments.sweep.job import JobResult
from experiments.sweep.progress import Pace, clock_of, planning, watched


def test_the_pace_is_cells_over_time_and_what_is_left_follows():
    now = [100.0]
    pace = Pace(10, clock=lambda: now[0])
    assert str(pace) == "0 cells/s, ? left"
    for _ in range(4):
        now[0] += 2.0
        pace.advance()
    assert pace.per_s == 0.5
    assert pace.left_s == 12.0
    assert str(pace) == "0.5 cells/s, 0:12 left"


@pytest.mark.parametrize("seconds,text", [(0, "0:00"), (61, "1:01"), (3723, "1:02:03")])
def test_times_left_are_clocks(seconds, text):
    assert clock_of(seconds) == text


def test_without_a_terminal_there_is_a_line_a_cell(capsys):
    with watched(2, {"a": "kv.block_size=8 repeat 0", "b": "kv.block_size=16 repeat 0"}, Talk()) as on_end:
        on_end(JobResult("a", "", num_requests=1000, num_completed=990, wall_s=0.2))
        on_end(JobResult("b", "", error="RuntimeError: no"))
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("[1/2] kv.block_size=8 repeat 0: 990 of 1,000 done, 0.2 s; ")
    assert first.endswith(" left")
    assert second == "[2/2] kv.block_size=16 repeat 0: failed: RuntimeError: no"


def test_quiet_means_failures_only(capsys):
    with watched(2, {"a": "one", "b": "two"}, Talk(quiet=True)) as on_end:
        on_end(JobResult("a", "", num_requests=1, num_completed=1))
        on_end(JobResult("b", "", failed_checks=("one is two",)))
    assert capsys.readouterr().err == "[2/2] two: check does not hold: one is two\n"


def test_on_a_terminal_there_is_a_bar(capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    with watched(2, {"a": "one"}, Talk()) as on_end:
        on_end(JobResult("a", "", num_requests=1, num_completed=1))
    said = capsys.readouterr().err
    assert "1/2" in said
    assert "cells/s" in said


# planning -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def clock():
    """Seconds that a test sets."""
    now = [10.0]
    return now, lambda: now[0]


def test_planning_says_nothing_for_a_second_and_then_now_and_then(clock, capsys):
    now, read = clock
    with planning(Talk(), clock=read) as on_point:
        for done in range(120):
            on_point(done, 2000)
            now[0] += 0.125
    assert capsys.readouterr().err.splitlines() == [
        "planning: 8 of 2,000 points, 1 s",
        "planning: 48 of 2,000 points, 6 s",
        "planning: 88 of 2,000 points, 11 s",
    ]


def test_a_quiet_planner_says_nothing(clock, capsys, monkeypatch):
    now, read = clock
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with planning(Talk(quiet=True), clock=read) as on_point:
        now[0] += 100
        on_point(1, 2)
    assert capsys.readouterr().err == ""


def test_on_a_terminal_one_line_changes_and_goes_away(clock, capsys, monkeypatch):
    now, read = clock
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with planning(Talk(), clock=read) as on_point:
        for done in range(30):
            on_point(done, 30)
            now[0] += 0.1
    said = capsys.readouterr().err
    assert "\n" not in said
    assert said.count("planning: ") == pytest.approx(20, abs=1)
    assert said.endswith("\r\033[K")


def test_the_verb_says_how_far_its_plan_is(sweep, monkeypatch):
    monkeypatch.setattr("experiments.sweep.progress.FIRST_S", 0.0)
    done = sweep("--axis", "kv.block_size=8,16,32", "--dry-run")
    assert done.code == 0
    assert "planning: 0 of 3 points" in done.err
    assert "planning" not in done.out
