"""The shadow executor: blind to nothing that a scheduler or an allocator may get wrong with memory."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from engine.core.contiguous import ContiguousAllocator
from engine.core.decode_set import DecodeSet
from engine.core.paged import PagedAllocator
from engine.core.registry import make_allocator
from engine.core.scheduler import Scheduler
from engine.core.shadow import ContractViolation
from sim.shadow import PS_PER_MS, ShadowExecutor
from tests.sim.cases import STEP, Watched, differences, play, random_case
from tests.sim.planting import instead


def shadowed(seed: int, allocator: str) -> Watched:
    return play(random_case(seed, allocator), executor=ShadowExecutor)


def lost_tokens_count_as_computed(original: Callable[..., None], scheduler: Scheduler, *args: Any) -> None:
    original(scheduler, *args)
    request = args[1]
    if request.num_preemptions and request.known - request.computed > 1:
        request.computed += 1


def a_hit_counts_a_token_more(original: Callable[..., None], scheduler: Scheduler, *args: Any) -> None:
    original(scheduler, *args)
    request, hit = args[1:]
    if hit and request.known - request.computed > 1:
        request.computed += 1


def the_last_block_is_handed_out_again(original: Callable[..., Any], allocator: Any, request: Any) -> None:
    table = list(request.blocks)
    original(allocator, request)
    if allocator.pool.num_free > 1 and allocator._tables:
        next(iter(allocator._tables.values()))[-1] = table[-1]


FAULTS = {
    "lost tokens count as computed": (Scheduler, "_start", lost_tokens_count_as_computed, "paged"),
    "a hit counts a token more": (Scheduler, "_start", a_hit_counts_a_token_more, "paged"),
    "a freed block stays in a table": (PagedAllocator, "free", the_last_block_is_handed_out_again, "paged"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults_read_somebody_elses_token(name):
    owner, method, faulty, allocator = FAULTS[name]

    def noticed(seed: int) -> bool:
        try:
            shadowed(seed, allocator)
        except ContractViolation as error:
            return re.match(r"step \d+: Request\(", str(error)) is not None
        except (IndexError, KeyError, ValueError):  # the fault broke the run before a token was read
            return False
        return False

    with instead(owner, method, faulty):
        assert any(noticed(seed) for seed in range(150))


def test_moves_that_copy_nothing_are_noticed():
    def replay_chunks() -> None:
        for seed in range(150):
            case = random_case(seed)
            if "chunk" in case.spec.allocator:
                play(case, executor=ShadowExecutor)

    with instead(ContiguousAllocator, "_grow", without_copies), pytest.raises(ContractViolation, match="token 0"):
        replay_chunks()


def without_copies(original: Callable[..., Any], allocator: Any, *args: Any) -> Any:
    answer = original(allocator, *args)
    return answer._replace(copies=()) if getattr(answer, "copies", ()) else answer


def test_without_a_model_every_step_takes_a_millisecond():
    case = random_case(3, "orca-max")
    executor = ShadowExecutor(make_allocator("orca-max", case.spec.pool))
    assert executor.horizon(DecodeSet(), None, None) == 1
    watched = play(case, executor=lambda allocator, model, **options: ShadowExecutor(allocator))
    assert all(row.finish % PS_PER_MS == row.first_scheduled % PS_PER_MS for row in watched.run.rows if row.finish > 0)


def test_it_answers_as_the_cost_model_does():
    for seed in range(40):
        case = random_case(seed, "orca-oracle")
        assert not differences(play(case, STEP).seen, play(case, executor=ShadowExecutor).seen)
