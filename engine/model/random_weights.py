"""Seeded random weights of any architecture: what a model costs does not depend on what its weights say.

Drawn on the device and in the type that they are used in, so that a large model never passes through the host. Equal
seeds give equal weights on one kind of device; a CPU and a GPU draw differently.
"""

from __future__ import annotations

import torch

from engine.model.architecture import Architecture
from engine.model.weights import Shape, Weights, build_weights

_BIAS_STD = 0.1


def random_weights(
    architecture: Architecture,
    *,
    seed: int,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
) -> Weights:
    """Matrices with outputs of unit variance, norms near 1, small biases; `dtype` defaults to the architecture's.

    On the device `meta` tensors have shapes and no values.
    """
    device = torch.device(device)
    generator = None if device.type == "meta" else torch.Generator(device).manual_seed(seed)

    def draw(_layer: int | None, name: str, shape: Shape) -> torch.Tensor:
        tensor = torch.empty(shape, dtype=dtype or architecture.torch_dtype, device=device)
        if generator is None:
            return tensor
        if len(shape) > 1:
            return tensor.normal_(0.0, shape[-1] ** -0.5, generator=generator)
        mean = 1.0 if name.endswith("norm") else 0.0
        return tensor.normal_(mean, _BIAS_STD, generator=generator)

    return build_weights(architecture, draw)
