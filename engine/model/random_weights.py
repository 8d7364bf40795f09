"""Seeded random weights of any architecture: what a model costs does not depend on what its weights say.

Drawn on the device and in the type that they are used in, so that a large model never passes through the host, in
chunks with a seed of their own: a rank of several draws the chunks that it has a part of, and the ranks together have
the weights of one. Equal seeds give equal weights on one kind of device; a CPU and a GPU draw differently.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator

import torch

from engine.model.architecture import Architecture
from engine.model.share import WHOLE, Share
from engine.model.weights import Shape, Weights, build_weights

_BIAS_STD = 0.1
CHUNK = 1 << 22
"""Elements drawn at once, at most, but at least a row or column: 8 MB of bf16 are all that a draw needs beside the
weights, and a rank's part of a key matrix of 70 billion parameters is as large."""


def random_weights(
    architecture: Architecture,
    *,
    seed: int,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
    share: Share = WHOLE,
) -> Weights:
    """Matrices with outputs of unit variance, norms near 1, small biases; `dtype` defaults to the architecture's.

    On the device `meta` tensors have shapes and no values.
    """
    device, dtype = torch.device(device), dtype or architecture.torch_dtype

    def draw(layer: int | None, name: str, shape: Shape) -> torch.Tensor:
        placement = share.placement(architecture, name, shape)
        tensor = torch.zeros(placement.shape(shape), dtype=dtype, device=device)
        if device.type == "meta":
            return tensor
        at, axis = 0, placement.axis
        for start, stop in placement.ranges:
            for first, chunk in _chunks(f"{seed} {layer} {name}", name, shape, axis, start, stop, tensor):
                low, high = max(start, first), min(stop, first + chunk.shape[axis])
                tensor.narrow(axis, at, high - low).copy_(chunk.narrow(axis, low - first, high - low))
                at += high - low
        return tensor

    return build_weights(architecture, draw)


def _chunks(
    key: str, name: str, shape: Shape, axis: int, start: int, stop: int, like: torch.Tensor
) -> Iterator[tuple[int, torch.Tensor]]:
    """(place of its first element along the axis, values) of each chunk of a weight that start to stop lie in."""
    step = max(CHUNK * shape[axis] // math.prod(shape), 1)
    mean, std = (0.0, shape[-1] ** -0.5) if len(shape) > 1 else (float(name.endswith("norm")), _BIAS_STD)
    generator = torch.Generator(like.device)
    for first in range(start // step * step, stop, step):
        generator.manual_seed(_seed_of(f"{key} {first}"))
        length = min(step, shape[axis] - first)
        chunk = like.new_empty(*shape[:axis], length, *shape[axis + 1 :])
        yield first, chunk.normal_(mean, std, generator=generator)


def _seed_of(key: str) -> int:
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "little") >> 1
