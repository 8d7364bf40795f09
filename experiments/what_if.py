"""What else would hold more requests: one row for each lever of capacity planning (section 4.8 of the chapter)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from engine.core.demand import Demand, Fit
from engine.core.gpus import GPUS, lookup_gpu
from engine.core.kv_spec import DTYPE_BITS, canonical_dtype

if TYPE_CHECKING:
    from engine.core.capacity import Capacity
    from experiments.settings import Config

Sized = Callable[["Config"], "Capacity"]
"""The pool of a configuration; ValueError where it cannot be had."""
NARROWER = {32: "bf16", 16: "fp8", 8: "int4"}
"""The next storage type of KV, by bits."""
PINNED = "the capacity is pinned; drop the pin to have it computed"


@dataclass(frozen=True, slots=True)
class WhatIf:
    """One lever: what is changed, and what then fits; or why it cannot be had."""

    lever: str
    change: str
    tokens_each: float
    """Tokens that a request is counted with."""
    fit: Fit | None
    why_not: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain values; null where the lever cannot be had."""
        fit = self.fit
        return {
            "lever": self.lever,
            "change": self.change,
            "tokens_each": self.tokens_each,
            "blocks_each": fit and fit.blocks_each,
            "blocks_needed": fit and fit.blocks_needed,
            "num_blocks": fit and fit.num_blocks,
            "largest_concurrency": fit and fit.largest_concurrency,
            "fits": fit and fit.fits,
            "why_not": self.why_not,
        }


def what_ifs(config: Config, demand: Demand, base: Capacity, sized: Sized) -> list[WhatIf]:
    """As asked, then each lever by itself. `sized` gives the pool of a changed configuration by the same rule."""
    pool = base.num_blocks, base.block_size
    half = demand.mean_prompt_tokens / 2
    short = half + demand.mean_output_tokens
    tp, pp = config.model.tp, config.model.pp
    return [
        WhatIf("as asked", "every request at its full length", demand.tokens_each, demand.fit(*pool)),
        WhatIf("shorter context", f"mean prompt {half:g}", short, demand.fit(*pool, short)),
        _resized("more tensor parallelism", f"tp={2 * tp}", config, demand, sized, tp=2 * tp),
        _resized("more pipeline stages", f"pp={2 * pp}", config, demand, sized, pp=2 * pp),
        _narrower(config, demand, base, sized),
        _larger(config, demand, sized),
        WhatIf(
            "preemption",
            "requests at their mean length, prompt + output/2; what overflows is computed again",
            demand.mean_tokens_each,
            demand.fit(*pool, demand.mean_tokens_each),
        ),
    ]


def _resized(lever: str, change: str, config: Config, demand: Demand, sized: Sized, **model: Any) -> WhatIf:
    """The same load on another model section; a change that is impossible says why."""
    kv = config.kv
    if kv.num_blocks is not None or kv.kv_tokens is not None or (kv.kv_bytes is not None and "gpu" in model):
        return WhatIf(lever, change, demand.tokens_each, None, PINNED)
    try:
        capacity = sized(config.model_copy(update={"model": config.model.model_copy(update=model)}))
    except ValueError as error:
        return WhatIf(lever, change, demand.tokens_each, None, str(error))
    return WhatIf(lever, change, demand.tokens_each, demand.fit(capacity.num_blocks, capacity.block_size))


def _narrower(config: Config, demand: Demand, base: Capacity, sized: Sized) -> WhatIf:
    """Fewer bits an element; scales, where a type needs them, are not counted."""
    bits = DTYPE_BITS[canonical_dtype(base.kv_dtype)]
    dtype = NARROWER.get(bits)
    if dtype is None:
        why = f"{base.kv_dtype} has {bits} bits already"
        return WhatIf("narrower KV", f"below {bits} bits", demand.tokens_each, None, why)
    change = f"{dtype} instead of {base.kv_dtype}"
    return _resized("narrower KV", change, config, demand, sized, kv_cache_dtype=dtype)


def _larger(config: Config, demand: Demand, sized: Sized) -> WhatIf:
    """The next larger card of the table."""
    assert config.model.gpu is not None
    gpu = lookup_gpu(config.model.gpu)
    more = [other for other in GPUS.values() if other.nominal_gb > gpu.nominal_gb]
    if not more:
        return WhatIf("larger GPU", f"beyond {gpu.name}", demand.tokens_each, None, "none is larger in the table")
    larger = min(more, key=lambda other: other.total_bytes)
    return _resized("larger GPU", larger.name, config, demand, sized, gpu=larger.name)
