"""The property: stepping, skipping, skipping with extra cuts and the naive reference are one and the same replay."""

from __future__ import annotations

from random import Random
from typing import Any

from sim import integrals as at
from sim.replay import Livelock
from tests.sim.cases import STEP, Case, Watched, differences, play, random_cuts
from tests.sim.naive import naively

PER_STEP = (*range(at.WIDTH, 2 * at.WIDTH), at.STEPS, at.COMPUTED)


def blanked(case: Case, seen: dict[str, Any], *, all_of_it: bool) -> dict[str, Any]:
    """Without what `test_known_faults` shows to be wrong; as it is if `all_of_it`."""
    if all_of_it:
        return seen
    pool = case.spec.pool
    rows = [list(row) for row in seen["segments"]]
    columns = []
    if pool.freed_to == "back" and pool.enable_caching:
        columns += [at.SPARE, at.WIDTH + at.SPARE]
    if f"chunk({pool.block_size})" in case.spec.allocator:
        columns += [at.INTERNAL, at.WIDTH + at.INTERNAL, at.LARGEST, at.WIDTH + at.LARGEST]
    for row in rows:
        for column in columns:
            row[column] = 0
    # A step that begins at an edge after an idle time is booked before the edge: compare sums over all segments.
    sums = [sum(row[column] for row in rows) for column in PER_STEP]
    for row in rows:
        for column in PER_STEP:
            row[column] = 0
    return seen | {"segments": rows, "per step": sums}


def told(case: Case, what: str, found: dict[str, tuple[Any, Any]]) -> str:
    """The seed and the first difference of each kind."""
    lines = [f"seed {case.seed}: {what}", str(case.spec)]
    for name, (left, right) in found.items():
        pairs = list(zip(left, right, strict=False)) if isinstance(left, list) else [(left, right)]
        first = next((index for index, pair in enumerate(pairs) if pair[0] != pair[1]), len(pairs))
        lines.append(f"{name}[{first}]: {pairs[first : first + 1] or (len(left), len(right))}")
    return "\n".join(lines)


def misses_commits(case: Case, played: Watched) -> bool:
    """Whether the case may meet the fault of `test_known_faults`: in a step that is short of memory, decoding requests
    whose outputs others may share do not commit the blocks that they fill."""
    pool = case.spec.pool
    return case.tokens is not None and pool.enable_caching and any(row.num_preemptions for row in played.run.rows)


def check_case(case: Case, *, all_of_it: bool = False) -> Watched | None:
    """AssertionError with what differs; None where the reference agrees that the case never ends."""
    try:
        step = play(case, STEP)
    except Livelock:
        for cut in (None, random_cuts(Random(case.seed))):
            try:
                play(case, cut)
            except Livelock:
                continue
            raise AssertionError(f"seed {case.seed}: stepping never ends, skipping does") from None
        return None
    if misses_commits(case, step) and not all_of_it:
        return step
    failed = [check for check in step.run.checks if not check.holds]
    assert not failed, (case.seed, failed)
    expected = blanked(case, step.seen, all_of_it=all_of_it)
    skipped = play(case)
    for cut, watched in ((None, skipped), ("cuts", play(case, random_cuts(Random(case.seed))))):
        found = differences(expected, blanked(case, watched.seen, all_of_it=all_of_it))
        assert not found, told(case, f"skipping differs from stepping ({cut})", found)
    naive = naively(case, step.run.recorder.integrals.edges)
    found = differences(expected, blanked(case, naive, all_of_it=all_of_it))
    assert not found, told(case, "stepping differs from the naive reference", found)
    return skipped
