"""What the laws of sharing are worth: each rule of groups, swaps and victims, broken on purpose, is noticed within a
bounded number of random cases. The table is fault -> what is said."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest import mock

import pytest

from engine.core.batch import Batch
from engine.core.forking import Groups
from engine.core.paged import PagedAllocator
from engine.core.paged_state import PagedState
from engine.core.running import Running
from engine.core.scheduler import Scheduler
from engine.core.victims import Victims
from sim.last_blocks import LastBlocks
from sim.pool_state import PoolState
from tests.sim.cases import random_shared_case
from tests.sim.check import check_shared
from tests.sim.planting import instead, with_line

MAX_CASES = 400


def a_group_is_preempted_in_part() -> AbstractContextManager[Any]:
    return with_line(Victims, "_preempt", "members = members_of(victim)", "members = (victim,)")


def a_group_takes_a_step_in_part() -> AbstractContextManager[Any]:
    return with_line(Running, "_serve", "step.budget < _num_in_step(step, group)", "False")


@contextmanager
def hurrying(condition: str, pending: bool) -> Iterator[None]:
    """Runs of steps although the scheduler should look at each; `condition` is what is left of its reasons."""
    may_run_on = property(lambda s: not (s._catching_up or (s._groups.pending and pending)))
    may_coast = property(lambda s: not (s.waiting or s._catching_up or s.swapped or (s._groups.pending and pending)))
    careless = with_line(Scheduler, "schedule", "if groups.pending or decodes.num_beams:", condition)
    with careless, mock.patch.multiple(Scheduler, may_run_on=may_run_on, may_coast=may_coast):
        yield


def steps_are_skipped_while_a_search_selects() -> AbstractContextManager[Any]:
    return hurrying("if groups.pending:", True)


def steps_are_skipped_while_a_fork_is_pending() -> AbstractContextManager[Any]:
    return hurrying("if decodes.num_beams:", False)


def steps_are_skipped_while_a_tail_is_shared() -> AbstractContextManager[Any]:
    return with_line(PagedAllocator, "free_run", "if self._mixes or self._writes.open:", "if self._mixes:")


def a_coast_passes_over_those_in_host_memory() -> AbstractContextManager[Any]:
    careless = property(lambda s: not (s.waiting or s._catching_up or s._groups.pending or s.decodes.num_beams))
    return mock.patch.object(Scheduler, "may_coast", careless)


def somebody_is_admitted_before_those_in_host_memory() -> AbstractContextManager[Any]:
    line = "if self.waiting and not step.preempted and not self.swapped:"
    return with_line(Scheduler, "schedule", line, "if self.waiting and not step.preempted:")


def a_victim_is_copied_all_the_same() -> AbstractContextManager[Any]:
    return with_line(Victims, "_preempt", "step.moves.pop(member, None)", "step.moves.get(member)")


def a_victim_keeps_what_it_was_given_in_its_last_step() -> AbstractContextManager[Any]:
    line = "step.budget += step.decodes.pop(member, 0) + step.chunks.pop(member, 0)"
    return with_line(Victims, "_preempt", line, "step.budget += step.decodes.get(member, 0)")


def who_was_swapped_starts_again() -> AbstractContextManager[Any]:
    return with_line(Victims, "_preempt", "member.computed if swap else 0", "0")


def who_was_recomputed_goes_on() -> AbstractContextManager[Any]:
    return with_line(Victims, "_preempt", "member.computed if swap else 0", "member.computed")


def a_group_is_swapped_before_it_is_forked() -> AbstractContextManager[Any]:
    return with_line(Victims, "_keeps", "group is not None and not", "False and not")


def a_swap_in_takes_no_budget() -> AbstractContextManager[Any]:
    return with_line(Scheduler, "_swap_in", "step.budget -= sum(counts)", "pass")


def members_go_on_before_all_of_them_are_there() -> AbstractContextManager[Any]:
    line = "if all(member.computed == member.known - 1 for member in members):"
    return with_line(Groups, "_gathered", line, "if True:")


def a_dead_beam_keeps_its_content() -> AbstractContextManager[Any]:
    return with_line(Groups, "select", "_branch(survivor, child, num_tokens, result)", "pass")


def copies_are_left_out_of_the_batch() -> AbstractContextManager[Any]:
    def make(original: Callable[..., None], batch: Batch, *args: Any, **kw: Any) -> None:
        original(batch, *args, **kw)
        batch.copies = ()

    return instead(Batch, "__init__", make)


def an_empty_tail_is_counted_after_its_owner_left() -> AbstractContextManager[Any]:
    return instead(LastBlocks, "drop", lambda original, blocks, request: blocks._ends.pop(request, None))


def shared_slots_count_once_more() -> AbstractContextManager[Any]:
    return with_line(PagedState, "stats", "shared -= writes", "shared -= 0 * writes")


def memory_of_a_group_counts_as_its_leaders() -> AbstractContextManager[Any]:
    return instead(PoolState, "take", lambda original, pool, request: request.sample or original(pool, request))


SKIPPING = "skipping differs"
NAIVE = "naive reference"
SHADOW = r"step \d+: |reads"
SCAN = "block by block"
RULE = "was preempted, and its group|came before"
CRASH = "crash"
ANY = ".*"

KILLERS: dict[Callable[[], AbstractContextManager[Any]], str] = {
    a_group_is_preempted_in_part: f"{RULE}|{CRASH}",
    a_group_takes_a_step_in_part: ANY,
    steps_are_skipped_while_a_search_selects: f"{SKIPPING}|{CRASH}",
    steps_are_skipped_while_a_fork_is_pending: f"{SKIPPING}|{SCAN}|{CRASH}",
    steps_are_skipped_while_a_tail_is_shared: f"{SKIPPING}|{SCAN}|{SHADOW}",
    a_coast_passes_over_those_in_host_memory: f"{SKIPPING}|{CRASH}",
    somebody_is_admitted_before_those_in_host_memory: RULE,
    a_victim_is_copied_all_the_same: f"{SHADOW}|{CRASH}",
    a_victim_keeps_what_it_was_given_in_its_last_step: ANY,
    who_was_swapped_starts_again: "computed again",
    who_was_recomputed_goes_on: ANY,
    a_group_is_swapped_before_it_is_forked: ANY,
    a_swap_in_takes_no_budget: f"budget|{NAIVE}",
    members_go_on_before_all_of_them_are_there: ANY,
    a_dead_beam_keeps_its_content: f"{SHADOW}|own check",
    copies_are_left_out_of_the_batch: SHADOW,
    an_empty_tail_is_counted_after_its_owner_left: SCAN,
    shared_slots_count_once_more: SCAN,
    memory_of_a_group_counts_as_its_leaders: SCAN,
}


def noticed(fault: Callable[[], AbstractContextManager[Any]]) -> str:
    """What is said of the first case that notices."""
    with fault():
        for seed in range(MAX_CASES):
            try:
                check_shared(random_shared_case(seed))
            except AssertionError as error:
                return str(error) or CRASH
            except (IndexError, KeyError, ValueError, TypeError) as error:
                return f"{CRASH}: {error!r}"
    raise LookupError(f"{MAX_CASES} random cases did not notice")


@pytest.mark.parametrize("fault", KILLERS, ids=lambda fault: fault.__name__)
def test_each_planted_fault_is_noticed(fault):
    said = noticed(fault)
    assert re.search(KILLERS[fault], said), said
