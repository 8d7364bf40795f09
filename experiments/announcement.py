"""What will be run, said before it is: no silent defaults."""

from __future__ import annotations

from experiments.backends import is_real
from experiments.config import dump, to_toml
from experiments.console import Talk
from experiments.resolve import Plan


def announce(plan: Plan, talk: Talk) -> None:
    """Trace, model, device, pool, rules, and how many cells; the notes; in full with --verbose."""
    config, pool = plan.config, plan.pool
    trace = plan.arriving.provenance
    tokens = "unequal pools" if pool.tokens is None else f"{pool.tokens:,} tokens"
    talk.note(
        f"{trace['name']}: {counted(trace['num_requests'], 'request')}; {config.model.name} on {_where(plan)}, "
        f"max_model_len {config.model.max_model_len:,}; {tokens} ({pool.terms['rule']}); "
        f"preset {config.scheduler.preset}; {_step_times(plan)}; {_fleet(plan)}{counted(len(plan.cells), 'cell')}"
    )
    for note in plan.notes:
        talk.note(f"note: {note}")
    talk.detail(to_toml(dump(config)))


def _fleet(plan: Plan) -> str:
    fleet = plan.config.fleet
    return f"{fleet.replicas} replicas of that pool, {fleet.router}; " if fleet.replicas else ""


def _where(plan: Plan) -> str:
    """The GPU whose step times are modelled, or this machine's device."""
    config = plan.config
    return f"this machine's {config.measure.backend.upper()}" if is_real(config) else str(config.model.gpu)


def _step_times(plan: Plan) -> str:
    return "measured steps" if is_real(plan.config) else f"step model {plan.config.measure.step_model}"


def counted(count: int, thing: str) -> str:
    """`1 cell`, `2 cells`."""
    return f"{count:,} {thing}" if count == 1 else f"{count:,} {thing}s"
