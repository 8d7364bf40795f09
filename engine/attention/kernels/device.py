"""What a launch asks of its device, and whether kernels are compiled or interpreted in this process."""

from __future__ import annotations

import contextlib
import functools

import torch
from triton.runtime import JITFunction

SMS_WITHOUT_A_DEVICE = 132
CAPABILITY_WITHOUT_A_DEVICE = 90
"""What the tuning rules assume where tensors are on the CPU (the interpreter): an H200."""


def interpreted(kernel: object) -> bool:
    """Whether this kernel runs in Triton's interpreter (TRITON_INTERPRET=1 before Triton was imported)."""
    return not isinstance(kernel, JITFunction)


def upcast(kernel: object, dtype: torch.dtype) -> bool:
    """Whether to compute in float32 after loading: the interpreter only loads and stores bfloat16 rightly."""
    return dtype == torch.bfloat16 and interpreted(kernel)


def launches_early(tensor: torch.Tensor) -> bool:
    """Whether a kernel may be launched before the one that it waits for has ended (programmatic dependent launch)."""
    return tensor.is_cuda and capability(tensor.device) >= 90


def multiprocessors(device: torch.device) -> int:
    """Multiprocessors of the device that holds the tensors."""
    if device.type != "cuda":
        return SMS_WITHOUT_A_DEVICE
    return _multiprocessors(torch.cuda.current_device() if device.index is None else device.index)


def capability(device: torch.device) -> int:
    """Compute capability of the device that holds the tensors, 90 for 9.0; a Hopper's on the CPU."""
    if device.type != "cuda":
        return CAPABILITY_WITHOUT_A_DEVICE
    return _capability(torch.cuda.current_device() if device.index is None else device.index)


@functools.cache
def _capability(index: int) -> int:
    major, minor = torch.cuda.get_device_capability(index)
    return 10 * major + minor


@functools.cache
def _multiprocessors(index: int) -> int:
    return int(torch.cuda.get_device_properties(index).multi_processor_count)


def on_device(tensor: torch.Tensor) -> contextlib.AbstractContextManager[object]:
    """Launches go to the tensor's device, whichever is current."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else contextlib.nullcontext()
