"""From the command line to a plan: configuration, axes, tables, shard, launcher, checked before anything is written."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from experiments import store
from experiments.backends import need_device
from experiments.cells import TABLES
from experiments.config import Layer, read_layer, resolve_layers
from experiments.environment import SOURCE
from experiments.exits import UsageError
from experiments.sweep.axes import axes_of
from experiments.sweep.launchers import LocalLauncher
from experiments.sweep.planning import plan_sweep

if TYPE_CHECKING:
    from experiments.flags import Flags
    from experiments.sweep.flags import SweepFlags
    from experiments.sweep.launchers import Launcher
    from experiments.sweep.planning import OnPoint, SweepPlan

LAUNCHERS: Final = ("local", "ray", "slurm")
STEPPED: Final = ("steps", "residency", "sharing")
"""What `--record` knows for every verb."""


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked for, understood."""

    plan: SweepPlan
    tables: tuple[str, ...]
    shard: tuple[int, int]


def request_of(
    flags: Flags, out: SweepFlags, folder: Path | None, on_point: OnPoint = lambda done, total: None
) -> Request:
    """UsageError with what is wrong and where."""
    tables, flags = split_record(flags)
    layers = flags.layers()
    said = [layer for layer in layers if layer.source != SOURCE]  # what is resumed has its environment in its files
    if out.resume and not any(layer.values or layer.sweep for layer in said) and not out.axis:
        layers = stored_layers(folder)
        tables = tables or stored_tables(folder)
    axes = axes_of(layers, out.axis, out.zip, out.exclude)
    try:
        base = resolve_layers([replace(layer, sweep={}) for layer in layers])
    except UsageError:
        raise
    except ValueError as error:
        raise UsageError(str(error)) from error
    return Request(plan_sweep(base, axes, on_point), tables, shard_of(out.shard))


def split_record(flags: Flags) -> tuple[tuple[str, ...], Flags]:
    """`--record`: the tables that a cell keeps, and what is left for the run."""
    words = [word for word in (flags.record or "").split(",") if word]
    if unknown := sorted(set(words) - {*TABLES, *STEPPED}):
        maps = "; --map-frames keeps maps" if "map" in unknown else ""
        raise UsageError(f"--record knows {', '.join((*TABLES, *STEPPED))}, got {', '.join(unknown)}{maps}")
    rest = ",".join(word for word in words if word not in TABLES)
    return tuple(name for name in TABLES if name in words), replace(flags, record=rest or None)


def stored_layers(folder: Path | None) -> list[Layer]:
    """The configuration and the axes that a folder was begun with."""
    paths = [] if folder is None else [folder / store.RESOLVED, folder / store.SWEEP]
    if not paths or not all(path.is_file() for path in paths):
        raise UsageError(f"--resume: no sweep in {folder}; name its folder with -o, or say what is to be run")
    return [read_layer(path) for path in paths]


def stored_tables(folder: Path | None) -> tuple[str, ...]:
    """The tables that its cells keep."""
    from experiments.sweep.ledger import ledgers_of, read_history

    assert folder is not None
    asked = read_history(ledgers_of(folder)).asked
    kept = asked[0].get("asked", {}).get("record", []) if asked else []
    return tuple(name for name in TABLES if name in kept)


def shard_of(text: str | None) -> tuple[int, int]:
    """`2/4` is the second of four."""
    if text is None:
        return (1, 1)
    match = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", text)
    first, of = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= first <= of:
        raise UsageError(f"--shard is I/N with 1 <= I <= N, got {text!r}")
    return (first, of)


def launcher_of(out: SweepFlags, plan: SweepPlan, folder: Path) -> Launcher:
    """By name. UsageError, or DeviceMissing where its package or the cells' device is not here."""
    check_launcher(out)
    if out.launcher == "ray":
        from experiments.sweep.ray_launcher import RayLauncher, imported_ray

        imported_ray()
        return RayLauncher(out.address, out.jobs)
    if out.launcher == "slurm":
        from experiments.sweep.slurm_launcher import SlurmLauncher, imported_submitit

        imported_submitit()
        return SlurmLauncher(folder / store.SLURM, out.jobs or 2, out.address, options_of(out.slurm_option))
    for backend in sorted(plan.backends - {"sim"}):
        need_device(backend)
    return LocalLauncher(num_jobs(out, plan))


def check_launcher(out: SweepFlags) -> None:
    """Of options that go with others only."""
    if out.launcher not in LAUNCHERS:
        raise UsageError(f"--launcher {out.launcher}: known are {', '.join(LAUNCHERS)}")
    if out.address is not None and out.launcher == "local":
        raise UsageError("--address is for --launcher ray or slurm")
    if out.slurm_option and out.launcher != "slurm":
        raise UsageError("--slurm-option is for --launcher slurm")
    if out.jobs < 0:
        raise UsageError(f"--jobs needs at least 1, got {out.jobs}")


def num_jobs(out: SweepFlags, plan: SweepPlan) -> int:
    """Cells at a time on this machine."""
    if "gpu" in plan.backends and out.launcher == "local":
        if out.jobs > 1:
            raise UsageError(f"--jobs {out.jobs}: --backend gpu runs its cells one by one, they would share the device")
        return 1
    if plan.backends != {"sim"} and not out.jobs:
        return 1  # two engines on one CPU would measure each other
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return out.jobs or cores


def options_of(texts: Sequence[str]) -> dict[str, Any]:
    """`timeout_min=60` as numbers or words."""
    options: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise UsageError(f"--slurm-option needs KEY=VALUE, got {text!r}")
        try:
            options[key] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            options[key] = value
    return options
