"""Where the model's and the worker's kernels are launched, at a price that a step of hundreds of launches can pay."""

from __future__ import annotations

import contextlib

import torch

_HERE: contextlib.AbstractContextManager[object] = contextlib.nullcontext()


def on_device(tensor: torch.Tensor) -> contextlib.AbstractContextManager[object]:
    """Launches go to the tensor's device; next to nothing where that is the current one."""
    if tensor.is_cuda and tensor.get_device() != torch.cuda.current_device():
        return torch.cuda.device(tensor.device)
    return _HERE
