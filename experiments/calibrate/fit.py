"""Rows of measured steps into a step-time model, and how far it is off on runs that it has not seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from experiments.calibrate.rows import FOLDS, PS, StepRow, rows_sha256, split
from sim.calibrated import CalibratedModel, Curve, MixedCost, OutsideGrid, Overheads, rates_of

Floats = npt.NDArray[np.float64]
TRIMMED: Final = 0.05
"""Share of the steps of a place that are left out at either end before their mean is taken."""
ROUNDS: Final = 4
"""Fits one after the other, each weighted by what the one before has modelled."""
CLOSER_FRAC: Final = 0.01
"""Places of a curve are at least this share of its last one apart; steps between them are one place."""


KINDS: Final = ("decode", "mixed", "decode, served", "mixed, served")


class Judged(NamedTuple):
    """One step, as modelled and as measured."""

    kind: str
    run: str
    modelled_s: float | None
    """None: outside the grid."""
    measured_s: float


class Misfit(NamedTuple):
    """Of the model on one kind of steps of one table."""

    kind: str
    num_runs: int
    num_steps: int
    mean_signed_frac: float
    """(sum of modelled - sum of measured) / sum of measured: what a run's clock is off by."""
    mape_frac: float
    """Mean of |modelled - measured| / measured."""
    num_outside: int = 0
    """Steps outside the grid of the model, which are not judged."""


def fit(
    rows: Sequence[StepRow],
    decode_buckets: Sequence[int],
    token_buckets: Sequence[int],
    *,
    padded: bool,
    about: Mapping[str, Any] | None = None,
) -> CalibratedModel:
    """ValueError where rows of either kind are lacking. `about` is kept, with the hash of the rows beside it."""
    churned = [row for row in rows if row.churns]
    decodes, mixed = [row for row in rows if row.decodes and not row.churns], [row for row in rows if not row.decodes]
    if not decodes or not mixed:
        raise ValueError(
            f"a calibration needs decode steps and steps with chunks, got {len(decodes)} and {len(mixed)}: measure both"
        )
    curves = tuple(_curve(bucket, group) for bucket, group in _grouped(decodes, decode_buckets, padded).items())
    kept = {**(about or {}), "rows_sha256": rows_sha256(rows), "num_steps": len(rows)}
    bare = CalibratedModel(curves, _mixed(mixed, token_buckets, padded), padded, about=kept)
    return replace(bare, overheads=overheads(bare, churned))


def _grouped(rows: Sequence[StepRow], buckets: Sequence[int], padded: bool) -> dict[int, list[StepRow]]:
    """Decode steps by bucket, or without padding by about their number of sequences, ascending."""
    most = max(row.num_seqs for row in rows)
    places = list(buckets) if padded else _spaced(sorted({row.num_seqs for row in rows}))
    if most > places[-1]:
        raise ValueError(f"a decode step of {most} sequences fits no bucket: the largest is {places[-1]}")
    groups: dict[int, list[StepRow]] = {}
    for row in rows:
        groups.setdefault(_bucket(row.num_seqs, places), []).append(row)
    return {place: groups[place] for place in sorted(groups)}


def _curve(bucket: int, rows: Sequence[StepRow]) -> Curve:
    """Means over steps at nearly the same sum of tokens."""
    ordered = sorted(rows, key=lambda row: row.num_kv_tokens)
    least = max(ordered[-1].num_kv_tokens * CLOSER_FRAC, 1)
    places: list[list[StepRow]] = []
    for row in ordered:
        if places and row.num_kv_tokens - places[-1][0].num_kv_tokens < least:
            places[-1].append(row)
        else:
            places.append([row])
    points = {
        round(float(np.mean([row.num_kv_tokens for row in place]))): _mean_s([row.device_s for row in place])
        for place in places
    }
    if len(points) < 2:
        only = next(iter(points))
        raise ValueError(
            f"decode steps of {bucket} sequences were measured at one sum of tokens ({only:,}): add others"
        )
    last = ordered[-1].num_kv_tokens
    kv, seconds = list(points), list(points.values())
    kv[-1] = last  # the grid reaches as far as was measured
    return Curve(bucket, tuple(kv), tuple(max(round(value * PS), 1) for value in seconds))


def _mean_s(values: Sequence[float]) -> float:
    """Without the smallest and the largest."""
    ordered = sorted(values)
    cut = int(len(ordered) * TRIMMED)
    return float(np.mean(ordered[cut : len(ordered) - cut]))


def _mixed(rows: Sequence[StepRow], buckets: Sequence[int], padded: bool) -> MixedCost:
    """Least squares of relative errors; rates are not below zero."""
    places = _token_places(rows, buckets, padded)
    base = _base_columns([row.num_new_tokens for row in rows], places, padded)
    rates = np.array([rates_of(*row.features) for row in rows], np.float64)
    seconds = np.array([row.device_s for row in rows])
    found = _not_negative(np.hstack([base, rates]), seconds, 1 / seconds, free=base.shape[1])
    bases, rest = found[: len(places)], found[len(places) :]
    most = (max(row[field] for row in rows) for field in (1, 3, 4, 5))
    whole = (max(round(float(value) * PS), 0) for value in rest)
    return MixedCost(tuple(places), tuple(max(round(float(b) * PS), 1) for b in bases), *whole, *most)


def _token_places(rows: Sequence[StepRow], buckets: Sequence[int], padded: bool) -> list[int]:
    """Buckets that were measured; without padding about the measured numbers of tokens, each a tenth from the last."""
    tokens = sorted({row.num_new_tokens for row in rows})
    if padded:
        if tokens[-1] > buckets[-1]:
            raise ValueError(f"a step of {tokens[-1]} tokens fits no bucket: the largest is {buckets[-1]}")
        return sorted({_bucket(count, buckets) for count in tokens})
    return _spaced(tokens)


def _bucket(count: int, buckets: Sequence[int]) -> int:
    """The smallest that holds so many."""
    return next(size for size in buckets if size >= count)


def _spaced(values: Sequence[int]) -> list[int]:
    """Some of the ascending values: each at least a tenth above the one before, the last one among them."""
    places = [values[-1]]
    for value in reversed(values[:-1]):
        if value * 1.1 <= places[0]:
            places.insert(0, value)
    return places


def _base_columns(tokens: Sequence[int], places: Sequence[int], padded: bool) -> Floats:
    """Weights of the places for each number of tokens: its bucket's, or of the two neighbours."""
    columns = np.zeros((len(tokens), len(places)))
    for row, count in enumerate(tokens):
        right = min(int(np.searchsorted(places, count)), len(places) - 1)
        if padded or right == 0:
            columns[row, right] = 1.0
        else:
            share = (count - places[right - 1]) / (places[right] - places[right - 1])
            columns[row, right - 1 : right + 1] = 1.0 - share, share
    return columns


def _unbiased(columns: Floats, seconds: Floats, known: Floats) -> Floats:
    """Coefficients, none below zero, of what steps of `seconds` take beside what is `known` of them.

    Squares are weighted by what is modelled, not by what was measured: with weights of the measured times the steps
    that happen to be short would count more, and the sum of all, which is a run's clock, would come out too small.
    """
    weights = 1 / np.sqrt(seconds)
    for _ in range(ROUNDS):
        found = _not_negative(columns, seconds - known, weights, free=0)
        weights = 1 / np.sqrt(np.maximum(known + columns @ found, seconds.min() / 2))
    return found


def _not_negative(columns: Floats, wanted: Floats, weights: Floats, *, free: int) -> Floats:
    """Coefficients of the least weighted squares; those behind the first `free` are set to zero where they would be
    negative, the most negative first."""
    scaled = columns * weights[:, None]
    alive = np.ones(columns.shape[1], bool)
    while True:
        found = np.zeros(columns.shape[1])
        sizes = np.where(alive, np.linalg.norm(scaled, axis=0), 0.0)
        used = np.flatnonzero(sizes)
        solved, *_ = np.linalg.lstsq(scaled[:, used] / sizes[used], wanted * weights, rcond=None)
        found[used] = solved / sizes[used]
        worst = int(np.argmin(found[free:])) + free
        if found[worst] >= 0:
            return found
        alive[worst] = False


def overheads(bare: CalibratedModel, rows: Sequence[StepRow]) -> Overheads:
    """From runs in which sequences come and go: what their steps take more than the grid says of the device. None of
    them: nothing, as where only durations are known."""
    decodes, mixed = [row for row in rows if row.decodes], [row for row in rows if not row.decodes]
    found: dict[str, int] = {}
    if decodes:
        columns = [[1, row.num_seqs, row.rows_changed, row.rows_changed * row.num_seqs] for row in decodes]
        found |= _more(("decode_ps", "decode_per_seq_ps", "turn_ps", "turn_per_seq_ps"), columns, bare, decodes)
    if mixed:
        columns = [[1, row.num_seqs, row.num_new_tokens] for row in mixed]
        found |= _more(("mixed_ps", "mixed_per_seq_ps", "mixed_per_token_ps"), columns, bare, mixed)
    return Overheads(**found)


def _more(
    names: Sequence[str], columns: Sequence[Sequence[int]], bare: CalibratedModel, rows: Sequence[StepRow]
) -> dict[str, int]:
    """Least squares (see `_unbiased`), none below zero; picoseconds."""
    wide = replace(bare, extrapolate=True)
    alone = np.array([modelled_s(wide, row) for row in rows])
    found = _unbiased(np.array(columns, np.float64), np.array([row.duration_s for row in rows]), alone)
    return {name: round(float(value) * PS) for name, value in zip(names, found, strict=True)}


def misfits(model: CalibratedModel, rows: Sequence[StepRow]) -> list[Misfit]:
    """Decode steps and steps with chunks apart. On the grid of the device's time, as nobody waits there as in a run;
    where sequences come and go of whole steps."""
    return _summed_up(_judged(model, rows))


def _judged(model: CalibratedModel, rows: Sequence[StepRow]) -> list[Judged]:
    """A step each."""
    device = replace(model, overheads=Overheads())
    found = []
    for row in rows:
        measured, one = (row.duration_s, model) if row.churns else (row.device_s, device)
        try:
            modelled = modelled_s(one, row)
        except OutsideGrid:
            modelled = None
        found.append(Judged(KINDS[(not row.decodes) + 2 * row.churns], row.run, modelled, measured))
    return found


def _summed_up(judged: Sequence[Judged]) -> list[Misfit]:
    """By kind, those of which there are steps inside the grid."""
    found = []
    for kind in KINDS:
        ones = [one for one in judged if one.kind == kind]
        inside = [one for one in ones if one.modelled_s is not None]
        if inside:
            found.append(_misfit(kind, inside, len(ones) - len(inside)))
    return found


def _misfit(kind: str, judged: Sequence[Judged], num_outside: int) -> Misfit:
    measured, modelled = np.array([one.measured_s for one in judged]), np.array([one.modelled_s for one in judged])
    signed = float((modelled.sum() - measured.sum()) / measured.sum())
    relative = float(np.mean(np.abs(modelled - measured) / measured))
    return Misfit(kind, len({one.run for one in judged}), len(judged), signed, relative, num_outside)


def modelled_s(model: CalibratedModel, row: StepRow) -> float:
    """What the model says of a step, the change of rows before it included."""
    turn = model.turn(row.num_seqs) if row.decodes and row.rows_changed else 0
    return (model.duration(row.features) + turn) / PS


def held_out(
    rows: Sequence[StepRow], decode_buckets: Sequence[int], token_buckets: Sequence[int], *, padded: bool
) -> list[Misfit]:
    """On every run, by a model that has not seen it: a fifth is held out at a time. Such a model does not reach runs at
    the ends of the grid."""
    judged: list[Judged] = []
    for fold in range(FOLDS):
        kept, held = split(rows, fold)
        model = fit(kept, decode_buckets, token_buckets, padded=padded)
        judged += _judged(model, held)
    return _summed_up(judged)
