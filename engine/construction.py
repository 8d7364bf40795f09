"""What an LLM is made from: an engine, the rules of its scheduler, the record of its prefix cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any, Final, get_args

from engine.core.limits import Preemption, SchedulerConfig
from engine.core.option_checks import (
    MOST_SEED,
    check_choice,
    check_number,
    check_switch,
    check_text,
    check_whole,
    is_number,
)
from engine.core.suggestion import unknown_name
from engine.worker.budget import EngineError
from engine.worker.engine import Engine, EngineConfig
from engine.worker.kv_memory import Kernel
from engine.worker.limits import Limits
from engine.worker.rank_engine import open_engine

if TYPE_CHECKING:
    from engine.core.allocator import KVAllocator


def _optional(check: Callable[[str, object], None]) -> Callable[[str, object], None]:
    """The same for an option that may be None."""

    def checked(name: str, value: object) -> None:
        if value is not None:
            check(name, value)

    return checked


def _whole(least: int, most: int | None = None) -> Callable[[str, object], None]:
    return partial(check_whole, least=least, most=most)


def check_fraction(name: str, value: object) -> None:
    """ValueError for what is not above 0 and at most 1."""
    if not (is_number(value) and 0 < value <= 1):  # type: ignore[operator]
        raise ValueError(f"{name}: expected a number above 0 and at most 1, got {value!r}")


CHECKS: Final[dict[str, Callable[[str, object], None]]] = {
    "allocator": partial(check_text, expected="the name of an allocator (paged, orca-max, ...), as a text"),
    "kernel": partial(check_choice, known=get_args(Kernel)),
    "block_size": _optional(_whole(1)),
    "num_blocks": _optional(_whole(1)),
    "kv_tokens": _optional(_whole(1)),
    "gpu_memory_utilization": check_fraction,
    "enable_prefix_caching": check_switch,
    "enable_chunked_prefill": check_switch,
    "max_model_len": _optional(_whole(1)),
    "max_num_seqs": _whole(1),
    "max_num_batched_tokens": _whole(1),
    "preemption": partial(check_choice, known=get_args(Preemption)),
    "host_blocks": _optional(_whole(0)),
    "swap_gib": _optional(check_number),
    "record_events": check_switch,
    "seed": _whole(-MOST_SEED, MOST_SEED),
}
"""An LLM's own options; those of its engine are checked by `EngineConfig.check`."""


def check_options(given: Mapping[str, Any]) -> None:
    """EngineError, by the option's name, for values that none of its kind can be, and for an unknown option in
    `given["engine"]`, with the nearest names: before anything is loaded."""
    engine = {field.name for field in fields(EngineConfig)}
    try:
        for name in set(given["engine"]) - engine:
            raise unknown_name("option of LLM", name, engine.union(CHECKS) - {"model"})
        for name, check in CHECKS.items():
            check(name, given[name])
    except ValueError as error:
        raise EngineError(str(error)) from error


def limits_of(max_num_seqs: int, max_num_batched_tokens: int, max_model_len: int | None) -> Limits:
    """What was asked for; a length of 0 stands for the model's own."""
    return Limits(max_num_seqs, max_num_batched_tokens, max_model_len or 0)


def engine_of(model: str | Engine, asked: Limits, options: dict[str, Any]) -> Engine:
    """A new engine, or the one that was given."""
    seqs, tokens, longest = asked
    if not isinstance(model, Engine):
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
