"""A step-time model from measured steps: `calibrated:FILE`, made by `pagelab calibrate`.

A decode step costs what its batch bucket cost at that many attended tokens; a step with chunks costs a base of its
bucket of tokens, and so much for what it attends to (see `rates_of`). On top comes what a server's steps take more than
the same steps alone. Between measured places the model interpolates; outside them it refuses.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from sim.cost import Features, decode_features

PREFIX: Final = "calibrated:"
EXTRAPOLATED: Final = ",extrapolate"
"""Behind the file's name: the last two places are followed beyond the grid instead of a refusal."""
SCHEMA_VERSION: Final = 2
RATES: Final = ("per_seq_ps", "per_kv_token_ps", "per_pair_ps", "per_longest_ps", "per_token_seq_ps")
BEYOND_FRAC: Final = 0.1
"""How far curves are followed beyond their last place: a pool that is full to the brim cannot be measured, as its
sequences have to grow meanwhile."""


class OutsideGrid(ValueError):  # noqa: N818
    """A step that nothing like it was measured for; the message says which, and what was."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Duration by attended tokens, of decode steps of one bucket of sequences."""

    num_seqs: int
    kv_tokens: tuple[int, ...]
    """Ascending, at least two."""
    duration_ps: tuple[int, ...]

    def __post_init__(self) -> None:
        _ascending("kv_tokens", self.kv_tokens, 2)
        if len(self.duration_ps) != len(self.kv_tokens) or min(self.duration_ps) < 1:
            raise ValueError(f"curve of {self.num_seqs} sequences: expected a positive duration for each of kv_tokens")

    def at(self, kv_tokens: int) -> int:
        """Integer interpolation, rounded down; below the first place its value, beyond the last the last slope."""
        places = self.kv_tokens
        if kv_tokens <= places[0]:
            return self.duration_ps[0]
        right = min(bisect_left(places, kv_tokens), len(places) - 1)
        left = right - 1
        rise = self.duration_ps[right] - self.duration_ps[left]
        return self.duration_ps[left] + rise * (kv_tokens - places[left]) // (places[right] - places[left])


@dataclass(frozen=True, slots=True)
class MixedCost:
    """Steps with chunks: base of the tokens' bucket + the rates times what `rates_of` has."""

    tokens: tuple[int, ...]
    """Buckets, or places between which is interpolated."""
    base_ps: tuple[int, ...]
    per_seq_ps: int
    per_kv_token_ps: int
    per_pair_ps: int
    per_longest_ps: int
    """A token of the longest chunk's context: one sequence's tiles follow each other, however idle the device is."""
    per_token_seq_ps: int
    """A new token and sequence: clocks are lower where much is computed between the steps of many sequences."""
    most_seqs: int
    most_kv_tokens: int
    most_pairs: int
    most_longest_tokens: int

    def __post_init__(self) -> None:
        _ascending("tokens", self.tokens, 1)
        if len(self.base_ps) != len(self.tokens):
            raise ValueError("mixed: expected a base for each of tokens")

    @property
    def rates_ps(self) -> tuple[int, int, int, int, int]:
        """In the order of `RATES`."""
        return self.per_seq_ps, self.per_kv_token_ps, self.per_pair_ps, self.per_longest_ps, self.per_token_seq_ps

    def base(self, tokens: int, padded: bool) -> int:
        """Of the bucket that holds so many tokens, or between the nearest places."""
        places = self.tokens
        right = min(bisect_left(places, tokens), len(places) - 1)
        if padded or right == 0:
            return self.base_ps[right]
        rise = self.base_ps[right] - self.base_ps[right - 1]
        return self.base_ps[right - 1] + rise * (tokens - places[right - 1]) // (places[right] - places[right - 1])


def rates_of(seqs: int, new: int, kv: int, pairs: int, longest: int) -> tuple[int, int, int, int, int]:
    """What the rates of `MixedCost` are multiplied by, in the order of its fields."""
    return seqs, kv, pairs, longest, new * seqs


@dataclass(frozen=True, slots=True)
class Overheads:
    """What steps take more on a server, where sequences come and go, than the same steps alone: the device waits for
    the host, rows are laid out anew, clocks are lower behind steps with chunks."""

    decode_ps: int = 0
    decode_per_seq_ps: int = 0
    turn_ps: int = 0
    """More, where other sequences decode than in the step before."""
    turn_per_seq_ps: int = 0
    mixed_ps: int = 0
    mixed_per_seq_ps: int = 0
    mixed_per_token_ps: int = 0

    def __post_init__(self) -> None:
        if min(getattr(self, name) for name in self.__dataclass_fields__) < 0:
            raise ValueError(f"overheads: none is below 0, got {self}")


@dataclass(frozen=True, slots=True)
class CalibratedModel:
    """See the module. `padded`: steps are padded to buckets, as CUDA graphs are."""

    curves: tuple[Curve, ...]
    """By ascending num_seqs."""
    mixed: MixedCost
    padded: bool
    overheads: Overheads = field(default_factory=Overheads)
    source: str = "calibration"
    extrapolate: bool = False
    about: Mapping[str, Any] = field(default_factory=dict)
    """What was measured: model, device, block size, kernel, hash of the rows."""

    def __post_init__(self) -> None:
        _ascending("num_seqs of the curves", [curve.num_seqs for curve in self.curves], 1)

    def duration(self, features: Features) -> int:
        """Picoseconds, at least 1. OutsideGrid beyond what was measured."""
        seqs, new, kv, pairs, longest = features
        mixed, more = self.mixed, self.overheads
        if new == seqs:
            return max(self._decode(seqs, kv) + more.decode_ps + more.decode_per_seq_ps * seqs, 1)
        if not self.extrapolate:
            self._inside("tokens in a step with chunks", new, mixed.tokens[-1])
            self._inside("sequences in a step with chunks", seqs, _beyond(mixed.most_seqs))
            self._inside("attended tokens in a step with chunks", kv, _beyond(mixed.most_kv_tokens))
            self._inside("attended pairs in a step with chunks", pairs, _beyond(mixed.most_pairs))
            self._inside("attended tokens of one chunk", longest, _beyond(mixed.most_longest_tokens))
        cost = (
            mixed.base(new, self.padded) + more.mixed_ps + more.mixed_per_seq_ps * seqs + more.mixed_per_token_ps * new
        )
        for rate, amount in zip(mixed.rates_ps, rates_of(*features), strict=True):
            cost += rate * amount
        return max(cost, 1)

    def turn(self, num_seqs: int) -> int:
        """Picoseconds that a decode step takes more if other sequences decoded before it."""
        return self.overheads.turn_ps + self.overheads.turn_per_seq_ps * num_seqs

    def decode_line(self, num_seqs: int, num_kv_tokens: int) -> tuple[int, int | None]:
        """No slope: the next place of the curve may lie within the run."""
        return self.duration(decode_features(num_seqs, num_kv_tokens)), None

    def _decode(self, seqs: int, kv: int) -> int:
        right = bisect_left(self.curves, seqs, key=lambda curve: curve.num_seqs)
        if right == len(self.curves):
            if not self.extrapolate:
                self._inside("sequences in a decode step", seqs, self.curves[-1].num_seqs)
            right -= 1
        curve = self.curves[right]
        if not self.extrapolate:
            self._inside(f"attended tokens in a decode step of {seqs} sequences", kv, _beyond(curve.kv_tokens[-1]))
        if self.padded or right == 0 or curve.num_seqs == seqs:
            return curve.at(kv)
        before = self.curves[right - 1]
        rise = curve.at(kv) - before.at(kv)
        return before.at(kv) + rise * (seqs - before.num_seqs) // (curve.num_seqs - before.num_seqs)

    def _inside(self, what: str, value: int, most: int) -> None:
        if value > most:
            raise OutsideGrid(
                f"{self.source}: {value:,} {what} lie outside the calibration, which has up to {most:,}: calibrate "
                f"with a larger grid, or say {PREFIX}FILE{EXTRAPOLATED}"
            )

    def coefficients(self) -> dict[str, int | str]:
        """The hash of the rows that it was fitted to names the model; its size, for a look."""
        return {
            "kind": "calibrated",
            "source": self.source,
            "rows_sha256": str(self.about.get("rows_sha256", "")),
            "num_curves": len(self.curves),
            "extrapolate": int(self.extrapolate),
            **dict(zip(RATES, self.mixed.rates_ps, strict=True)),
            **asdict(self.overheads),
        }

    def to_dict(self) -> dict[str, Any]:
        """What `read_calibration` reads."""
        mixed = {name: getattr(self.mixed, name) for name in MixedCost.__dataclass_fields__}
        curves = [{name: getattr(curve, name) for name in Curve.__dataclass_fields__} for curve in self.curves]
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": "calibrated",
            "about": dict(self.about),
            "padded": self.padded,
            "decode": curves,
            "mixed": mixed,
            "overheads": asdict(self.overheads),
        }


def _beyond(most: int) -> int:
    return int(most * (1 + BEYOND_FRAC))


def _ascending(name: str, values: Sequence[int], least: int) -> None:
    if len(values) < least or list(values) != sorted(set(values)) or (values and values[0] < 1):
        raise ValueError(f"{name}: expected at least {least} ascending numbers above 0, got {list(values)[:8]}")


def read_calibration(path: Path, *, extrapolate: bool = False) -> CalibratedModel:
    """A JSON file of `pagelab calibrate`. ValueError, with the file and the key, for anything else."""
    try:
        found = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{path}: there is no such calibration") from None
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: cannot be read as a calibration: {error}") from error
    if not isinstance(found, dict) or found.get("kind") != "calibrated":
        raise ValueError(f'{path}: not a calibration: "kind" is not "calibrated"; pagelab calibrate makes one')
    if found.get("schema_version") != SCHEMA_VERSION:
        raise ValueError(f"{path}: schema_version {found.get('schema_version')}, this version reads {SCHEMA_VERSION}")
    try:
        model = _from_dict(found)
    except (KeyError, TypeError, ValueError) as error:
        told = f"key {error} is missing" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"{path}: {told}") from error
    return replace(model, source=path.name, extrapolate=extrapolate)


def _from_dict(found: Mapping[str, Any]) -> CalibratedModel:
    curves = tuple(
        Curve(int(one["num_seqs"]), _ints(one["kv_tokens"]), _ints(one["duration_ps"])) for one in found["decode"]
    )
    mixed = found["mixed"]
    numbers = {name: int(mixed[name]) for name in MixedCost.__dataclass_fields__ if name not in ("tokens", "base_ps")}
    cost = MixedCost(_ints(mixed["tokens"]), _ints(mixed["base_ps"]), **numbers)
    more = Overheads(**{name: int(value) for name, value in found["overheads"].items()})
    return CalibratedModel(curves, cost, bool(found["padded"]), more, about=dict(found["about"]))


def _ints(values: Sequence[int]) -> tuple[int, ...]:
    return tuple(int(value) for value in values)


def parse_calibration(text: str) -> CalibratedModel:
    """`calibrated:FILE` or `calibrated:FILE,extrapolate`. ValueError."""
    rest = text.removeprefix(PREFIX)
    extrapolate = rest.endswith(EXTRAPOLATED)
    name = rest.removesuffix(EXTRAPOLATED)
    if not name:
        raise ValueError(f"step model {text!r}: name the file, {PREFIX}FILE")
    return read_calibration(Path(name), extrapolate=extrapolate)
