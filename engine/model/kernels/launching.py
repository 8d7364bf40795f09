"""How the model's kernels are launched: where, with how many warps, and how early."""

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


def launch_options(num_warps: int, early: bool, tensor: torch.Tensor) -> dict[str, bool | int]:
    """EARLY and what goes with it (programmatic dependent launch), where it is asked for and the device has it."""
    if early and launches_early(tensor):
        return {"EARLY": True, "num_warps": num_warps, "launch_pdl": True}
    return {"EARLY": False, "num_warps": num_warps}
