"""The verb `capacity`: how many KV blocks fit, by which rule, from which terms; and what a load makes of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from engine.core.demand import Demand
from experiments import exits
from experiments.config import resolve_layers
from experiments.console import say_json
from experiments.exits import UsageError
from experiments.flags import Flags
from experiments.resolve import filled
from experiments.what_if import WhatIf, what_ifs

if TYPE_CHECKING:
    from engine.core.capacity import Capacity
    from engine.core.gpus import Gpu
    from engine.core.kv_spec import KVSpec
    from engine.core.model_shape import ModelShape
    from experiments.holding import Held
    from experiments.settings import Config
    from experiments.unit_traps import Trap

RULES = ("default", "chapter", "sosp23")


@dataclass
class Answer:
    """Everything that `capacity` can be asked; what was not asked for is None or empty."""

    config: Config
    shape: ModelShape
    rule: str
    demand: Demand | None
    simulate: bool

    @cached_property
    def capacities(self) -> list[Capacity]:
        """One a block size; three for the chapter's readings."""
        return capacities_of(self.config, self.shape, self.rule)

    @property
    def base(self) -> Capacity:
        """The one that levers, traps and replays are about: the first."""
        return self.capacities[0]

    @property
    def spec(self) -> KVSpec:
        """One rank's KV, as the base counts it."""
        model = self.config.model
        return self.shape.kv_spec(self.base.kv_dtype, model.tp, model.pp)

    @property
    def gpu(self) -> Gpu | None:
        """The card, where the capacity comes from one."""
        from engine.core.gpus import lookup_gpu

        named = self.config.model.gpu
        return lookup_gpu(named) if named is not None and "gpu" in self.base.terms else None

    @cached_property
    def what_ifs(self) -> list[WhatIf]:
        """A row a lever; nothing without a load."""
        if self.demand is None:
            return []
        return what_ifs(
            self.config, self.demand, self.base, lambda config: capacities_of(config, self.shape, self.rule)[0]
        )

    @cached_property
    def traps(self) -> list[Trap]:
        """The usual slips."""
        from experiments.unit_traps import unit_traps

        return unit_traps(self.base, self.spec, self.gpu)

    @cached_property
    def held(self) -> list[Held]:
        """What each allocator holds of the base's pool; nothing unless asked for."""
        from experiments.holding import hold_load

        return hold_load(self.config, self.shape, self.base, self.demand) if self.simulate and self.demand else []

    def to_dict(self) -> dict[str, Any]:
        """The first capacity's terms at the top, all of them under `capacities`, the load's part only if asked for."""
        config, demand = self.config, self.demand
        found: dict[str, Any] = {
            "model": self.shape.name,
            "gpu": config.model.gpu,
            "tp": config.model.tp,
            "pp": config.model.pp,
            "kv_formula": self.spec.formula,
            **self.base.to_dict(),
            "capacities": [capacity.to_dict() for capacity in self.capacities],
            "unit_traps": [trap.to_dict() for trap in self.traps],
        }
        if demand is not None:
            found["demand"] = {
                "mean_prompt_tokens": demand.mean_prompt_tokens,
                "mean_output_tokens": demand.mean_output_tokens,
                "concurrency": demand.concurrency,
                "tokens_each": demand.tokens_each,
                "tokens": demand.tokens(),
                "fits": [self.fit_of(capacity) for capacity in self.capacities],
            }
            found["what_if"] = [row.to_dict() for row in self.what_ifs]
        if self.simulate:
            found["held"] = [row.to_dict() for row in self.held]
        return found

    def fit_of(self, capacity: Capacity) -> dict[str, Any]:
        """The load beside one of the capacities."""
        assert self.demand is not None
        fit = self.demand.fit(capacity.num_blocks, capacity.block_size)
        names = ("block_size", "num_blocks", "blocks_each", "blocks_needed", "used_frac", "largest_concurrency", "fits")
        return {"rule": capacity.rule, **{name: getattr(fit, name) for name in names}}


def capacity_verb(
    flags: Flags,
    rule: str | None,
    *,
    as_json: bool,
    mean_prompt_len: float | None = None,
    mean_output_len: float | None = None,
    concurrency: int | None = None,
    simulate: bool = False,
) -> int:
    """Prints; ValueErrors of the rules are the user's."""
    from experiments.capacity_tables import show_answer

    if rule is not None and rule not in RULES:
        raise UsageError(f"--rule knows {', '.join(RULES)}, got {rule!r}")
    try:
        demand = demand_of(mean_prompt_len, mean_output_len, concurrency, simulate)
        config, shape, named = _asked(flags, rule)
        _check_length(demand, config.model.max_model_len)
        answer = Answer(config, shape, named, demand, simulate)
        document = answer.to_dict()
    except UsageError:
        raise
    except (ValueError, OSError) as error:
        raise UsageError(str(error)) from error
    if as_json:
        say_json(document)
    else:
        show_answer(answer)
    return exits.OK


def demand_of(prompt: float | None, output: float | None, concurrency: int | None, simulate: bool) -> Demand | None:
    """The load that the flags describe; None if they describe none. UsageError for half of one."""
    if prompt is None and output is None and concurrency is None and not simulate:
        return None
    if prompt is None or output is None:
        raise UsageError("a load needs both --mean-prompt-len and --mean-output-len, in tokens")
    for flag, tokens in (("--mean-prompt-len", prompt), ("--mean-output-len", output)):
        if not (math.isfinite(tokens) and tokens >= 1):
            raise UsageError(f"{flag} is in tokens, at least 1 on average, got {tokens:g}")
    if concurrency is not None and concurrency < 1:
        raise UsageError(f"--concurrency is the requests that run at once, at least 1, got {concurrency}")
    return Demand(prompt, output, concurrency)


def _check_length(demand: Demand | None, max_model_len: int | None) -> None:
    """UsageError for a load that no run of the model would accept."""
    if demand is not None and max_model_len is not None and demand.tokens_each > max_model_len:
        raise UsageError(
            f"--mean-prompt-len {demand.mean_prompt_tokens:g} and --mean-output-len {demand.mean_output_tokens:g} are "
            f"more than the {max_model_len:,} tokens of --max-model-len together: raise that, or ask for less"
        )


def _asked(flags: Flags, rule: str | None) -> tuple[Config, ModelShape, str]:
    """Rule sosp23 is about the paper's model and GPU unless told otherwise. UsageError where the configuration has
    another rule, or a pin, than `--rule`."""
    from engine.core.catalogue import lookup

    given = resolve_layers(flags.layers())
    kv = given.kv
    pinned = [f"kv.{name}" for name in ("num_blocks", "kv_tokens", "kv_bytes") if getattr(kv, name) is not None]
    other = pinned or [f"kv.capacity_rule={kv.capacity_rule}"] * (kv.capacity_rule not in (None, rule))
    if rule is not None and other:
        raise UsageError(f"--rule {rule} and {other[0]} both set the capacity: keep one")
    named = rule or kv.capacity_rule or "default"
    config = filled(given, has_trace=named != "sosp23")
    assert config.model.name is not None
    return config, lookup(config.model.name), named


def capacities_of(config: Config, shape: ModelShape, rule: str) -> list[Capacity]:
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
