"""The timeline: the format's rules, and that it says of every request what its row says."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from itertools import pairwise
from types import SimpleNamespace

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.export.perfetto import STATES, phases_of, trace_of
from experiments.export.runs import runs_of

NAN = float("nan")
PHASES = {"queued", "prefill", "decode", "preempted", "swapped"}


@pytest.fixture(scope="module", params=["compared", "swapped"])
def exported(request, results):
    runs = runs_of(results / request.param)
    return runs, trace_of(runs)


def slices(trace):
    """(pid, lane, name, start, stop, depth) of every slice; fails where begins and ends do not match."""
    stacks, found = defaultdict(list), []
    for event in trace["traceEvents"]:
        stack = stacks[event["pid"], event["tid"]]
        if event["ph"] == "B":
            stack.append(event)
        elif event["ph"] == "E":
            begun = stack.pop()
            assert begun["name"] == event["name"]
            assert begun["ts"] <= event["ts"]
            found.append((event["pid"], event["tid"], event["name"], begun["ts"], event["ts"], len(stack)))
    assert not any(stacks.values()), "a slice never ends"
    return found


def test_every_event_is_one_of_the_format(exported):
    _, trace = exported
    assert isinstance(json.dumps(trace, allow_nan=False), str)
    assert trace["displayTimeUnit"] == "ms"
    before = 0.0
    for event in trace["traceEvents"]:
        assert isinstance(event["name"], str)
        assert event["ph"] in {"B", "E", "C", "M"}
        assert isinstance(event["ts"], int | float)
        assert all(isinstance(event[key], int) for key in ("pid", "tid"))
        if event["ph"] == "M":
            assert event["name"] in {"process_name", "process_sort_index", "thread_name"}
            continue
        assert event["ts"] >= before, "events come in order of time"
        before = event["ts"]
        if event["ph"] == "C":
            assert all(isinstance(value, int | float) for value in event["args"].values())


def test_phases_lie_in_their_request_and_no_two_requests_in_one_lane(exported):
    _, trace = exported
    lanes, found = defaultdict(list), slices(trace)
    assert {name for *_, name, _, _, depth in found if depth == 1} <= PHASES
    for pid, lane, name, start, stop, depth in found:
        if depth == 0:
            assert name.startswith("request ")
            lanes[pid, lane].append((start, stop))
    for spans in lanes.values():
        assert all(before[1] <= after[0] for before, after in zip(sorted(spans), sorted(spans)[1:], strict=False))


def test_it_tells_of_every_request_what_its_row_says(exported):
    runs, trace = exported
    found = slices(trace)
    for index, run in enumerate(runs):
        inside = run.requests[~run.requests["status"].isin(["rejected", "failed"])]
        mine = [entry for entry in found if entry[0] == 2 * index + 1]
        whole = {name: stop - start for _, _, name, start, stop, depth in mine if depth == 0}
        assert len(whole) == len(inside) < len(run.requests)
        done = inside[inside["status"] == "finished"]
        for row in done.itertuples():
            assert whole[f"request {row.request_id}"] == pytest.approx(1e6 * (row.finish_s - row.arrival_s), abs=0.01)
        away = sum(stop - start for _, _, name, start, stop, _ in mine if name in ("preempted", "swapped"))
        assert away == pytest.approx(1e6 * inside["preempted_s"].sum(), abs=1)


def test_preemptions_are_told_from_swaps(results):
    names = {name: {s[2] for s in slices(trace_of(runs_of(results / name)))} for name in ("compared", "swapped")}
    assert "preempted" in names["compared"]
    assert "swapped" not in names["compared"]
    assert "swapped" in names["swapped"]


def test_counters_sum_to_the_capacity(exported):
    runs, trace = exported
    for index, run in enumerate(runs):
        slots = [e["args"] for e in trace["traceEvents"] if e["name"] == "KV slots" and e["pid"] == 2 * index + 2]
        assert len(slots) == len(run.timeline) > 5
        for values in slots:
            assert tuple(values) == STATES
            assert sum(values.values()) == pytest.approx(run.row["capacity_tokens"], abs=0.01)


@st.composite
def lives(draw):
    """A request's row and the times when it was away, in order."""
    times = sorted(draw(st.lists(st.integers(0, 100), min_size=3, max_size=12)))
    arrival, scheduled, *inner, last = times
    ended, away = (
        draw(st.booleans()),
        [(a, b, draw(st.booleans())) for a, b in zip(inner[::2], inner[1::2], strict=False)],
    )
    if away and not ended and draw(st.booleans()):
        away[-1] = (away[-1][0], None, away[-1][2])
    first = (
        draw(st.sampled_from([NAN, *range(scheduled, last + 1)])) if not ended else draw(st.integers(scheduled, last))
    )
    row = SimpleNamespace(
        status="finished" if ended else "unfinished",
        arrival_s=arrival,
        first_scheduled_s=scheduled,
        first_token_s=first,
        finish_s=last if ended else NAN,
    )
    return row, away, last


@given(lives())
@settings(max_examples=300, deadline=None, derandomize=True, database=None)
def test_phases_tile_a_life_whatever_happens_in_it(life):
    row, away, end = life
    phases = phases_of(row, away, end)
    assert all(phase.start_s < phase.stop_s for phase in phases)
    assert all(one.stop_s == other.start_s for one, other in pairwise(phases))
    assert sum(phase.stop_s - phase.start_s for phase in phases) == end - row.arrival_s
    gone = sum((end if back is None else back) - start for start, back, _ in away)
    assert sum(p.stop_s - p.start_s for p in phases if p.name in ("preempted", "swapped")) == gone
    if row.first_token_s == row.first_token_s:
        assert all(p.start_s >= row.first_token_s for p in phases if p.name == "decode")
        assert all(p.stop_s <= row.first_token_s for p in phases if p.name == "prefill")


def test_who_was_turned_away_has_no_phases_and_who_waits_only_waits():
    turned = SimpleNamespace(status="rejected", arrival_s=1.0, first_scheduled_s=NAN, first_token_s=NAN, finish_s=NAN)
    waits = SimpleNamespace(status="unfinished", arrival_s=1.0, first_scheduled_s=NAN, first_token_s=NAN, finish_s=NAN)
    assert phases_of(turned, (), 9.0) == []
    assert phases_of(waits, (), 9.0) == [("queued", 1.0, 9.0)]


def test_a_name_in_gz_is_compressed(pagelab, results, strict_object):
    done = pagelab("export", results / "compared", "--to", "perfetto", "-o", "run.json.gz", "--json")
    assert done.code == 0
    assert strict_object(done.out)["num_runs"] == 2
    with gzip.open("run.json.gz") as file:
        assert len(json.load(file)["traceEvents"]) > 200


def test_older_results_that_do_not_say_when_are_refused(pagelab, results, tmp_path):
    import shutil

    old = tmp_path / "old"
    shutil.copytree(results / "compared", old)
    next(old.glob("cells/paged*/preemptions.parquet")).unlink()
    done = pagelab("export", old, "--to", "perfetto", "-o", "x.json")
    assert done.code == 2
    assert "no preemptions.parquet" in done.err
    assert pagelab("export", old, "--to", "perfetto", "-o", "x.json", "--cell", "orca").code == 0


def test_csv_is_every_request_of_every_run(pagelab, results):
    assert pagelab("export", results / "compared", "--to", "csv", "-o", "all.csv").code == 0
    frame, runs = pd.read_csv("all.csv"), runs_of(results / "compared")
    assert list(frame.columns[:4]) == ["cell", "allocator", "block_size", "seed"]
    for run in runs:
        mine = frame[frame["cell"] == run.folder.name].drop(columns=list(frame.columns[:4])).reset_index(drop=True)
        pd.testing.assert_frame_equal(mine, run.requests, check_dtype=False)
