"""Rotary positions: which frequencies a model turns its queries and keys with, and the table of their cos and sin.

Su et al., "RoFormer", section 3.2, in the half-split order of GPT-NeoX: element i turns with element i + D/2. Of the
ways to stretch a context, `linear` (Chen et al., "Extending context window of large language models via positional
interpolation") and `llama3` (Llama 3.1's) are done; any other is refused by name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

DEFAULT_THETA = 10_000.0
"""The base where a configuration names none, as transformers has it."""

_LLAMA3 = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
_SCALING_KEYS = {"default": (), "linear": ("factor",), "llama3": _LLAMA3}
_ALWAYS = ("rope_type", "type", "rope_theta", "partial_rotary_factor")


@dataclass(frozen=True, slots=True)
class Rope:
    """Base and stretching of a model's rotary positions."""

    theta: float = DEFAULT_THETA
    scaling: str = "default"
    """`default`, `linear` or `llama3`."""
    factor: float = 1.0
    """How far the context is stretched."""
    low_freq_factor: float = 1.0
    """llama3: waves longer than original_length / this are stretched in full."""
    high_freq_factor: float = 4.0
    """llama3: waves shorter than original_length / this are left alone; a ramp lies between the two."""
    original_length: int = 0
    """llama3: tokens of the context before it was stretched."""

    def frequencies(self, head_size: int) -> torch.Tensor:
        """Radians a position of each pair, [D/2] float32 on the CPU."""
        exponents = torch.arange(0, head_size, 2, dtype=torch.float32) / head_size
        plain = 1.0 / (self.theta**exponents)
        match self.scaling:
            case "linear":
                return plain / self.factor
            case "llama3":
                return self._llama3(plain)
            case _:
                return plain

    def cos_sin(self, num_positions: int, head_size: int, device: torch.device | str = "cpu") -> torch.Tensor:
        """[num_positions, D] float32; row p is cos of the D/2 angles of position p, then their sin."""
        positions = torch.arange(num_positions, dtype=torch.float32, device=device)
        angles = torch.outer(positions, self.frequencies(head_size).to(device))
        return torch.cat((angles.cos(), angles.sin()), dim=1)

    def _llama3(self, plain: torch.Tensor) -> torch.Tensor:
        """Long waves stretched, short ones not, those between by a ramp over original_length / wavelength."""
        turns = self.original_length * plain / (2 * math.pi)
        ramp = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        kept = ramp.clamp(0.0, 1.0)
        return plain * kept + plain / self.factor * (1.0 - kept)


def read_rope(config: Mapping[str, Any], source: str) -> Rope:
    """The rotary positions of a config.json: `rope_parameters` of transformers 5, or rope_theta and rope_scaling.

    ValueError for a kind that is not done here, for keys of one that is missing or not understood, and for a rotation
    of only a part of the head.
    """
    found: dict[str, Any] = {"rope_theta": config.get("rope_theta"), **(config.get("rope_scaling") or {})}
    found |= config.get("rope_parameters") or {}
    found.setdefault("partial_rotary_factor", config.get("partial_rotary_factor"))
    kind = found.get("rope_type") or found.get("type") or "default"
    if kind not in _SCALING_KEYS:
        raise ValueError(
            f"{source}: rope type {kind!r} is not done here; expected one of {', '.join(map(repr, _SCALING_KEYS))}"
        )
    _check_keys(found, kind, source)
    rope = _rope(found, kind, source)
    if kind == "llama3" and rope.high_freq_factor <= rope.low_freq_factor:
        raise ValueError(
            f"{source}: rope type 'llama3': expected high_freq_factor above low_freq_factor={rope.low_freq_factor}, "
            f"got {rope.high_freq_factor}"
        )
    return rope


def _check_keys(found: Mapping[str, Any], kind: str, source: str) -> None:
    wanted = _SCALING_KEYS[kind]
    missing = [key for key in wanted if found.get(key) is None]
    if missing:
        raise ValueError(f"{source}: rope type {kind!r} without {', '.join(missing)}")
    # Some files name the context before stretching beside `default` and `linear`, which do not read it.
    known = {*wanted, *_ALWAYS, "original_max_position_embeddings"}
    unknown = [key for key, value in found.items() if key not in known and value is not None]
    if unknown:
        shown = ", ".join(f"{key}={found[key]!r}" for key in unknown)
        raise ValueError(f"{source}: rope type {kind!r} with {shown}, which is not done here")
    part = found.get("partial_rotary_factor")
    if part is not None and part != 1.0:
        raise ValueError(f"{source}: partial_rotary_factor={part!r} is not done here; expected 1.0 or none")


def _rope(found: Mapping[str, Any], kind: str, source: str) -> Rope:
    def number(key: str, default: float) -> float:
        value = found.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise ValueError(f"{source}: expected a positive number as {key}, got {value!r}")
        return float(value)

    theta = number("rope_theta", DEFAULT_THETA)
    if kind == "default":
        return Rope(theta)
    if kind == "linear":
        return Rope(theta, kind, number("factor", 1.0))
    factor, low, high, length = (number(key, 1.0) for key in _LLAMA3)
    return Rope(theta, kind, factor, low, high, int(length))
