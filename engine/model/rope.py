"""Rotary positions: which frequencies a model turns its queries and keys with, and the table of their cos and sin.

Su et al., "RoFormer", section 3.2. Of the ways to stretch a context, `linear` (Chen et al., "Extending context window
of large language models via positional interpolation"), `llama3` (Llama 3.1's) and `yarn` (Peng et al., "YaRN", as
transformers computes it) are done; any other is refused by name. Which elements turn together is the model's choice:
element i with element i + D/2 (GPT-NeoX), or 2i with 2i + 1 (DeepSeek).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

DEFAULT_THETA = 10_000.0
"""The base where a configuration names none, as transformers has it."""

_LLAMA3 = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
_YARN = ("factor", "original_max_position_embeddings")
_YARN_MAY = ("beta_fast", "beta_slow", "mscale", "mscale_all_dim", "attention_factor", "truncate")
_SCALING_KEYS = {"default": (), "linear": ("factor",), "llama3": _LLAMA3, "yarn": _YARN}
_ALWAYS = ("rope_type", "type", "rope_theta", "partial_rotary_factor")


@dataclass(frozen=True, slots=True)
class Rope:
    """Base and stretching of a model's rotary positions."""

    theta: float = DEFAULT_THETA
    scaling: str = "default"
    """`default`, `linear`, `llama3` or `yarn`."""
    factor: float = 1.0
    """How far the context is stretched."""
    low_freq_factor: float = 1.0
    """llama3: waves longer than original_length / this are stretched in full."""
    high_freq_factor: float = 4.0
    """llama3: waves shorter than original_length / this are left alone; a ramp lies between the two."""
    original_length: int = 0
    """llama3, yarn: tokens of the context before it was stretched."""
    beta_fast: float = 32.0
    """yarn: pairs that turn more often than this over original_length are left alone."""
    beta_slow: float = 1.0
    """yarn: those that turn less often than this are stretched in full; a ramp over pairs lies between the two."""
    truncate: bool = True
    """yarn: the ends of the ramp are whole numbers of pairs."""
    magnitude: float = 1.0
    """yarn: factor of cos and sin, and so its square of the scores."""

    def frequencies(self, head_size: int) -> torch.Tensor:
        """Radians a position of each pair, [D/2] float32 on the CPU."""
        exponents = torch.arange(0, head_size, 2, dtype=torch.float32) / head_size
        plain = 1.0 / (self.theta**exponents)
        match self.scaling:
            case "linear":
                return plain / self.factor
            case "llama3":
                return self._llama3(plain)
            case "yarn":
                return self._yarn(plain)
            case _:
                return plain

    def cos_sin(self, num_positions: int, head_size: int, device: torch.device | str = "cpu") -> torch.Tensor:
        """[num_positions, D] float32; row p is cos of the D/2 angles of position p, then their sin, by `magnitude`."""
        positions = torch.arange(num_positions, dtype=torch.float32, device=device)
        angles = torch.outer(positions, self.frequencies(head_size).to(device))
        return torch.cat((angles.cos(), angles.sin()), dim=1) * self.magnitude

    def _llama3(self, plain: torch.Tensor) -> torch.Tensor:
        """Long waves stretched, short ones not, those between by a ramp over original_length / wavelength."""
        turns = self.original_length * plain / (2 * math.pi)
        ramp = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        kept = ramp.clamp(0.0, 1.0)
        return plain * kept + plain / self.factor * (1.0 - kept)

    def _yarn(self, plain: torch.Tensor) -> torch.Tensor:
        """Pairs that turn often left alone, those that turn seldom stretched, a ramp over pairs between."""
        size = 2 * len(plain)

        def pair_that_turns(times: float) -> float:
            return size * math.log(self.original_length / (times * 2 * math.pi)) / (2 * math.log(self.theta))

        low, high = pair_that_turns(self.beta_fast), pair_that_turns(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, size - 1)
        if low == high:
            high += 0.001  # transformers' way out of a ramp without a length
        stretched = ((torch.arange(len(plain), dtype=torch.float32) - low) / (high - low)).clamp(0.0, 1.0)
        return plain / self.factor * stretched + plain * (1.0 - stretched)


def yarn_magnitude(factor: float, mscale: float = 1.0) -> float:
    """YaRN's growth of magnitudes with the stretch of the context, 0.1 m ln(s) + 1 (section 3.4; m: DeepSeek-V2)."""
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


def rope_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a config.json says of its rotary positions: `rope_parameters` of transformers 5, or rope_theta and
    rope_scaling."""
    found: dict[str, Any] = {"rope_theta": config.get("rope_theta"), **(config.get("rope_scaling") or {})}
    return found | (config.get("rope_parameters") or {})


def read_rope(config: Mapping[str, Any], source: str) -> Rope:
    """The rotary positions of a config.json.

    ValueError for a kind that is not done here, for keys of one that is missing or not understood, and for a rotation
    of only a part of the head.
    """
    found = rope_settings(config)
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
    known = {*wanted, *_ALWAYS, "original_max_position_embeddings", *(_YARN_MAY if kind == "yarn" else ())}
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
    if kind == "yarn":
        return _yarn(found, theta, number, source)
    factor, low, high, length = (number(key, 1.0) for key in _LLAMA3)
    return Rope(theta, kind, factor, low, high, int(length))


def _yarn(found: Mapping[str, Any], theta: float, number: Callable[[str, float], float], source: str) -> Rope:
    """With transformers' defaults; a 0 stands for them where that is so there."""

    def optional(key: str, default: float) -> float:
        return number(key, default) if found.get(key) else default

    factor, length = number("factor", 1.0), number("original_max_position_embeddings", 1.0)
    fast, slow = optional("beta_fast", 32.0), optional("beta_slow", 1.0)
    mscale, all_dims, truncate = optional("mscale", 0.0), optional("mscale_all_dim", 0.0), found.get("truncate", True)
    if not isinstance(truncate, bool):
        raise ValueError(f"{source}: expected true or false as truncate, got {truncate!r}")
    for what, low, high in (("rope_theta", 1.0, theta), ("beta_fast", slow, fast)):
        if high <= low:
            raise ValueError(f"{source}: rope type 'yarn': expected {what} above {low}, got {high}")
    own = yarn_magnitude(factor)
    if mscale and all_dims:
        own = yarn_magnitude(factor, mscale) / yarn_magnitude(factor, all_dims)
    return Rope(
        theta, "yarn", factor, original_length=int(length), beta_fast=fast, beta_slow=slow, truncate=truncate,
        magnitude=number("attention_factor", own),
    )  # fmt: skip
