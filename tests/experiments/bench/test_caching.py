"""A tensor a request: events, means over time, and failures, on memories that can be counted by hand."""

import pytest

from experiments.bench.caching_allocator import SETTINGS, Event, ExactFit, in_own_process, replay
from experiments.bench.machine import why_no_device
from experiments.paper import caching_allocator
from experiments.paper.caching_allocator import Lifetimes, bytes_per_token, judge, lived, tables
from experiments.paper.runs import Lab

EVENTS = [
    Event(0, 60, 0),
    Event(1, 50, 10),  # does not fit beside the first
    Event(2, 40, 10),
    Event(0, 0, 20),
    Event(1, 0, 5),  # had nothing
    Event(2, 0, 15),
]


@pytest.fixture(scope="module")
def lab():
    return Lab(num_seeds=1, quick=True)


@pytest.fixture(scope="module")
def runs(lab):
    """Both simulated runs, each once."""
    return {name: lived(name, lab) for name in caching_allocator.ALLOCATORS}


def test_a_replay_counts_who_holds_what_for_how_long():
    ticks = iter(range(0, 10_000, 100))
    found = replay(EVENTS, ExactFit(100), lambda: next(ticks))
    assert (found["num_taken"], found["num_failed"]) == (2, 1)
    held_bytes = 10 * 60 + 10 * 60 + 20 * 100 + 5 * 40 + 15 * 40
    assert found["mean_allocated_bytes"] == pytest.approx(held_bytes / 60)
    assert found["mean_num_held"] == pytest.approx((10 + 10 + 20 * 2 + 5 + 15) / 60)
    assert (found["peak_allocated_bytes"], found["peak_num_held"]) == (100, 2)
    assert found["take_median_s"] == found["failed_median_s"] == found["give_mean_s"] == pytest.approx(100e-9)


def test_nothing_to_replay_is_no_error():
    found = replay([], ExactFit(100))
    assert (found["num_taken"], found["mean_num_held"], found["take_median_s"]) == (0, 0.0, None)


@pytest.mark.parametrize("name", ["orca-oracle", "paged"])
def test_lives_begin_and_end_in_turn_and_fit_the_pool_that_they_are_from(runs, name):
    run = runs[name]
    held: dict[int, int] = {}
    peak = 0
    for request, num_bytes, after_ps in run.events:
        assert after_ps >= 0
        if num_bytes:
            assert request not in held
            held[request] = num_bytes
        else:
            del held[request]
        peak = max(peak, sum(held.values()))
    pool = 984 * 16 * bytes_per_token()
    assert (peak <= pool) is (name == "orca-oracle")  # the paged pool holds only what is computed
    assert run.mean_running > 5
    assert len(run.times_ns["admit"]) > 100


def test_a_preempted_request_gives_its_memory_back_and_comes_again(runs):
    assert Lifetimes(1).horizon(None, None, None) == 1
    takes = [event.request for event in runs["paged"].events if event.num_bytes]
    assert len(takes) > len(set(takes))


def test_claims_and_tables_stand_on_the_replays(lab, runs, monkeypatch):
    monkeypatch.setattr(caching_allocator, "lacking", lambda: "")
    monkeypatch.setattr(caching_allocator, "lived", lambda name, lab: runs[name])
    asked = []

    def counted(events, limit, setting):
        asked.append(setting)
        return replay(events, ExactFit(limit // 2 if setting == "default" else limit))

    monkeypatch.setattr(caching_allocator, "in_own_process", counted)
    results = {result.claim.id: result for result in judge(lab)}
    default, expandable = (results[f"caching-allocator/{name}/held"] for name in ("default", "expandable-segments"))
    assert default.verdict == expandable.verdict == "pass"
    assert 0 < default.got < expandable.got < 65
    assert "allocations failed" in default.note
    bytes_table, times_table = tables(lab)
    assert len(bytes_table.rows) == 2 * (len(SETTINGS) + 1)
    assert {row[0] for row in times_table.rows} >= {"paged (block ids)", "torch, default"}
    assert asked == ["default", "expandable segments"] * 2  # once for claims and tables together


def test_without_a_device_it_is_skipped_and_says_so(lab):
    if not why_no_device():
        pytest.skip("there is one")
    assert {result.verdict for result in judge(lab)} == {"not here"}
    assert "skipped: no device" in judge(lab)[0].lacking
    assert tables(lab) == []
    with pytest.raises(RuntimeError, match="the replay through the caching allocator"):
        in_own_process(EVENTS, 1 << 30, "default")


@pytest.mark.gpu
def test_on_a_device_tensors_come_and_go():
    if why_no_device():
        pytest.skip("no device")
    events = [Event(index, 64 << 20, 1) for index in range(12)] + [Event(index, 0, 1) for index in range(12)]
    found = in_own_process(events, 512 << 20, "default")
    assert 1 <= found["num_taken"] <= 8
    assert found["num_failed"] == 12 - found["num_taken"]
    assert found["peak_allocated_bytes"] <= found["peak_reserved_bytes"] <= 512 << 20
    assert found["num_ooms"] >= found["num_failed"]
