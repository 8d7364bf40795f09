"""The property: stepping, skipping, skipping with extra cuts and the naive reference are one and the same replay."""

from __future__ import annotations

from random import Random
from typing import Any

from engine.core.progress import LivelockError
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


def check_case(case: Case) -> Watched | None:
    """AssertionError with what differs; None where the reference agrees that the case never ends."""
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
    skipped = play(case)
    for cut, watched in ((None, skipped), ("cuts", play(case, random_cuts(Random(case.seed))))):
        found = differences(step.seen, watched.seen)
        assert not found, told(case, f"skipping differs from stepping ({cut})", found)
    naive = naively(case, step.run.recorder.integrals.edges)
    found = differences(step.seen, naive)
    assert not found, told(case, "stepping differs from the naive reference", found)
    return skipped
