"""Steps whose durations are in arithmetic progression: `first`, `first + slope`, `first + 2 slope`, ..."""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.core.batch import StepResult


def total(first: int, slope: int, num_steps: int) -> int:
    """Duration of `num_steps` steps in arithmetic progression."""
    return num_steps * first + slope * (num_steps * (num_steps - 1) // 2)


def steps_until(first: int, slope: int, duration: int, most: int) -> int:
    """Smallest number of steps, 1 to `most`, that together last `duration` or more; `most` if none does."""
    if most * first + slope * (most * (most - 1) // 2) < duration:
        return most
    return reach(first, slope, duration)[0]


def reach(first: int, slope: int, duration: int) -> tuple[int, int]:
    """Smallest number of steps that together last `duration` or more, and how long they last; there is one."""
    if first >= duration:
        return 1, first
    if not slope:
        steps = -(-duration // first)
        return steps, steps * first
    # slope/2 k^2 + (first - slope/2) k >= duration: solved in floating point, then put right in integers.
    half = first - slope / 2
    steps = int((sqrt(half * half + 2.0 * slope * duration) - half) / slope) or 1
    last = first + slope * (steps - 1)
    lasting = steps * (first + last) // 2
    while lasting < duration:
        steps, last = steps + 1, last + slope
        lasting += last
    while lasting - last >= duration:
        steps, lasting, last = steps - 1, lasting - last, last - slope
    return steps, lasting


def boundary_after(result: StepResult, duration: int) -> int:
    """Time from the start of a run to its first step boundary at or after `duration`."""
    if result.durations is None:
        steps = steps_until(result.first, result.slope, duration, result.num_steps)
        return total(result.first, result.slope, steps)
    elapsed = 0
    for step in result.durations:
        elapsed += step
        if elapsed >= duration:
            break
    return elapsed
