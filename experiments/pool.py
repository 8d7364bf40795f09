"""How large the pool is: one number of tokens for all allocators and block sizes, and where it comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from experiments.backends import kv_dtype_of
from experiments.exits import UsageError

if TYPE_CHECKING:
    from engine.core.capacity import Capacity
    from engine.core.kv_spec import KVSpec
    from engine.core.model_shape import ModelShape
    from experiments.settings import Config

RULE_BLOCK_SIZE = 16
"""Rules are evaluated once, in blocks of this many tokens; every cell then gets num_blocks = tokens // block_size."""


@dataclass(frozen=True, slots=True)
class Pool:
    """The capacity of every cell."""

    tokens: int | None
    """None: num_blocks is pinned for several block sizes, so that the pools differ."""
    bytes_per_token: int
    """Of one rank."""
    num_blocks: int | None
    """The pin, if there is one."""
    terms: dict[str, Any]
    """Everything the number was computed from."""
    page_groups: Mapping[int, int] = field(default_factory=dict)
    """Blocks of the allocator `virtual`, by tokens of a page; {} where nobody maps pages."""

    def blocks(self, block_size: int) -> int:
        """Blocks that requests can hold, the null block not counted."""
        from engine.core.allocator import MAX_BLOCKS

        if self.num_blocks is not None:
            blocks = self.num_blocks
        else:
            assert self.tokens is not None
            blocks = self.tokens // block_size
            if not blocks:
                raise UsageError(f"not one block of {block_size} tokens fits into a capacity of {self.tokens:,} tokens")
        if blocks > MAX_BLOCKS:
            raise UsageError(f"{blocks:,} blocks of {block_size} tokens are more than the {MAX_BLOCKS:,} of any pool")
        return blocks

    def to_dict(self) -> dict[str, Any]:
        """For the JSON object and the manifest."""
        num_bytes = None if self.tokens is None else self.tokens * self.bytes_per_token
        return {"tokens": self.tokens, "bytes": num_bytes, "bytes_per_token": self.bytes_per_token, **self.terms}


def pool_of(config: Config, shape: ModelShape, block_sizes: Sequence[int], pages: Mapping[int, int]) -> Pool:
    """The pool of a resolved configuration; ValueError if it cannot be had. `pages`: bytes by tokens of a page."""
    spec = shape.kv_spec(kv_dtype_of(config), config.model.tp, config.model.pp)
    pool = _sized(config, shape, block_sizes, spec.bytes_per_token)
    return replace(pool, page_groups={tokens: num_groups(spec, pool, size) for tokens, size in pages.items()})


def num_groups(spec: KVSpec, pool: Pool, page_bytes: int) -> int:
    """The pool's bytes in whole pages of all tensors. UsageError where there is not one."""
    if pool.num_blocks is not None:
        return pool.num_blocks
    assert pool.tokens is not None
    group, held = spec.page_group_bytes(page_bytes), pool.tokens * pool.bytes_per_token
    if group > held:
        raise UsageError(
            f"--page-bytes {page_bytes}: a page of each of {spec.num_tensors} tensors takes {group:,} B together, and "
            f"the pool has {held:,} B"
        )
    return held // group


def _sized(config: Config, shape: ModelShape, block_sizes: Sequence[int], per_token: int) -> Pool:
    kv = config.kv
    if kv.num_blocks is not None:
        sizes = sorted(set(block_sizes))
        if len(sizes) > 1 and not kv.allow_unequal_pools:
            raise UsageError(
                f"num_blocks={kv.num_blocks} for block sizes {', '.join(map(str, sizes))} makes pools of unequal size: "
                "pin --kv-tokens instead, or say --allow-unequal-pools"
            )
        tokens = kv.num_blocks * sizes[0] if len(sizes) == 1 else None
        return Pool(tokens, per_token, kv.num_blocks, {"rule": "num-blocks", "num_blocks": kv.num_blocks})
    if kv.kv_tokens is not None:
        return Pool(kv.kv_tokens, per_token, None, {"rule": "kv-tokens"})
    if kv.kv_bytes is not None:
        return Pool(kv.kv_bytes // per_token, per_token, None, {"rule": "kv-bytes", "kv_bytes": kv.kv_bytes})
    capacity = capacity_by_rule(config, shape)
    return Pool(capacity.capacity_tokens, per_token, None, _terms(capacity))


def _terms(capacity: Capacity) -> dict[str, Any]:
    names = ("rule", "block_size", "num_blocks", "block_bytes", "budget_bytes", "tokens_in_budget")
    numbers = {name: getattr(capacity, name) for name in names}
    return {**numbers, "terms": dict(capacity.terms), "notes": list(capacity.notes)}


def capacity_by_rule(config: Config, shape: ModelShape, block_size: int = RULE_BLOCK_SIZE) -> Capacity:
    """What the configuration's rule says, in blocks of `block_size`."""
    from engine.core import capacity as rules
    from engine.core.gpus import lookup_gpu

    kv, model = config.kv, config.model
    assert model.gpu is not None
    gpu, rule = lookup_gpu(model.gpu), kv.capacity_rule or "default"
    _check_terms(config, rule)
    if rule == "default":
        return rules.default_capacity(
            shape,
            gpu,
            kv_dtype=model.kv_cache_dtype,
            tp=model.tp,
            pp=model.pp,
            block_size=block_size,
            gpu_memory_utilization=_or(kv.gpu_memory_utilization, rules.DEFAULT_UTILIZATION),
            headroom_bytes=_or(kv.headroom_bytes, rules.DEFAULT_HEADROOM_BYTES),
        )
    if rule == "sosp23":
        return rules.sosp23_capacity(shape, gpu, tp=model.tp, block_size=block_size)
    readings = rules.chapter_capacity(
        shape,
        gpu,
        tp=model.tp,
        pp=model.pp,
        kv_dtype=_or(model.kv_cache_dtype, "fp16"),
        block_size=block_size,
        headroom_gb=4 if kv.headroom_bytes is None else Fraction(kv.headroom_bytes, rules.GB),
    )
    return next(reading for reading in readings if reading.rule == rule)


def _check_terms(config: Config, rule: str) -> None:
    """UsageError for a term that the rule has no place for: nothing that was asked for is passed over."""
    from engine.core.kv_spec import DTYPE_BITS, canonical_dtype

    kv, model = config.kv, config.model
    has_own = ["utilization"] * (kv.gpu_memory_utilization is not None and rule != "default")
    has_own += ["headroom"] * (kv.headroom_bytes is not None and rule == "sosp23")
    if has_own:
        raise UsageError(f"rule {rule} has its own {' and '.join(has_own)}: drop that, or use --capacity-rule default")
    if rule != "sosp23":
        return
    if model.pp > 1:
        raise UsageError(f"rule {rule} knows no pipeline stages, got pp={model.pp}")
    if model.kv_cache_dtype is not None and DTYPE_BITS[canonical_dtype(model.kv_cache_dtype)] != 16:
        raise UsageError(f"rule {rule} counts KV in 16 bits, got kv_cache_dtype={model.kv_cache_dtype}")


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value
