"""What an LLM is made from: an engine, the rules of its scheduler, the record of its prefix cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from engine.core.limits import SchedulerConfig
from engine.worker.budget import EngineError
from engine.worker.engine import Engine, EngineConfig
from engine.worker.limits import Limits
from engine.worker.rank_engine import open_engine

if TYPE_CHECKING:
    from engine.core.allocator import KVAllocator

Preemption = Literal["recompute", "swap", "auto"]


def limits_of(max_num_seqs: int, max_num_batched_tokens: int, max_model_len: int | None) -> Limits:
    """What was asked for; a length of 0 stands for the model's own."""
    if max_model_len is not None and max_model_len < 1:
        raise EngineError(f"max_model_len: expected at least 1, got {max_model_len}")
    return Limits(max_num_seqs, max_num_batched_tokens, max_model_len or 0)


def engine_of(model: str | Engine, asked: Limits, options: dict[str, Any]) -> Engine:
    """A new engine, or the one that was given."""
    seqs, tokens, longest = asked
    if isinstance(model, str):
        return open_engine(
            EngineConfig(
                model,
                max_num_seqs=seqs,
                max_num_batched_tokens=tokens,
                max_model_len=longest or None,
                **options,
            )
        )
    if options:
        raise EngineError(f"the engine is there already: {', '.join(options)} cannot be changed any more")
    if longest > model.limits.max_model_len:
        raise EngineError(f"max_model_len: the engine takes at most {model.limits.max_model_len}, got {longest}")
    return model


def rules_of(engine: Engine, asked: Limits, chunked_prefill: bool, preemption: Preemption) -> SchedulerConfig:
    """What was asked for, within what the engine has buffers for."""
    limits = engine.limits
    return SchedulerConfig(
        max_model_len=asked.max_model_len or limits.max_model_len,
        max_num_seqs=min(asked.max_num_seqs, limits.max_num_seqs),
        max_num_batched_tokens=min(asked.max_num_batched_tokens, limits.max_num_batched_tokens),
        chunked_prefill=chunked_prefill,
        preemption=preemption,
    )


def record_events_of(allocator: KVAllocator, name: str) -> None:
    """Lets the prefix cache record what it stores and removes. EngineError where there is none."""
    pool = getattr(allocator, "pool", None)
    if pool is None or not getattr(allocator, "enable_caching", False):
        raise EngineError(f"record_events: allocator {name} has no prefix cache whose events there would be")
    pool.events = []
