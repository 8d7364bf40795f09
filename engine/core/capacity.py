"""How many KV blocks fit on a GPU: three rules, and pins that overrule them.

The rules are the default one, the SOSP'23 artifact's and the textbook exercise's. A capacity counts the
blocks that requests can hold on the fullest rank. The paged KV tensor has one block more, the null block,
which comes out of the headroom.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any

from engine.core.gpus import Gpu
from engine.core.kv_spec import KVSpec
from engine.core.model_shape import ModelShape
from engine.core.parameters import num_parameters, weight_bytes

GB = 10**9
GIB = 2**30
DEFAULT_HEADROOM_BYTES = 2 * GIB
DEFAULT_UTILIZATION = 0.92


@dataclass(frozen=True, slots=True)
class Capacity:
    """The answer with everything it was computed from; `to_dict` is ready for JSON."""

    rule: str
    num_blocks: int
    """Blocks that requests can hold, on each rank."""
    block_size: int
    capacity_tokens: int
    """Token slots of those blocks."""
    kv_dtype: str
    bytes_per_token: int
    """Of one rank, all its layers."""
    block_bytes: int
    """Of one rank, all its layers."""
    kv_bytes: int
    """num_blocks * block_bytes."""
    budget_bytes: int
    """What was free for KV; less than a block of it stays unused."""
    tokens_in_budget: int
    """budget_bytes in tokens, before rounding down to blocks."""
    terms: Mapping[str, int | float | str]
    """The inputs of the rule, by name, in the order of its formula."""
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values only."""
        return {**asdict(self), "terms": dict(self.terms), "notes": list(self.notes)}


def default_capacity(
    shape: ModelShape,
    gpu: Gpu,
    *,
    kv_dtype: str | None = None,
    weight_dtype: str | None = None,
    weights_bytes: int | None = None,
    tp: int = 1,
    pp: int = 1,
    block_size: int = 16,
    gpu_memory_utilization: float = DEFAULT_UTILIZATION,
    headroom_bytes: int = DEFAULT_HEADROOM_BYTES,
) -> Capacity:
    """floor((utilization x total - weights - headroom) / block bytes), per rank.

    `weights_bytes` replaces the count of the whole model's weights; a rank holds its even share of them,
    rounded up. ValueError if not one block fits.
    """
    if not 0 < gpu_memory_utilization <= 1:
        raise ValueError(f"need 0 < gpu_memory_utilization <= 1, got {gpu_memory_utilization}")
    spec = shape.kv_spec(kv_dtype, tp, pp)
    whole = weight_bytes(shape, weight_dtype) if weights_bytes is None else weights_bytes
    share = -(-whole // (tp * pp))
    usable = int(Fraction(str(gpu_memory_utilization)) * gpu.total_bytes)
    terms: dict[str, int | float | str] = {
        "gpu": gpu.name,
        "total_bytes": gpu.total_bytes,
        "gpu_memory_utilization": gpu_memory_utilization,
        "usable_bytes": usable,
        "model_weights_bytes": whole,
        "tp": tp,
        "pp": pp,
        "weights_bytes": share,
        "headroom_bytes": headroom_bytes,
    }
    return _capacity("default", spec, block_size, usable - share - headroom_bytes, terms)


def sosp23_capacity(shape: ModelShape, gpu: Gpu, *, tp: int = 1, block_size: int = 16) -> Capacity:
    """Table 1 of the paper, with the artifact's own arithmetic for OPT in fp16.

    Weights keep all biases on each rank and leave out the final norm; activations are those of 2,560 batched
    tokens, logits twice; 5 % and 1 GiB stay free. ValueError for models that are not OPT.
    """
    if shape.model_type != "opt":
        raise ValueError(f"rule sosp23 counts OPT's weights and activations, got {shape.model_type!r}")
    if shape.num_heads % tp:
        raise ValueError(f"{shape.num_heads} heads cannot be split evenly over tp={tp} ranks")
    spec = shape.kv_spec("fp16", tp)
    usable = int(0.95 * gpu.total_bytes)
    weights = 2 * _sosp23_parameters(shape, tp)
    activations = 2 * _sosp23_activations(shape, tp)
    terms: dict[str, int | float | str] = {
        "gpu": gpu.name,
        "total_bytes": gpu.total_bytes,
        "gpu_memory_utilization": 0.95,
        "usable_bytes": usable,
        "tp": tp,
        "weights_bytes": weights,
        "activations_bytes": activations,
        "headroom_bytes": GIB,
    }
    return _capacity("sosp23", spec, block_size, usable - weights - activations - GIB, terms)


def _sosp23_parameters(shape: ModelShape, tp: int) -> int:
    hidden, inner = shape.hidden_size, shape.intermediate_size
    attention = 4 * (hidden * hidden // tp + hidden)
    mlp = hidden * inner // tp + inner + inner * hidden // tp + hidden
    return shape.vocab_size * hidden // tp + 2048 * hidden + shape.num_layers * (attention + mlp + 4 * hidden)


def _sosp23_activations(shape: ModelShape, tp: int) -> int:
    """Bytes of the larger of a layer's activations and the logits."""
    tokens, hidden, inner = 2560, shape.hidden_size, shape.intermediate_size
    layer = max(3 * tokens * hidden // tp, tokens * inner // tp) + tokens * hidden
    return max(2 * layer, 2 * tokens * shape.vocab_size)


def chapter_capacity(
    shape: ModelShape,
    gpu: Gpu,
    *,
    tp: int = 1,
    pp: int = 1,
    kv_dtype: str = "fp16",
    block_size: int = 16,
    weights_gb: int | None = None,
    headroom_gb: Fraction | int = 4,
) -> tuple[Capacity, ...]:
    """The textbook exercise, card - weights - headroom in round numbers, in its three readings of "GB".

    `gib` and `gb` read every number in that unit. `mixed` is the pitfall: a card and a headroom in GiB,
    weights in 10^9 bytes, as they are usually quoted. Weights default to 2 bytes of the nominal parameter
    count, split over the ranks and rounded up to whole GB.
    """
    spec = shape.kv_spec(kv_dtype, tp, pp)
    weights_gb = -(-2 * _nominal_billions(shape) // (tp * pp)) if weights_gb is None else weights_gb
    capacities = []
    for reading, unit, weights_unit in (("gib", GIB, GIB), ("gb", GB, GB), ("mixed", GIB, GB)):
        terms: dict[str, int | float | str] = {
            "gpu": gpu.name,
            "total_bytes": gpu.nominal_gb * unit,
            "tp": tp,
            "pp": pp,
            "weights_bytes": weights_gb * weights_unit,
            "headroom_bytes": int(headroom_gb * unit),
        }
        budget = gpu.nominal_gb * unit - int(headroom_gb * unit) - weights_gb * weights_unit
        capacities.append(_capacity(f"chapter-{reading}", spec, block_size, budget, terms))
    return tuple(capacities)


def _nominal_billions(shape: ModelShape) -> int:
    """Billions of parameters in the model's name, or its exact count rounded where the name has none."""
    named = re.search(r"-(\d+)b\b", shape.name.lower())
    return int(named[1]) if named else max(1, round(num_parameters(shape) / GB))


def capacity_from_tokens(spec: KVSpec, kv_tokens: int, block_size: int = 16) -> Capacity:
    """Pins the capacity to the whole blocks of `kv_tokens` tokens."""
    budget = kv_tokens * spec.bytes_per_token
    return _capacity("kv-tokens", spec, block_size, budget, {"kv_tokens": kv_tokens})


def capacity_from_bytes(spec: KVSpec, kv_bytes: int, block_size: int = 16) -> Capacity:
    """Pins the capacity to the whole blocks of `kv_bytes` bytes on each rank."""
    return _capacity("kv-bytes", spec, block_size, kv_bytes, {"kv_bytes": kv_bytes})


def capacity_from_blocks(spec: KVSpec, num_blocks: int, block_size: int = 16) -> Capacity:
    """Pins the capacity to `num_blocks` blocks."""
    budget = num_blocks * spec.block_bytes(block_size)
    return _capacity("num-blocks", spec, block_size, budget, {"num_blocks": num_blocks})


def _capacity(
    rule: str, spec: KVSpec, block_size: int, budget: int, terms: Mapping[str, int | float | str]
) -> Capacity:
    block_bytes = spec.block_bytes(block_size)
    num_blocks = budget // block_bytes
    if num_blocks < 1:
        given = ", ".join(f"{name} {value:,}" for name, value in terms.items() if isinstance(value, int))
        raise ValueError(
            f"not one KV block fits: asked for a block of {block_size} tokens, "
            f"{max(0, budget):,} B are free for KV ({budget:,} B by rule {rule}: {given}), "
            f"{block_bytes:,} B are needed"
        )
    return Capacity(
        rule=rule,
        num_blocks=num_blocks,
        block_size=block_size,
        capacity_tokens=num_blocks * block_size,
        kv_dtype=spec.dtype,
        bytes_per_token=spec.bytes_per_token,
        block_bytes=block_bytes,
        kv_bytes=num_blocks * block_bytes,
        budget_bytes=budget,
        tokens_in_budget=budget // spec.bytes_per_token,
        terms=terms,
        notes=spec.notes,
    )
