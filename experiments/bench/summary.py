"""What the rows say: geometric means of a contestant's time over ours, case by case, and the best of a sweep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from experiments.bench.cases import LARGE_KV_BYTES, LONG_CONTEXT
from experiments.bench.rows import OURS, Row, geometric_mean, is_ours, shape_of
from experiments.bench.shapes import FP8

SIZES_OF_ITS_OWN = ("block-size", "table-order")
"""Cases that vary the block size themselves."""


class Standing(NamedTuple):
    """One contestant in one case."""

    case: str
    peer: str
    num_shapes: int
    mean_time_over_ours: float
    """Geometric mean; above 1, pagelab's kernel is faster."""
    least: float
    least_shape: str


def standings(rows: Sequence[Row]) -> list[Standing]:
    """Every contestant but ours that was measured right beside ours; block sizes apart where a case was asked for more
    than one."""
    sizes: dict[str, set[int]] = {}
    for row in rows:
        sizes.setdefault(row["case"], set()).add(row["block_size"])
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        case = row["case"]
        if case not in SIZES_OF_ITS_OWN and len(sizes[case]) > 1:
            case = f"{case} bs{row['block_size']}"
        if row["time_over_ours"] is not None and not is_ours(row) and not row["swept"]:
            groups.setdefault((case, row["peer"]), []).append(row)
    return [_standing(case, peer, group) for (case, peer), group in groups.items()]


def _standing(case: str, peer: str, group: Sequence[Row]) -> Standing:
    mean = geometric_mean(row["time_over_ours"] for row in group)
    least = min(group, key=lambda row: row["time_over_ours"])
    assert mean is not None
    return Standing(case, peer, len(group), mean, least["time_over_ours"], least["shape"])


class Overhead(NamedTuple):
    """Time of the paged kernel over another, geometric mean over the shapes where bandwidth decides."""

    against: str
    num_shapes: int
    paged_over: float


def overheads(rows: Sequence[Row]) -> list[Overhead]:
    """The three answers to what paging costs, apart: the order of the blocks, the table at equal bytes in flight and at
    its best against the twin's best, and the best contiguous kernel at hand. Decodes with a context of 4k or more and
    256 MB or more of K and V, block size as asked for."""
    wide = [row for row in rows if _is_wide(row)]
    found = [("identity table (order)", _over_identity(wide))]
    twins = {"pagelab-twin-equal": "twin, equal bytes in flight", "pagelab-twin": "twin, best against best"}
    for peer, words in twins.items():
        found.append(
            (words, [1 / row["time_over_ours"] for row in wide if row["case"] == "twin" and row["peer"] == peer])
        )
    found.append(("best contiguous kernel here", _over_best_contiguous(wide)))
    return [
        Overhead(words, len(values), mean) for words, values in found if (mean := geometric_mean(values)) is not None
    ]


def _is_wide(row: Row) -> bool:
    return bool(
        row["kernel"] == "decode"
        and row["status"] == "ok"
        and not row["swept"]
        and row["time_over_ours"] is not None
        and row["context_tokens"] >= LONG_CONTEXT
        and row["moved_bytes"] >= LARGE_KV_BYTES
    )


def _over_identity(rows: Sequence[Row]) -> list[float]:
    ours = [row for row in rows if row["case"] == "table-order" and row["peer"] == OURS]
    identity = {(row["shape"], row["block_size"]): row["median_s"] for row in ours if row["table"] == "identity"}
    return [
        row["median_s"] / identity[row["shape"], row["block_size"]]
        for row in ours
        if row["table"] == "shuffled" and (row["shape"], row["block_size"]) in identity
    ]


def _over_best_contiguous(rows: Sequence[Row]) -> list[float]:
    """The twin is no library: it stays out."""
    best: dict[Any, float] = {}
    for row in rows:
        if row["case"] == "twin" and row["contiguous"] and not row["peer"].startswith(OURS):
            key = shape_of(row)
            best[key] = min(best.get(key, row["time_over_ours"]), row["time_over_ours"])
    return [1 / ratio for ratio in best.values()]


class Best(NamedTuple):
    """The fastest configuration of a sweep for one shape."""

    case: str
    shape: str
    block_size: int
    peer: str
    config: str
    median_s: float
    heuristic_over_best: float | None
    """Above 1: the heuristic leaves this much on the table."""


def best_of_sweep(rows: Sequence[Row]) -> list[Best]:
    """One for each shape and contestant that was swept."""
    swept: dict[Any, list[Row]] = {}
    for row in rows:
        if row["swept"] and row["status"] == "ok":
            swept.setdefault((shape_of(row), row["peer"]), []).append(row)
    chosen = {
        (shape_of(row), row["peer"]): row["median_s"] for row in rows if not row["swept"] and row["status"] == "ok"
    }
    found = []
    for key, group in swept.items():
        best = min(group, key=lambda row: row["median_s"])
        ratio = chosen[key] / best["median_s"] if key in chosen else None
        found.append(
            Best(best["case"], best["shape"], best["block_size"], best["peer"], best["config"], best["median_s"], ratio)
        )
    return found


class Gain(NamedTuple):
    """A shape over a cache of 16 bits and over one of FP8."""

    shape: str
    block_size: int
    wide_s: float
    fp8_s: float

    @property
    def times_faster(self) -> float:
        """Above 1: FP8 is."""
        return self.wide_s / self.fp8_s


def fp8_gains(rows: Sequence[Row]) -> list[Gain]:
    """Of the case `fp8`, where both were measured."""
    times: dict[tuple[str, int], dict[bool, float]] = {}
    for row in rows:
        if row["case"] == "fp8" and row["status"] == "ok" and not row["swept"] and row["peer"] == OURS:
            times.setdefault((row["shape"], row["block_size"]), {})[row["dtype"] == FP8] = row["median_s"]
    return [Gain(*key, found[False], found[True]) for key, found in times.items() if len(found) == 2]


def wrong_rows(rows: Sequence[Row]) -> list[Row]:
    """Ours that were computed wrongly or raised: the session has failed."""
    return [
        row for row in rows if row["peer"].startswith((OURS, "backend/triton")) and row["status"] in ("wrong", "failed")
    ]
