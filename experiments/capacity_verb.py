"""The verb `capacity`: how many KV blocks fit, by which rule, from which terms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from experiments import exits
from experiments.config import resolve_layers
from experiments.console import say_json, show
from experiments.exits import UsageError
from experiments.flags import Flags
from experiments.resolve import filled

if TYPE_CHECKING:
    from engine.core.capacity import Capacity
    from engine.core.model_shape import ModelShape
    from experiments.settings import Config

RULES = ("default", "chapter", "sosp23")


def capacity_verb(flags: Flags, rule: str, *, as_json: bool) -> int:
    """Prints; ValueErrors of the rules are the user's."""
    if rule not in RULES:
        raise UsageError(f"--rule knows {', '.join(RULES)}, got {rule!r}")
    try:
        config, shape = _asked(flags, rule)
        answers = _answers(config, shape, rule)
    except UsageError:
        raise
    except (ValueError, OSError) as error:
        raise UsageError(str(error)) from error
    if as_json:
        say_json(_json(config, shape, answers))
    else:
        for capacity in answers:
            show(_table(capacity), f"{shape.name}, rule {capacity.rule}, block size {capacity.block_size}")
    return exits.OK


def _asked(flags: Flags, rule: str) -> tuple[Config, ModelShape]:
    """Rule sosp23 is about the paper's model and GPU unless told otherwise."""
    from engine.core.catalogue import lookup

    config = filled(resolve_layers(flags.layers()), has_trace=rule != "sosp23")
    assert config.model.name is not None
    return config, lookup(config.model.name)


def _answers(config: Config, shape: ModelShape, rule: str) -> list[Capacity]:
    """One a block size; three for the chapter's readings."""
    from engine.core import capacity as rules
    from experiments.pool import capacity_by_rule

    kv, model = config.kv, config.model
    spec = shape.kv_spec(model.kv_cache_dtype, model.tp, model.pp)
    found: list[Capacity] = []
    for size in kv.block_size or (16,):
        if kv.num_blocks is not None:
            found.append(rules.capacity_from_blocks(spec, kv.num_blocks, size))
        elif kv.kv_tokens is not None:
            found.append(rules.capacity_from_tokens(spec, kv.kv_tokens, size))
        elif kv.kv_bytes is not None:
            found.append(rules.capacity_from_bytes(spec, kv.kv_bytes, size))
        else:
            names = ("chapter-gib", "chapter-gb", "chapter-mixed") if rule == "chapter" else (rule,)
            ruled = (config.model_copy(update={"kv": kv.model_copy(update={"capacity_rule": n})}) for n in names)
            found += [capacity_by_rule(one, shape, size) for one in ruled]
    return found


def _json(config: Config, shape: ModelShape, answers: list[Capacity]) -> dict[str, Any]:
    """The first answer's terms at the top, all of them under `capacities`."""
    spec = shape.kv_spec(config.model.kv_cache_dtype, config.model.tp, config.model.pp)
    return {
        "model": shape.name,
        "gpu": config.model.gpu,
        "tp": config.model.tp,
        "pp": config.model.pp,
        "kv_formula": spec.formula,
        **answers[0].to_dict(),
        "capacities": [capacity.to_dict() for capacity in answers],
    }


def _table(capacity: Capacity) -> Any:
    from rich.table import Table

    table = Table(caption_justify="left")
    table.add_column("term")
    table.add_column("value", justify="right")
    plain = {k: v for k, v in capacity.to_dict().items() if k not in ("rule", "block_size", "terms", "notes")}
    for name, value in {**capacity.terms, **plain}.items():
        table.add_row(name, f"{value:,}" if isinstance(value, int) else str(value))
    if capacity.notes:
        table.caption = "; ".join(capacity.notes)
    return table
