"""What a tensor must be before a kernel sees it: rank, shape, type, device and stride, with expected and got.

Every check reads attributes only: none waits for a device. They run before anything is written or launched, so a
refused call has changed nothing. Shape letters as in `engine.attention`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
"""Types of Q, K and V that anything here computes with."""
FP8 = torch.float8_e4m3fn
"""Type of a cache that is stored with scales, and computed with in another one."""


class AttentionInputError(ValueError):
    """An argument that attention cannot work with; nothing was written or launched."""


def short(dtype: torch.dtype) -> str:
    """`float16` for torch.float16."""
    return str(dtype).removeprefix("torch.")


def shown(shape: Sequence[int | str]) -> str:
    """`[T, 32, 128]`."""
    return "[" + ", ".join(str(size) for size in shape) + "]"


def check_count(what: str, value: Any, least: int = 0, most: int | None = None) -> None:
    """A whole number, `least` to `most`; neither a float nor a bool."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or value < least or (most is not None and value > most):
        bounds = f"a whole number of at least {least}" if most is None else f"{least} to {most}"
        raise AttentionInputError(f"{what}: expected {bounds}, got {value!r}")


def check_tensor(what: str, value: Any) -> None:
    """A torch tensor."""
    if not isinstance(value, torch.Tensor):
        raise AttentionInputError(f"{what}: expected a torch.Tensor, got {type(value).__name__}")


def check_rank(what: str, tensor: torch.Tensor, rank: int, letters: str) -> None:
    """The number of axes; `letters` names them in the message."""
    check_tensor(what, tensor)
    if tensor.dim() != rank:
        raise AttentionInputError(
            f"{what}: expected {rank} axes {letters}, got {tensor.dim()} axes {shown(tensor.shape)}"
        )


def check_shape(what: str, tensor: torch.Tensor, expected: Sequence[int | str]) -> None:
    """Every axis; a letter in `expected` matches any size."""
    check_tensor(what, tensor)
    matches = tensor.dim() == len(expected) and all(
        isinstance(size, str) or size == got for size, got in zip(expected, tensor.shape, strict=True)
    )
    if not matches:
        raise AttentionInputError(f"{what}: expected shape {shown(expected)}, got {shown(tensor.shape)}")


def check_dtype(what: str, tensor: torch.Tensor, expected: Collection[torch.dtype]) -> None:
    """One of the types."""
    if tensor.dtype not in expected:
        names = " or ".join(short(dtype) for dtype in expected)
        raise AttentionInputError(f"{what}: expected {names}, got {short(tensor.dtype)}")


def check_same_device(**tensors: torch.Tensor) -> None:
    """All tensors where the first one is."""
    first, *others = tensors.items()
    for name, tensor in others:
        if tensor.device != first[1].device:
            raise AttentionInputError(f"{name}: expected on {first[1].device} as {first[0]}, got {tensor.device}")


def check_inner_stride(what: str, tensor: torch.Tensor) -> None:
    """The innermost axis (the head size) contiguous: kernels load vectors along it. One element has no stride."""
    if tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
        raise AttentionInputError(
            f"{what}: expected stride 1 in the innermost axis (head size), got stride {tensor.stride(-1)} "
            f"of strides {shown(tensor.stride())}"
        )


def check_places(what: str, tensor: torch.Tensor) -> None:
    """What is to be written has a place in memory for each of its elements, as no expanded tensor has."""
    end = 1
    axes = zip(tensor.stride(), tensor.shape, strict=True)
    for stride, size in sorted((stride, size) for stride, size in axes if size > 1):
        if stride < end:
            raise AttentionInputError(
                f"{what}: expected a place in memory for each element, got shape {shown(tensor.shape)} "
                f"with strides {shown(tensor.stride())}"
            )
        end += stride * (size - 1)


def check_heads(num_heads: int, num_kv_heads: int) -> None:
    """Query heads split evenly over KV heads (grouped-query attention)."""
    check_count("heads: query heads", num_heads)
    check_count("heads: KV heads", num_kv_heads)
    if num_kv_heads < 1 or num_heads < 1 or num_heads % num_kv_heads:
        raise AttentionInputError(
            f"heads: expected a number of query heads that is a multiple of the {num_kv_heads} KV heads, "
            f"got {num_heads}"
        )


def check_index(what: str, tensor: torch.Tensor, expected: Sequence[int | str], dtype: torch.dtype) -> None:
    """A table of integers: shape, type, and contiguous in its last axis."""
    check_shape(what, tensor, expected)
    check_dtype(what, tensor, (dtype,))
    check_inner_stride(what, tensor)


def check_scale(scale: float, window: int, soft_cap: float) -> None:
    """A finite scale above zero; a window and a soft-cap of zero or more (0: without)."""
    if not _is_real(scale) or not 0.0 < scale < float("inf"):
        raise AttentionInputError(f"scale: expected a finite number above 0, got {scale!r}")
    if not isinstance(window, int) or isinstance(window, bool) or window < 0:
        raise AttentionInputError(f"window: expected 0 (none) or a number of tokens above 0, got {window!r}")
    if not _is_real(soft_cap) or not 0.0 <= soft_cap < float("inf"):
        raise AttentionInputError(f"soft_cap: expected 0 (none) or a finite number above 0, got {soft_cap!r}")


def _is_real(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_caches(k_cache: torch.Tensor, v_cache: torch.Tensor, dtypes: Collection[torch.dtype] = FLOATS) -> None:
    """K [NB, BS, KH, D] and V [NB, BS, KH, DV], strided views of one type; DV differs from D only for MLA."""
    check_rank("k_cache", k_cache, 4, "[NB, BS, KH, D]")
    if not k_cache.shape[2] or not k_cache.shape[3]:
        raise AttentionInputError(f"k_cache: expected at least one KV head and element, got {shown(k_cache.shape)}")
    check_shape("v_cache", v_cache, (*k_cache.shape[:3], "DV"))
    check_dtype("k_cache", k_cache, dtypes)
    check_dtype("v_cache", v_cache, (k_cache.dtype,))
    check_inner_stride("k_cache", k_cache)
    check_inner_stride("v_cache", v_cache)
    check_same_device(k_cache=k_cache, v_cache=v_cache)


def check_queries(q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, out: torch.Tensor | None) -> None:
    """Q [T, H, D] against checked caches, and where the output [T, H, DV] goes, if it is given."""
    check_shape("q", q, ("T", "H", k_cache.shape[3]))
    check_heads(q.shape[1], k_cache.shape[2])
    check_dtype("q", q, _around(k_cache.dtype))
    check_inner_stride("q", q)
    check_same_device(k_cache=k_cache, q=q)
    if out is not None:
        check_shape("out", out, (*q.shape[:2], v_cache.shape[3]))
        check_dtype("out", out, (q.dtype,))
        check_inner_stride("out", out)
        check_places("out", out)
        check_same_device(k_cache=k_cache, out=out)


def _around(stored: torch.dtype) -> Collection[torch.dtype]:
    """Types of Q, K and V beside a cache: its own, or any beside FP8."""
    return FLOATS if stored == FP8 else (stored,)


def check_table(block_table: torch.Tensor, seq_lens: torch.Tensor, block_size: int, max_seq_len: int) -> None:
    """block_table [S, max_blocks] int32 and seq_lens [S] int32; rows wide enough for the longest sequence."""
    check_count("block_size", block_size, 1)
    check_count("max_seq_len", max_seq_len)
    check_index("block_table", block_table, ("S", "max_blocks"), torch.int32)
    check_index("seq_lens", seq_lens, (block_table.shape[0],), torch.int32)
    check_same_device(block_table=block_table, seq_lens=seq_lens)
    if max_seq_len > block_table.shape[1] * block_size:
        raise AttentionInputError(
            f"block_table: expected rows for max_seq_len={max_seq_len} tokens, "
            f"got {block_table.shape[1]} blocks of {block_size} = {block_table.shape[1] * block_size} slots"
        )


def check_write(
    k: torch.Tensor, v: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, slot_mapping: torch.Tensor
) -> None:
    """K [T, KH, D] and V [T, KH, DV] of a step, and slot_mapping [T] int64, against checked caches."""
    check_count("block_size", k_cache.shape[1], 1)
    check_places("k_cache", k_cache)
    check_places("v_cache", v_cache)
    check_shape("k", k, ("T", *k_cache.shape[2:]))
    check_shape("v", v, (k.shape[0], *v_cache.shape[2:]))
    for name, tensor in (("k", k), ("v", v)):
        check_dtype(name, tensor, _around(k_cache.dtype))
        check_inner_stride(name, tensor)
    check_index("slot_mapping", slot_mapping, (k.shape[0],), torch.int64)
    check_same_device(k_cache=k_cache, k=k, v=v, slot_mapping=slot_mapping)
