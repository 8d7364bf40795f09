"""Step-time models: how long one step takes, in integer picoseconds.

Coefficients become integers once, at load, and the manifest records them; so k steps together take exactly what k steps
one by one do. Features depend on (new, context) token counts alone, never on a phase: a one-token last chunk of a
prompt costs what a decode at the same position costs.

S = sequences, T = new tokens, KV = tokens attended to (context + new, summed over sequences).
"""

from __future__ import annotations

import csv
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from engine.core.allocator import new_tuple

if TYPE_CHECKING:
    from engine.core.batch import Batch

PS_PER_S = 10**12


class Features(NamedTuple):
    """What a step's cost may depend on."""

    num_seqs: int
    num_new_tokens: int
    num_kv_tokens: int
    num_attended_pairs: int
    """Sum over new tokens of the tokens each attends to, itself included."""
    longest_chunk_tokens: int = 0
    """Context and new tokens of the longest sequence that has several new ones; 0 if none has."""


def features_of(batch: Batch) -> Features:
    """Of the batch's first step; O(chunks)."""
    new = batch.num_new_tokens
    pairs, longest = batch.attended()
    return new_tuple(Features, (batch.num_seqs, new, batch.num_context_tokens + new, pairs, longest))


def decode_features(num_seqs: int, num_kv_tokens: int) -> Features:
    """Of a step in which every sequence gets one token."""
    return Features(num_seqs, num_seqs, num_kv_tokens, num_kv_tokens)


class StepModel(Protocol):
    """Duration of a step from its features."""

    def duration(self, features: Features) -> int:
        """Picoseconds, at least 1."""
        ...

    def decode_line(self, num_seqs: int, num_kv_tokens: int) -> tuple[int, int | None]:
        """Of a run of pure decode steps: duration of the first, and by how much each step outlasts the one before
        (None if that is not constant)."""
        ...

    def coefficients(self) -> dict[str, int | str]:
        """The integers in use, for the manifest."""
        ...


def _ps(seconds: float) -> int:
    if not 0.0 <= seconds < 1e6:
        raise ValueError(f"a step-time coefficient must lie in [0, 1e6) s, got {seconds}")
    return round(seconds * PS_PER_S)


@dataclass(frozen=True, slots=True)
class LinearModel:
    """duration = base + per_seq x S + per_kv_token x KV + per_extra_token x (T - free_tokens)+.

    `linear:a,b,c,d` has (T - S): tokens beyond the one each sequence has anyway. `paper-13b` has a fixed number of
    tokens that the base already pays for.
    """

    base_ps: int
    per_seq_ps: int
    per_kv_token_ps: int
    per_extra_token_ps: int
    free_tokens: int | None = None
    """Tokens the base pays for; None: one a sequence."""

    def duration(self, features: Features) -> int:
        """Integer arithmetic throughout."""
        seqs, new, kv, _, _ = features
        extra = new - (seqs if self.free_tokens is None else self.free_tokens)
        cost = self.base_ps + self.per_seq_ps * seqs + self.per_kv_token_ps * kv
        return max(cost + self.per_extra_token_ps * extra if extra > 0 else cost, 1)

    def decode_line(self, num_seqs: int, num_kv_tokens: int) -> tuple[int, int | None]:
        """Each sequence attends to one token more from step to step."""
        first = self.base_ps + self.per_seq_ps * num_seqs + self.per_kv_token_ps * num_kv_tokens
        if self.free_tokens is not None and num_seqs > self.free_tokens:
            first += self.per_extra_token_ps * (num_seqs - self.free_tokens)
        return max(first, 1), self.per_kv_token_ps * num_seqs

    def coefficients(self) -> dict[str, int | str]:
        """All in picoseconds."""
        return {
            "kind": "linear",
            "base_ps": self.base_ps,
            "per_seq_ps": self.per_seq_ps,
            "per_kv_token_ps": self.per_kv_token_ps,
            "per_extra_token_ps": self.per_extra_token_ps,
            "free_tokens": "one a sequence" if self.free_tokens is None else self.free_tokens,
        }


PAPER_13B = LinearModel(
    base_ps=_ps(29.5e-3),
    per_seq_ps=_ps(0.05e-3),
    per_kv_token_ps=_ps(819_200 / 1.1e12),
    per_extra_token_ps=_ps(0.13e-3),
    free_tokens=61,
)
"""OPT-13B on an A100-40GB: 29.5 ms + 0.13 ms x max(0, T - 61) + KV bytes / 1.1 TB/s + 0.05 ms x S. Only the first
constant is fitted (to the paper's 30.42 batched requests at 2 req/s); the others are rough."""


def _larger(gigabytes: int, layers: int, kv_bytes: int, gpus: int, bytes_per_s: float) -> LinearModel:
    """PAPER_13B (26 GB of weights, 40 layers) scaled to an OPT on several A100s: weights, KV bytes and work per token
    by what each GPU holds, what 13B's base has beyond reading its weights by layers, and two all-reduces a layer."""
    beside_weights = (29.5e-3 - 26e9 / 1.1e12) / 40 + 2 * ALL_REDUCE_S * (gpus - 1)
    return LinearModel(
        base_ps=_ps(gigabytes * 1e9 / gpus / bytes_per_s + layers * beside_weights),
        per_seq_ps=PAPER_13B.per_seq_ps,
        per_kv_token_ps=_ps(kv_bytes / gpus / bytes_per_s),
        per_extra_token_ps=_ps(0.13e-3 * gigabytes / 26 / gpus),
        free_tokens=PAPER_13B.free_tokens,
    )


ALL_REDUCE_S = 35e-6
"""An all-reduce takes this times (GPUs - 1). The one constant of the larger models that is fitted: with it `paged`
sustains about 1.0 and 2.5 req/s, where the axes of Fig 12 (b) and (c) end."""
PAPER_MODELS = {
    "paper-13b": PAPER_13B,
    "paper-66b": _larger(132, 64, 2304 * 1024, 4, 1.1e12),
    "paper-175b": _larger(346, 96, 4608 * 1024, 8, 1.1e12 * 2039 / 1555),
}
"""By name. OPT-66B on four A100-40GB, OPT-175B on eight A100-80GB, whose memory is faster as 2,039 to 1,555 GB/s."""


@dataclass(frozen=True, slots=True)
class RooflineModel:
    """max(compute, memory) + overhead, from a model's and a GPU's specification.

    compute = (2 x parameters x T + flops_per_pair x pairs) / FLOP/s; memory = (weights + KV bytes) / bandwidth, each
    term per unit in whole picoseconds. A bound, not a measurement: efficiency belongs into the two rates.
    """

    num_parameters: int
    weight_bytes: int
    kv_bytes_per_token: int
    flops_per_pair: int
    flops_per_s: int
    bytes_per_s: int
    overhead_ps: int = _ps(0.5e-3)
    per_token_ps: int = field(init=False)
    per_pair_ps: int = field(init=False)
    weights_ps: int = field(init=False)
    per_kv_token_ps: int = field(init=False)

    def __post_init__(self) -> None:
        terms = {
            "per_token_ps": (2 * self.num_parameters, self.flops_per_s),
            "per_pair_ps": (self.flops_per_pair, self.flops_per_s),
            "weights_ps": (self.weight_bytes, self.bytes_per_s),
            "per_kv_token_ps": (self.kv_bytes_per_token, self.bytes_per_s),
        }
        for name, (amount, rate) in terms.items():
            object.__setattr__(self, name, -(-amount * PS_PER_S // rate))

    def _bounds(self, features: Features) -> tuple[int, int]:
        _, new, kv, pairs, _ = features
        compute = self.per_token_ps * new + self.per_pair_ps * pairs
        return compute, self.weights_ps + self.per_kv_token_ps * kv

    def duration(self, features: Features) -> int:
        """The later of the two bounds, plus the overhead."""
        return max(self._bounds(features)) + self.overhead_ps

    def decode_line(self, num_seqs: int, num_kv_tokens: int) -> tuple[int, int | None]:
        """Each sequence attends to one token more from step to step; no slope where the other bound may overtake."""
        compute, memory = self._bounds(decode_features(num_seqs, num_kv_tokens))
        per_token = self.per_kv_token_ps if memory >= compute else self.per_pair_ps
        lasting = per_token >= max(self.per_kv_token_ps, self.per_pair_ps)
        return max(compute, memory) + self.overhead_ps, per_token * num_seqs if lasting else None

    def coefficients(self) -> dict[str, int | str]:
        """The specification, and what became of it."""
        return {"kind": "roofline", **{name: getattr(self, name) for name in self.__dataclass_fields__}}


@dataclass(frozen=True, slots=True)
class TableModel:
    """Linear interpolation in T between measured knots, plus a time per attended token; no extrapolation upwards."""

    num_new_tokens: tuple[int, ...]
    duration_ps: tuple[int, ...]
    per_kv_token_ps: tuple[int, ...]
    source: str = "table"

    def _at(self, values: Sequence[int], tokens: int) -> int:
        knots = self.num_new_tokens
        if tokens > knots[-1]:
            raise ValueError(
                f"{self.source} has no entry for {tokens} new tokens: its last is {knots[-1]}; "
                "add rows or lower max_num_batched_tokens"
            )
        right = min(max(bisect_right(knots, tokens), 1), len(knots) - 1)
        low, high = knots[right - 1], knots[right]
        if tokens <= low:
            return values[right - 1]
        return values[right - 1] + (values[right] - values[right - 1]) * (tokens - low) // (high - low)

    def duration(self, features: Features) -> int:
        """Integer interpolation, rounded down."""
        tokens = features.num_new_tokens
        return max(
            self._at(self.duration_ps, tokens) + self._at(self.per_kv_token_ps, tokens) * features.num_kv_tokens, 1
        )

    def decode_line(self, num_seqs: int, num_kv_tokens: int) -> tuple[int, int | None]:
        """T is constant in a run."""
        first = self.duration(decode_features(num_seqs, num_kv_tokens))
        return first, self._at(self.per_kv_token_ps, num_seqs) * num_seqs

    def coefficients(self) -> dict[str, int | str]:
        """The knots."""
        return {
            "kind": "table",
            "source": self.source,
            "num_new_tokens": ",".join(map(str, self.num_new_tokens)),
            "duration_ps": ",".join(map(str, self.duration_ps)),
            "per_kv_token_ps": ",".join(map(str, self.per_kv_token_ps)),
        }


def read_table(path: Path) -> TableModel:
    """A CSV with columns num_new_tokens, duration_s, kv_s_per_token, at least two rows, ascending."""
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        wanted = {"num_new_tokens", "duration_s", "kv_s_per_token"}
        if not wanted <= set(reader.fieldnames or ()):
            raise ValueError(
                f"{path.name}:1: a step-time table needs columns {sorted(wanted)}, got {reader.fieldnames}"
            )
        rows: list[tuple[int, int, int]] = []
        for row in reader:
            try:
                rows.append(
                    (int(row["num_new_tokens"]), _ps(float(row["duration_s"])), _ps(float(row["kv_s_per_token"])))
                )
            except (TypeError, ValueError) as error:
                raise ValueError(f"{path.name}:{reader.line_num}: {error}") from error
    tokens = [row[0] for row in rows]
    if len(rows) < 2 or tokens != sorted(set(tokens)) or tokens[0] < 0:
        raise ValueError(f"{path.name}: num_new_tokens must ascend over at least two rows, got {tokens}")
    columns = [tuple(column) for column in zip(*rows, strict=True)]
    return TableModel(columns[0], columns[1], columns[2], path.name)


def parse_step_model(text: str, roofline: Callable[[], RooflineModel] | None = None) -> StepModel:
    """`linear:a,b,c,d` (seconds), one of PAPER_MODELS, `table:FILE`, `calibrated:FILE`, or `roofline` where model and
    GPU are known."""
    kind, _, rest = text.partition(":")
    if kind == "linear":
        try:
            values = [float(v) for v in rest.split(",")]
        except ValueError:
            values = []
        if len(values) != 4:
            raise ValueError(
                f"step model {text!r}: linear takes four numbers in seconds, "
                "linear:BASE,PER_SEQ,PER_KV_TOKEN,PER_EXTRA_TOKEN"
            )
        return LinearModel(*map(_ps, values))
    if text in PAPER_MODELS:
        return PAPER_MODELS[text]
    if kind == "table" and rest:
        return read_table(Path(rest))
    if kind == "calibrated":
        from sim.calibrated import parse_calibration

        return parse_calibration(text)
    if text == "roofline" and roofline is not None:
        return roofline()
    raise ValueError(
        f"unknown step model {text!r}: use linear:a,b,c,d, {', '.join(PAPER_MODELS)}, table:FILE, calibrated:FILE, "
        "recorded:FILE or roofline (with a model and a GPU)"
    )
