"""Groups and swaps as a scheduler serves them, step by step: all members or none, and who gives way."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from engine.core.group import in_group
from engine.core.limits import SchedulerConfig
from engine.core.registry import PoolConfig, make_allocator
from engine.core.request import Request, Status
from engine.core.scheduler import Scheduler
from sim.ancestry import Ancestry
from sim.shadow import ShadowExecutor

LIMITS = SchedulerConfig(max_model_len=64, max_num_batched_tokens=64)
SWAPPING = replace(LIMITS, preemption="swap")


class Seen(NamedTuple):
    """What one step did; sequences are (request, sample)."""

    preempted: list[tuple[int, int, bool]]
    admitted: list[int]
    chunks: list[tuple[int, int, int, int]]
    forks: list[tuple[int, int, int, int]]
    swapped_in: list[tuple[int, int]]
    num_to_host: int
    num_to_device: int
    num_copies: int
    num_swapped: int
    """Groups in host memory after the step was decided."""
    decoding: list[tuple[int, int]]


def seen_in(batch: Any, scheduler: Scheduler) -> Seen:
    return Seen(
        [(p.request.request_id, p.request.sample, p.swapped) for p in batch.preempted],
        [a.request.request_id for a in batch.admitted],
        [(c.request.request_id, c.request.sample, c.num_context_tokens, c.num_new_tokens) for c in batch.chunks],
        [(f.parent.request_id, f.parent.sample, f.child.sample, f.num_tokens) for f in batch.forks],
        [(s.request.request_id, s.request.sample) for s in batch.swapped_in],
        len(batch.to_host),
        len(batch.to_device),
        len(batch.copies),
        len(scheduler.swapped),
        [(r.request_id, r.sample) for r in batch.decodes],
    )


def serve(requests: list[Request], pool: PoolConfig, limits: SchedulerConfig = LIMITS) -> tuple[list[Seen], Scheduler]:
    """All of them at once, every token read back in every step."""
    allocator = make_allocator("paged", pool)
    scheduler = Scheduler(limits, allocator)
    executor = ShadowExecutor(allocator, ancestry=Ancestry(0))
    for request in requests:
        assert not scheduler.refuses_forever(request)
        scheduler.add(request)
    steps = []
    while scheduler.has_work:
        batch = scheduler.schedule()
        steps.append(seen_in(batch, scheduler))
        scheduler.update(batch, executor.submit(batch))
        allocator.check()
        assert len(steps) < 1000
    assert allocator.stats().num_free == pool.capacity_blocks
    for request in requests:
        members = [request] if request.group is None else request.group.members
        assert {member.status for member in members} == {Status.FINISHED}
        assert {member.num_output_tokens for member in members} == {request.num_stop_tokens}
    return steps, scheduler


def pool_of(capacity: int, host_blocks: int = 0, **switches: Any) -> PoolConfig:
    return PoolConfig(capacity, 4, 64, host_blocks=host_blocks, **switches)


def crowd() -> list[Request]:
    """One sequence and a group of two, in a pool of eight blocks: at its tenth token the group is in the way."""
    return [Request(0, 8, 20), in_group(Request(1, 6, 10), 2)]


def preemptions(steps: list[Seen]) -> list[Seen]:
    return [step for step in steps if step.preempted]


def test_a_group_is_forked_once_when_its_prompt_is_computed():
    steps, _ = serve([in_group(Request(0, 10, 6), 3)], pool_of(20))
    assert steps[0].chunks == [(0, 0, 0, 10)]
    assert steps[1].forks == [(0, 0, 1, 10), (0, 0, 2, 10)]
    assert [step.decoding for step in steps[1:]] == [[(0, 0), (0, 1), (0, 2)]] * 5
    assert [step.num_copies for step in steps] == [0, 2, 0, 0, 0, 0]
    assert not any(step.forks or step.chunks for step in steps[2:])


@pytest.mark.parametrize("chunk", [1, 3, 4, 64])
def test_prompts_in_chunks_are_forked_behind_the_last_one(chunk):
    limits = replace(LIMITS, max_num_batched_tokens=max(chunk, 3), long_prefill_token_threshold=0)
    steps, _ = serve([in_group(Request(0, 10, 6), 3)], pool_of(20), limits)
    forked = next(index for index, step in enumerate(steps) if step.forks)
    assert sum(new for step in steps[:forked] for *_, new in step.chunks) == 10
    assert not any(step.chunks for step in steps[forked:])


def test_members_are_preempted_together_and_put_together_again():
    """Recompute: the first one computes the prompt and its output, then the others theirs behind the shared blocks of
    the prompt; then they go on in the same step."""
    steps, scheduler = serve(crowd(), pool_of(8, enable_caching=False))
    lost = preemptions(steps)
    assert lost
    for step in lost:
        assert step.preempted == [(1, 1, False), (1, 0, False)]
    first = steps.index(lost[0])
    assert not any(request == 1 for request, _ in steps[first].decoding)
    again = steps[first + 1 :]
    back = next(step for step in again if step.admitted == [1])
    (request, sample, context, new), *_ = back.chunks
    assert (request, sample, context) == (1, 0, 0)
    gathered = next(step for step in again if step.forks)
    assert gathered.forks == [(1, 0, 1, 4)], "the full block of the prompt of six tokens"
    assert gathered.chunks == [(1, 1, 4, new - 4)]
    after = again[again.index(gathered) + 1]
    assert {(1, 0), (1, 1)} <= set(after.decoding)
    assert scheduler.num_swaps_refused == 0


def test_a_preempted_group_waits_until_all_of_it_fits():
    """Eight blocks: at ten tokens each the members need five, one of them shared, and the other sequence four or more
    until it ends. Without the gate the group would come and go."""
    steps, _ = serve(crowd(), pool_of(8, enable_caching=False))
    assert len(preemptions(steps)) == 1
    open_gate = replace(LIMITS, full_sequence_gate=False)
    assert len(preemptions(serve(crowd(), pool_of(8, enable_caching=False), open_gate)[0])) > 1


def test_members_are_swapped_out_together_and_come_back_together():
    steps, scheduler = serve(crowd(), pool_of(8, 16), SWAPPING)
    lost = preemptions(steps)
    assert lost
    for step in lost:
        assert step.preempted == [(1, 1, True), (1, 0, True)]
        assert step.num_to_host > 0
    back = [step for step in steps if step.swapped_in]
    assert [step.swapped_in for step in back] == [[(1, 0), (1, 1)]] * len(lost)
    assert all({(1, 0), (1, 1)} <= set(step.decoding) for step in back)
    assert [step.chunks for step in steps if step.chunks] == [[(0, 0, 0, 8), (1, 0, 0, 6)]], "nothing is recomputed"
    assert scheduler.num_swaps_refused == 0


def test_what_members_share_goes_to_the_host_once():
    steps, _ = serve(crowd(), pool_of(8, 16), SWAPPING)
    (lost,) = preemptions(steps)
    computed = 6 + sum((1, 0) in step.decoding for step in steps[: steps.index(lost)])
    own = -(-computed // 4) - 1
    assert lost.num_to_host == 1 + 2 * own


def test_nobody_is_admitted_while_somebody_is_swapped_out():
    later = [Request(number, 1, 2) for number in range(2, 6)]
    limits = replace(SWAPPING, max_num_seqs=4)
    steps, _ = serve([*crowd(), *later], pool_of(8, 16), limits)
    swapped = [step for step in steps if step.num_swapped]
    assert swapped
    assert not any(step.admitted for step in swapped)
    last = steps.index(swapped[-1])
    assert any(step.admitted for step in steps[last + 1 :])


def test_where_host_memory_is_full_a_group_is_recomputed_and_that_is_counted():
    steps, scheduler = serve(crowd(), pool_of(8, 2), SWAPPING)
    lost = preemptions(steps)
    assert lost
    assert all(step.preempted == [(1, 1, False), (1, 0, False)] for step in lost)
    decoded = [(1, 0) in steps[steps.index(step) - 1].decoding for step in lost]
    assert scheduler.num_swaps_refused == sum(decoded), "a group that is put together again is not asked for"
    assert any(decoded)
    assert not any(step.num_to_host for step in steps)


def test_auto_swaps_groups_and_recomputes_sequences():
    auto = replace(SWAPPING, preemption="auto")
    steps, _ = serve(crowd(), pool_of(8, 16), auto)
    assert {swapped for step in steps for *_, swapped in step.preempted} == {True}
    singles, _ = serve([Request(0, 8, 20), Request(1, 6, 20)], pool_of(8, 16), auto)
    assert {swapped for step in singles for *_, swapped in step.preempted} == {False}


def test_a_swapped_sequence_goes_on_where_it_was():
    steps, _ = serve([Request(0, 8, 20), Request(1, 6, 20)], pool_of(8, 16), SWAPPING)
    assert [step.swapped_in for step in steps if step.swapped_in] == [[(1, 0)]]
    assert sum(new for step in steps for *_, new in step.chunks) == 14


def test_a_group_that_is_wider_than_the_batch_or_larger_than_the_pool_is_refused_for_ever():
    scheduler = Scheduler(replace(LIMITS, max_num_seqs=3), make_allocator("paged", pool_of(8)))
    assert not scheduler.refuses_forever(in_group(Request(0, 6, 7), 3))
    assert scheduler.refuses_forever(in_group(Request(0, 6, 7), 4)), "four rows of three"
    assert not scheduler.refuses_forever(in_group(Request(0, 6, 7), 2))
    assert scheduler.refuses_forever(in_group(Request(0, 6, 11), 3)), "1 + 3 x 3 blocks of 8"
    narrow = Scheduler(replace(LIMITS, max_num_batched_tokens=2), make_allocator("paged", pool_of(8)))
    assert narrow.refuses_forever(in_group(Request(0, 6, 7), 3)), "three tokens a step, two allowed"


def running(limits: SchedulerConfig, requests: list[Request]) -> Scheduler:
    """All of them, one step after their prompts."""
    scheduler = Scheduler(limits, make_allocator("paged", pool_of(40, 40)))
    executor = ShadowExecutor(scheduler.allocator)
    for request in requests:
        scheduler.add(request)
    for _ in range(2):
        batch = scheduler.schedule()
        scheduler.update(batch, executor.submit(batch))
    return scheduler


@pytest.mark.parametrize(
    "victim,policy,expected",
    [
        (None, "fcfs", 3),
        ("last", "priority", 1),
        (None, "priority", 0),
        ("priority", "fcfs", 0),
        ("least-computed", "fcfs", 2),
    ],
)
def test_victims_are_chosen_by_rule(victim, policy, expected):
    """0: least urgent. 1: last in order of priorities. 2: least computed. 3: last to arrive."""
    requests = [
        Request(0, 9, 20, arrival=0, priority=5),
        Request(1, 8, 20, arrival=1, priority=5),
        Request(2, 4, 20, arrival=2, priority=1),
        Request(3, 6, 20, arrival=3, priority=1),
    ]
    if policy == "fcfs" or victim == "priority" or victim is None:
        requests[1].priority = 2
    scheduler = running(replace(LIMITS, policy=policy, victim=victim), requests)
    assert scheduler._victim().request_id == expected


def test_a_group_has_computed_what_its_members_have():
    requests = [in_group(Request(0, 4, 20), 3), Request(1, 12, 20)]
    scheduler = running(replace(LIMITS, victim="least-computed"), requests)
    assert scheduler._victim().request_id == 1, "13 tokens against three times five"


def test_among_equals_the_last_one_gives_way():
    requests = [Request(number, 4, 20) for number in range(3)]
    scheduler = running(replace(LIMITS, victim="least-computed"), requests)
    assert scheduler._victim().request_id == 2


def test_beams_die_in_their_places():
    """Each step of a search ends with a selection: who dies starts again with all that the survivor has computed."""
    steps, _ = serve([in_group(Request(0, 6, 12), 4, beam=True)], pool_of(40))
    selections = [step for step in steps[2:] if step.forks]
    assert selections
    for number, step in enumerate(steps[2:], 7):
        parents = {parent for _, parent, _, _ in step.forks}
        children = {child for _, _, child, _ in step.forks}
        assert not parents & children, "who lives on keeps its place"
        assert all(tokens == number for *_, tokens in step.forks)
        assert step.decoding == [(0, sample) for sample in range(4)]


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_searches_are_preempted_whole_and_go_on(preemption):
    requests = [Request(0, 8, 40), Request(1, 8, 40), in_group(Request(2, 6, 12), 3, beam=True)]
    steps, _ = serve(requests, pool_of(13, 30), replace(LIMITS, preemption=preemption))
    lost = [found for step in steps if (found := [one for one in step.preempted if one[0] == 2])]
    assert lost
    for members in lost:
        assert [sample for _, sample, _ in members] == [2, 1, 0]
        assert {swapped for *_, swapped in members} == {preemption == "swap"}


def test_swapping_needs_host_memory():
    with pytest.raises(ValueError, match=r"kv\.host_blocks is 0"):
        Scheduler(SWAPPING, make_allocator("paged", pool_of(8)))


def test_a_group_has_at_least_one_sequence():
    with pytest.raises(ValueError, match="at least one sequence, got 0"):
        in_group(Request(0, 4, 4), 0)
    assert in_group(Request(0, 4, 4), 1).group is None


def test_an_allocator_that_cannot_fork_serves_no_groups():
    class Alone:
        """Everything but forks."""

        def __init__(self, allocator: Any) -> None:
            self._allocator = allocator

        def __getattr__(self, name: str) -> Any:
            if name == "fork":
                raise AttributeError(name)
            return getattr(self._allocator, name)

    scheduler = Scheduler(LIMITS, Alone(make_allocator("paged", pool_of(8))))
    scheduler.add(Request(0, 4, 4))
    with pytest.raises(ValueError, match=r"is a group, and Alone has no fork\(\)"):
        scheduler.add(in_group(Request(1, 4, 4), 2))
