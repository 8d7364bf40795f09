"""What the launchers ask of their arguments, at a price that a step of hundreds of launches can pay. Without Triton.

Attributes only, so nothing waits for the device; one comparison a tensor where all is well, words only where not.
"""

from __future__ import annotations

import torch

from engine.attention.checks import short, shown

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
"""Types of activations and weights."""


def check_floats(what: str, tensor: torch.Tensor) -> None:
    """A type that the kernels compute with."""
    if tensor.dtype not in DTYPES:
        names = " or ".join(map(short, DTYPES))
        raise ValueError(f"{what}: expected {names}, got {short(tensor.dtype)}")


def check_dense(
    what: str, tensor: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype, beside: torch.Tensor
) -> None:
    """Contiguous, of that shape and type, on the device of `beside`."""
    if (
        tensor.shape == shape
        and tensor.dtype == dtype
        and tensor.is_contiguous()
        and tensor.get_device() == beside.get_device()
    ):
        return
    raise ValueError(
        f"{what}: expected contiguous {short(dtype)} {shown(shape)} on {beside.device}, got {described(tensor)}"
    )


def described(tensor: torch.Tensor) -> str:
    """`float16 [8, 64] with strides [128, 1] on cuda:0`."""
    return f"{short(tensor.dtype)} {shown(tensor.shape)} with strides {shown(tensor.stride())} on {tensor.device}"
