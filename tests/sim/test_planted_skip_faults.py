"""What the property is worth: each rule of event skipping, broken on purpose, is noticed within a bounded number of
random cases. The table is fault -> who notices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from random import Random
from typing import Any
from unittest import mock

import pytest

from engine.core.batch import Batch
from engine.core.limits import SchedulerConfig
from engine.core.paged import PagedAllocator
from engine.core.registry import PoolConfig
from engine.core.scheduler import Scheduler
from sim import cost_executor
from sim.coast import Coast
from sim.coast_log import CoastLog
from sim.integrals import Integrals
from sim.recorder import Recorder
from sim.rows import Progress
from sim.sessions import NEVER, Arrivals
from sim.simulate import RunSpec
from tests.sim.cases import Case, random_case, random_model
from tests.sim.check import check_case
from tests.sim.planting import instead, with_line
from workloads import Trace

MAX_CASES = 600


# Skipping -------------------------------------------------------------------------------------------------------------


@contextmanager
def a_last_chunk_of_one_token_is_a_steady_step() -> Iterator[None]:
    def make(original: Callable[..., None], batch: Batch, *args: Any, **kw: Any) -> None:
        original(batch, *args, **kw)
        shaped = all(chunk.completes and chunk.num_new_tokens == 1 for chunk in batch.chunks)
        batch.steady = shaped and not (batch.admitted or batch.preempted or batch.grants) and batch.num_seqs > 0

    careless = with_line(Scheduler, "schedule", "batch.steady and not self._catching_up", "batch.steady")
    with instead(Batch, "__init__", make), careless, mock.patch.object(Scheduler, "may_run_on", True):
        yield


def arrivals_matter_only_to_an_empty_queue() -> AbstractContextManager[Any]:
    return mock.patch.object(
        Scheduler, "arrival_matters", lambda s: len(s.running) < s.config.max_num_seqs and not s.waiting
    )


def arrivals_do_not_matter_to_an_empty_queue() -> AbstractContextManager[Any]:
    return instead(Scheduler, "arrival_matters", lambda original, s: bool(s.waiting) and original(s))


def a_run_goes_on_where_it_ends_at_an_arrival() -> AbstractContextManager[Any]:
    return instead(
        cost_executor,
        "steps_until",
        lambda original, first, slope, duration, most: original(first, slope, duration + 1, most),
    )


@contextmanager
def an_arrival_at_a_boundary_is_queued_at_the_next_one() -> Iterator[None]:
    draining = [False]

    def late(original: Callable[..., None], arrivals: Arrivals, now: int) -> None:
        original(arrivals, now - 1 if arrivals._scheduler.running and not draining[0] else now)

    def drain(original: Callable[..., None], arrivals: Arrivals) -> None:
        draining[0] = True
        original(arrivals)
        draining[0] = False

    with instead(Arrivals, "enqueue_until", late), instead(Arrivals, "drain", drain):
        yield


def a_coast_goes_on_where_it_ends_at_an_arrival() -> AbstractContextManager[Any]:
    return instead(Coast, "run", lambda original, coast, now, until, end: original(coast, now, until + 1, end))


def a_coast_goes_on_where_an_end_brings_a_turn() -> AbstractContextManager[Any]:
    def unsaid(original: Callable[..., int], *args: Any) -> int:
        original(*args)
        return NEVER

    return instead(Arrivals, "ended", unsaid)


def a_turn_comes_a_picosecond_late() -> AbstractContextManager[Any]:
    return instead(
        Arrivals, "_release", lambda original, arrivals, request, time: original(arrivals, request, time + 1)
    )


def who_is_sent_while_a_step_runs_takes_no_room() -> AbstractContextManager[Any]:
    return with_line(Arrivals, "ended", "self.enqueue_until(now - 1)", "pass")


def turns_of_the_rejected_are_sent_at_once() -> AbstractContextManager[Any]:
    lost = "turn is not None and turn.parent not in self._seen"
    return with_line(Arrivals, "_pull", f"lost = {lost}", f"lost, turn = False, None if {lost} else turn")


def a_coast_goes_on_while_somebody_catches_up() -> AbstractContextManager[Any]:
    return mock.patch.object(Scheduler, "may_coast", property(lambda scheduler: not scheduler.waiting))


def the_first_step_of_a_coast_holds_what_its_last_one_does() -> AbstractContextManager[Any]:
    return with_line(CoastLog, "_worked_out", "referenced - later", "referenced")


def every_block_of_a_coast_was_empty_before() -> AbstractContextManager[Any]:
    return with_line(CoastLog, "_worked_out", "in_first + later - evicted", "in_first + later")


def one_step_too_many_before_a_shortage() -> AbstractContextManager[Any]:
    def longer(original: Callable[..., int], *args: Any) -> int:
        return min(original(*args) + 1, args[2])

    return instead(PagedAllocator, "free_run", longer)


def the_heads_missing_block_is_not_watched() -> AbstractContextManager[Any]:
    return instead(
        PagedAllocator, "free_run", lambda original, pool, members, limit, _=None: original(pool, members, limit)
    )


def the_run_stops_after_the_commit() -> AbstractContextManager[Any]:
    def late(original: Callable[..., int], *args: Any) -> int:
        return min(original(*args) + 1, original(*args[:3]))

    return instead(PagedAllocator, "free_run", late)


# Accounting -----------------------------------------------------------------------------------------------------------


def a_preempted_token_is_not_counted() -> AbstractContextManager[Any]:
    def short(original: Callable[..., None], progress: Progress, computed: int) -> None:
        original(progress, max(computed - 1, progress.start))

    return instead(Progress, "recount", short)


@contextmanager
def recomputed_tokens_are_emitted_again() -> Iterator[None]:
    again = [0]

    def elapsed(original: Callable[..., None], recorder: Recorder, start: int, batch: Batch, *args: Any) -> None:
        again[0] = sum(a.request.num_output_tokens for a in batch.admitted if a.resumed)
        original(recorder, start, batch, *args)
        again[0] = 0

    def add(
        original: Callable[..., None], sums: Integrals, start: int, duration: int, state: Any, *counts: int
    ) -> None:
        emitted, computed = counts
        original(sums, start, duration, state, emitted + again[0], computed)

    with instead(Recorder, "record", elapsed), instead(Integrals, "add_step", add):
        yield


SKIPPING = "skipping differs from stepping"
NAIVE = "stepping differs from the naive reference"
CHECKS = "a law of sim.reconcile"
CRASH = "the allocator cannot do it"

KILLERS: dict[Callable[[], AbstractContextManager[Any]], tuple[str, ...]] = {
    a_last_chunk_of_one_token_is_a_steady_step: (SKIPPING, CHECKS),
    arrivals_matter_only_to_an_empty_queue: (SKIPPING,),
    arrivals_do_not_matter_to_an_empty_queue: (SKIPPING,),
    a_run_goes_on_where_it_ends_at_an_arrival: (SKIPPING,),
    an_arrival_at_a_boundary_is_queued_at_the_next_one: (NAIVE, SKIPPING),
    a_coast_goes_on_where_it_ends_at_an_arrival: (SKIPPING,),
    a_coast_goes_on_where_an_end_brings_a_turn: (SKIPPING,),
    a_turn_comes_a_picosecond_late: (NAIVE,),
    who_is_sent_while_a_step_runs_takes_no_room: (SKIPPING, NAIVE),
    turns_of_the_rejected_are_sent_at_once: (NAIVE,),
    a_coast_goes_on_while_somebody_catches_up: (CRASH, SKIPPING),
    the_first_step_of_a_coast_holds_what_its_last_one_does: (SKIPPING, CHECKS),
    every_block_of_a_coast_was_empty_before: (SKIPPING, CHECKS),
    one_step_too_many_before_a_shortage: (CRASH, SKIPPING),
    the_heads_missing_block_is_not_watched: (SKIPPING,),
    the_run_stops_after_the_commit: (SKIPPING,),
    a_preempted_token_is_not_counted: (CHECKS, NAIVE),
    recomputed_tokens_are_emitted_again: (CHECKS, NAIVE),
}


def commit_case(seed: int) -> Case:
    """Two or three requests of one text in a pool that is a block short: what one samples, the blocked one needs."""
    rng = Random(seed)
    size, count = rng.choice((2, 3, 4, 8)), rng.choice((2, 3))
    prompts = [rng.randint(1, 6), *(rng.randint(8, 40) for _ in range(count - 1))]
    outputs = [rng.randint(10, 40), *(rng.randint(1, 6) for _ in range(count - 1))]
    totals = [p + n for p, n in zip(prompts, outputs, strict=True)]
    pool = PoolConfig(-(-max(totals) // size) + rng.choice((0, 0, 1, 2)), size, max_model_len=80)
    text = [rng.randrange(2) for _ in range(80)]
    stamps = [0, *sorted(rng.randint(1, 30) * 1_000 for _ in range(count - 1))]
    limits = SchedulerConfig(80, full_sequence_gate=rng.random() < 0.7)
    trace = Trace.build(stamps, prompts, outputs, limit_tokens=outputs)
    return Case(seed, RunSpec("paged", pool, limits), trace, random_model(rng), [text[:total] for total in totals])


def priority_case(seed: int) -> Case:
    """Any case, but by priority."""
    case = random_case(seed)
    case.spec = replace(case.spec, limits=replace(case.spec.limits, policy="priority", max_num_seqs=128))
    return case


CASES: dict[Callable[[], AbstractContextManager[Any]], Callable[[int], Case]] = {
    arrivals_matter_only_to_an_empty_queue: priority_case,
    the_heads_missing_block_is_not_watched: commit_case,
    the_run_stops_after_the_commit: commit_case,
}
"""Faults that need cases of their own kind to be met often."""


def noticed(fault: Callable[[], AbstractContextManager[Any]]) -> tuple[int, str]:
    """Number of the first case that notices, and who did."""
    make = CASES.get(fault, random_case)
    with fault():
        for seed in range(MAX_CASES):
            case = make(seed)
            try:
                check_case(case)
            except AssertionError as error:
                told = str(error)
                return seed + 1, next((by for by in (SKIPPING, NAIVE) if by in told), CHECKS)
            except (IndexError, KeyError, ValueError):
                return seed + 1, CRASH
    raise AssertionError(f"{MAX_CASES} random cases did not notice")


@pytest.mark.parametrize("fault", KILLERS, ids=lambda fault: fault.__name__)
def test_each_planted_fault_is_noticed(fault):
    _, by = noticed(fault)
    assert by in KILLERS[fault]


@pytest.mark.parametrize("make", [commit_case, priority_case, random_case], ids=lambda make: make.__name__)
def test_nothing_is_noticed_without_a_fault(make):
    for seed in range(40):
        check_case(make(seed))
