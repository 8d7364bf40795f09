"""Axes along which requests are samples, beams or swapped at some points and not at others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from experiments.sharing import shares, swaps

if TYPE_CHECKING:
    from collections.abc import Collection

    from experiments.settings import Config

SHARING_AXES: Final = ("scheduler.preemption", "workload.num_samples", "workload.beam_width")
HOST: Final = ("host_bytes", "host_blocks")
SPEEDS: Final = ("host_bytes_per_s", "host_copy_s", "copy_bytes_per_s")


def cut_to_point(config: Config, axes: Collection[str]) -> tuple[Config, list[str]]:
    """Without what the base says of copies that this point never makes, and the keys that are ignored."""
    if not set(SHARING_AXES) & set(axes) or config.scheduler.preemption is None:  # the preset may swap groups
        return config, []
    kv = (
        []
        if swaps(config)
        else [key for key in HOST if f"kv.{key}" not in axes and getattr(config.kv, key) is not None]
    )
    measure = [] if shares(config) else [key for key in SPEEDS if getattr(config.measure, key) is not None]
    measure = [key for key in measure if f"measure.{key}" not in axes]
    ignored = [f"{section}.{key}" for section, keys in (("kv", kv), ("measure", measure)) for key in keys]
    parts = {"kv": dict.fromkeys(kv), "measure": dict.fromkeys(measure)}
    update = {name: getattr(config, name).model_copy(update=gone) for name, gone in parts.items() if gone}
    return config.model_copy(update=update), ignored


def told_everywhere(config: Config) -> Config:
    """With what is shared counted at this point because it is at others: a comparison needs both."""
    if shares(config):
        return config
    return config.model_copy(update={"measure": config.measure.model_copy(update={"record_sharing": True})})
