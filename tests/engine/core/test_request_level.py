"""Request-level batching: who runs together, until when, and what that takes of the allocator."""

from __future__ import annotations

import pytest

from engine.core.limits import SchedulerConfig
from engine.core.registry import PoolConfig, make_allocator
from engine.core.request import Request
from engine.core.request_level import RequestLevelScheduler, make_scheduler
from engine.core.scheduler import Scheduler
from engine.core.step import step
from sim.cost import LinearModel
from sim.cost_executor import CostExecutor

MAX_LEN = 32
WHOLE = "contiguous-max-first-fit"


def scheduler(max_num_seqs=3, *, blocks=64, allocator=WHOLE, **limits):
    config = SchedulerConfig(MAX_LEN, max_num_seqs=max_num_seqs, batching="request", **limits)
    return make_scheduler(config, make_allocator(allocator, PoolConfig(blocks, 4, MAX_LEN)))


def requests(*outputs, prompt=5):
    return [Request(i, prompt, MAX_LEN - prompt, oracle_output_tokens=count) for i, count in enumerate(outputs)]


def served(made, waiting):
    """Who ran and who left, step by step."""
    executor, log = CostExecutor(LinearModel(1_000, 0, 0, 0)), []
    for request in waiting:
        made.add(request)
    while made.running or made.waiting:
        done = step(made, executor)
        ran = {r.request_id for r in made.running} | {r.request_id for r in done.finished}
        log.append((ran, [r.request_id for r in done.finished], done.result.num_steps))
    return log


def test_the_earliest_run_together_and_all_leave_with_the_longest():
    log = served(scheduler(), requests(2, 9, 4, 3, 1))

    assert [finished for _, finished, _ in log if finished] == [[0, 1, 2], [3, 4]]
    first = [ran for ran, _, _ in log[: next(i for i, (_, finished, _) in enumerate(log) if finished) + 1]]
    assert all(ran == {0, 1, 2} for ran in first), "nobody joins a batch that runs"


def test_a_batch_takes_as_many_steps_as_its_longest_output():
    log = served(scheduler(), requests(2, 9, 4, 3, 1))

    assert sum(steps for _, _, steps in log) == 9 + 3


def test_who_is_done_computes_no_more_and_keeps_its_memory():
    made, executor = scheduler(), CostExecutor(LinearModel(1_000, 0, 0, 0))
    waiting = requests(2, 4, 6)
    for request in waiting:
        made.add(request)
    seen = []
    while made.running or made.waiting:
        seqs = step(made, executor).batch.num_seqs
        seen.append((seqs, made.allocator.stats().num_free))

    held = 64 - 3 * MAX_LEN // 4
    assert seen == [(3, held), (3, held), (2, held), (1, 64)]
    assert [request.num_output_tokens for request in waiting] == [2, 4, 6]
    made.allocator.check()


def test_a_batch_is_no_larger_than_its_reservations_let_in():
    made = scheduler(max_num_seqs=8, blocks=2 * MAX_LEN // 4 + 1)

    assert [finished for _, finished, _ in served(made, requests(3, 3, 3)) if finished] == [[0, 1], [2]]


def test_arrivals_matter_to_an_idle_server_only():
    made = scheduler()
    assert made.arrival_matters()

    made.add(requests(4)[0])
    made.schedule()

    assert not made.arrival_matters()
    assert not made.may_coast


@pytest.mark.parametrize("allocator", ["paged", "contiguous-chunk(8)-first-fit"])
def test_memory_that_grows_is_refused_with_what_to_use(allocator):
    with pytest.raises(ValueError, match=r"reserves all of a request's memory at admission \(orca-max"):
        scheduler(allocator=allocator)


def test_the_configuration_chooses_the_scheduler():
    pool = PoolConfig(64, 4, MAX_LEN)

    assert type(make_scheduler(SchedulerConfig(MAX_LEN), make_allocator("paged", pool))) is Scheduler
    assert type(scheduler()) is RequestLevelScheduler
    with pytest.raises(ValueError, match="unknown batching 'static'; known: iteration, request"):
        SchedulerConfig(MAX_LEN, batching="static")
