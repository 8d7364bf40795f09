"""A claim, what was measured for it, and the verdict.

Only a claim that was measured and lies within its tolerance passes. A number that something here was fitted to is
`calibrated`, not passed, while the fit holds; one that hangs on what is not modelled is `reported`, with the reason,
and not judged; one whose code does not exist is `not yet`; one that needs what this machine lacks (torch, a device, a
file that is not ours to ship) is `not here`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

Verdict = Literal["pass", "miss", "calibrated", "reported", "not yet", "not here"]


@dataclass(frozen=True, slots=True)
class Claim:
    """A published number and how close is close enough."""

    id: str
    """`experiment/subject/quantity`."""
    metric: str
    """What the number is, in words."""
    expected: float | None
    """None where no single number is published; only claims that are not measured, or just reported, may have none."""
    unit: str = ""
    tolerance: float = 0.0
    """Largest |got - expected| that passes, in `unit`."""
    source: str = ""
    """Where the number stands."""
    confidence: str = "A"
    """A read in the primary text, B quoted by a secondary text, C from memory, R recomputed from the public artifact or
    by hand."""
    deviations: tuple[str, ...] = ()
    """Keys of `DEVIATIONS`."""
    note: str = ""
    fitted: bool = False
    """Whether a constant of ours was fitted to this very number, so that meeting it proves nothing."""
    at_most: bool = False
    """Whether anything below `expected` passes, too: a cost that may not be higher."""
    why_reported: str = ""
    """Why the number is shown and not judged; empty for every claim that is."""


@dataclass(frozen=True, slots=True)
class Result:
    """A claim beside what came out."""

    claim: Claim
    got: float | None
    """Mean over seeds; None if nothing measures it yet."""
    sd: float | None = None
    """Sample standard deviation over seeds; None for a single value."""
    num_seeds: int = 0
    """0: no randomness."""
    note: str = ""
    """What belongs to this measurement, such as the time-weighted value."""
    lacking: str = ""
    """What this machine lacks to measure it; empty where it was measured, or where no code exists."""
    needs_file: bool = False
    """Whether what is lacking is a file that the caller can name."""

    @property
    def verdict(self) -> Verdict:
        """Judged without rounding; a bound is met when it is reached, up to the error of a float."""
        claim = self.claim
        if self.lacking:
            return "not here"
        if self.got is not None and claim.why_reported:
            return "reported"
        if self.got is None or claim.expected is None:
            return "not yet"
        slack = 1e-9 * max(1.0, abs(claim.expected))
        beyond = self.got - claim.expected if claim.at_most else abs(self.got - claim.expected)
        if not beyond <= claim.tolerance + slack:
            return "miss"
        return "calibrated" if claim.fitted else "pass"

    def to_dict(self) -> dict[str, Any]:
        """Plain values; `pass` is None for claims that are neither passed nor missed."""
        claim, verdict = self.claim, self.verdict
        return {
            "id": claim.id,
            "metric": claim.metric,
            "expected": claim.expected,
            "got": _finite(self.got),
            "sd": _finite(self.sd),
            "tolerance": claim.tolerance if claim.expected is not None else None,
            "at_most": claim.at_most,
            "pass": {"pass": True, "miss": False}.get(verdict),
            "verdict": verdict,
            "unit": claim.unit,
            "num_seeds": self.num_seeds,
            "source": claim.source,
            "confidence": claim.confidence,
            "deviations": list(claim.deviations),
            "note": "; ".join(t for t in (claim.note, claim.why_reported, self.note, self.lacking) if t),
        }


def _finite(value: float | None) -> float | None:
    """JSON has no other numbers; a claim that came out as one is a miss all the same."""
    return value if value is not None and math.isfinite(value) else None


def exact(claim: Claim, got: float, note: str = "") -> Result:
    """A value without randomness."""
    return Result(claim, got, note=note)


def over_seeds(claim: Claim, values: Sequence[float], note: str = "") -> Result:
    """Mean and sample standard deviation of one value a seed."""
    mean = math.fsum(values) / len(values)
    return Result(claim, mean, statistics.stdev(values) if len(values) > 1 else None, len(values), note)


def not_here(claim: Claim, lacking: str) -> Result:
    """A claim that could be measured, but not on this machine."""
    return Result(claim, None, lacking=f"not measured here: {lacking}")


def without_file(claim: Claim, needed: str) -> Result:
    """A claim about a file that nobody named."""
    return Result(claim, None, lacking=f"not measured: needs {needed}", needs_file=True)


def not_yet(claim: Claim) -> Result:
    """A claim that nothing here measures."""
    return Result(claim, None)
