"""`trace synth --workload`: a workload by name as a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.exits import UsageError
from experiments.trace_verbs import make_and_save

if TYPE_CHECKING:
    from experiments.session_flags import SessionFlags


def workload_verb(
    target: Path,
    name: str | None,
    sessions: SessionFlags,
    said: Mapping[str, Any],
    others: Mapping[str, Any],
    seed: int,
    *,
    overwrite: bool,
) -> int:
    """Draws the workload as `run --workload` does, and writes it. `others` are options that it has no use for."""
    from experiments.arriving import arrive
    from experiments.config import Layer, resolve_layers

    given = {key: value for key, value in {**said, **asdict(sessions)}.items() if value is not None}
    if name is None:
        raise UsageError(f"{', '.join(given)}: for a workload by name: say --workload chat or few-shot")
    also = [key for key, value in others.items() if value is not None]
    if also:
        raise UsageError(f"--workload: {name} says these itself; leave {', '.join(also)} out")
    layer = Layer({f"workload.{key}": value for key, value in given.items()} | {"workload.name": name}, "command line")
    workload = resolve_layers([layer]).workload
    return make_and_save(lambda stem: replace(arrive(workload, seed, 1).traces[seed], name=stem), target, overwrite)
