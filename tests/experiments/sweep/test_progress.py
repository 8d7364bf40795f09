"""How far a sweep is, and what is left of it."""

import pytest

from experiments.console import Talk
from experiments.sweep.job import JobResult
from experiments.sweep.progress import Pace, clock_of, watched


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
