"""The property: stepping, skipping, skipping with extra cuts and the naive reference are one and the same replay."""

from __future__ import annotations

from random import Random
from typing import Any

from engine.core.progress import LivelockError
from sim.shadow import ShadowExecutor
from tests.sim.block_scan import Flows, scanning
from tests.sim.cases import STEP, Case, Watched, differences, play, random_cuts
from tests.sim.naive import naively


def told(case: Case, what: str, found: dict[str, tuple[Any, Any]]) -> str:
    """The seed and the first difference of each kind."""
    lines = [f"seed {case.seed}: {what}", str(case.spec)]
    for name, (left, right) in found.items():
        pairs = list(zip(left, right, strict=False)) if isinstance(left, list) else [(left, right)]
        first = next((index for index, pair in enumerate(pairs) if pair[0] != pair[1]), len(pairs))
        lines.append(f"{name}[{first}]: {pairs[first : first + 1] or (len(left), len(right))}")
    return "\n".join(lines)


def stepped(case: Case) -> Watched | None:
    """The case step by step, with all its own checks; None where it never ends, however it is played."""
    try:
        step = play(case, STEP)
    except LivelockError:
        for cut in (None, random_cuts(Random(case.seed))):
            try:
                play(case, cut)
            except LivelockError:
                continue
            raise AssertionError(f"seed {case.seed}: stepping never ends, skipping does") from None
        return None
    failed = [check for check in step.run.checks if not check.holds]
    assert not failed, (case.seed, failed)
    return step


def check_skipping(case: Case, step: Watched) -> Watched:
    """Whether runs of steps, cut anywhere, are the same replay; the one that was cut nowhere."""
    skipped = play(case)
    for cut, watched in ((None, skipped), ("cuts", play(case, random_cuts(Random(case.seed))))):
        found = differences(step.seen, watched.seen)
        assert not found, told(case, f"skipping differs from stepping ({cut})", found)
    return skipped


def check_case(case: Case) -> Watched | None:
    """AssertionError with what differs; None where the reference agrees that the case never ends."""
    step = stepped(case)
    if step is None:
        return None
    skipped = check_skipping(case, step)
    check_naively(case, step)
    return skipped


def check_naively(case: Case, step: Watched) -> None:
    """Whether the reference replays the same."""
    naive = naively(case, step.run.recorder.integrals.edges)
    found = differences(step.seen, naive)
    assert not found, told(case, "stepping differs from the naive reference", found)


def check_shared(case: Case) -> tuple[Watched, Flows] | None:
    """The same of groups, swaps and victims, with memory scanned block by block and every token read back by a shadow;
    the naive reference knows no groups. AssertionError with what differs; None where the case never ends."""
    with scanning() as flows:
        step = stepped(case)
    if step is None:
        return None
    step.run.allocator.check()
    skipped = check_skipping(case, step)
    if case.spec.num_samples == 1 and not case.spec.beam_search:
        check_naively(case, step)
    found = differences(step.seen, play(case, executor=ShadowExecutor).seen)
    assert not found, told(case, "the shadow differs from stepping", found)
    again = sum(row.num_recomputed_tokens for row in step.run.rows)
    assert flows.met["recomputed"] or not again, (
        f"seed {case.seed}: {again} tokens of nobody but swapped computed again"
    )
    if case.spec.end_s is None:
        assert flows.swapped_out == flows.swapped_in, (
            f"seed {case.seed}: out {flows.swapped_out}, in {flows.swapped_in}"
        )
        free = getattr(step.run.allocator, "num_free_host_blocks", 0)
        assert free == case.spec.pool.host_blocks, f"seed {case.seed}: {free} host blocks are free in the end"
    return skipped, flows
