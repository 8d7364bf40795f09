"""How the model's kernels are launched: where, with how many warps, and how early.

What is compiled into a kernel is found out once for each shape: a step of hundreds of launches pays for it each time.
"""

from __future__ import annotations

import contextlib

import torch

from engine.attention.kernels.device import launches_early

_HERE: contextlib.AbstractContextManager[object] = contextlib.nullcontext()


def on_device(tensor: torch.Tensor) -> contextlib.AbstractContextManager[object]:
    """Launches go to the tensor's device; next to nothing where that is the current one."""
    if tensor.is_cuda and tensor.get_device() != torch.cuda.current_device():
        return torch.cuda.device(tensor.device)
    return _HERE


def overlaps(early: bool, tensor: torch.Tensor) -> bool:
    """Whether a launch may overlap the end of the one before: asked for, and the device can."""
    return early and launches_early(tensor)


def launch_options(num_warps: int, early: bool) -> dict[str, bool | int]:
    """EARLY and what goes with it (programmatic dependent launch)."""
    options: dict[str, bool | int] = {"EARLY": early, "num_warps": num_warps}
    return options | {"launch_pdl": True} if early else options
