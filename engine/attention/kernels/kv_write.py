"""Writing a step's K and V into the cache by slot_mapping, both in one launch (vLLM's `reshape_and_cache_flash`)."""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from engine.attention.checks import check_caches, check_dtype, check_write
from engine.attention.kernels.device import on_device
from engine.attention.kernels.fp8 import NOT_FP8, fp8_of, quantized, scales_of
from engine.attention.kernels.inputs import DTYPES, STORED, check_same_strides
from engine.attention.kernels.pages import Mode, Pages
from engine.attention.kernels.tuning import WriteConfig, write_config
from engine.attention.kv_scales import KVScales, as_bytes, check_scales


@triton.jit(do_not_specialize=["num_tokens", "block_size", "block_shift"])
def write_kernel(
    K, V, K_CACHE, V_CACHE, K_SCALE, V_SCALE, SLOTS, k_t, k_h, v_t, v_h, kv_b, kv_t, kv_h, num_tokens, block_size,
    block_shift,
    D: tl.constexpr, ELEMENTS: tl.constexpr, TOKENS: tl.constexpr, BLOCK_E: tl.constexpr, PAGES: tl.constexpr,
    FP8: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """Grid (ceil(T / TOKENS), ceil(KH * D / BLOCK_E)): a tile of tokens x elements of K and of V a program. FP8: the
    caches are bytes of E4M3, K_SCALE and V_SCALE float32 [KH]; otherwise nobody looks at these."""
    tokens = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    slots = tl.load(SLOTS + tokens, mask=tokens < num_tokens, other=-1)
    elements = tl.program_id(1) * BLOCK_E + tl.arange(0, BLOCK_E)
    heads = (elements // D)[None, :]
    dims = (elements % D)[None, :]
    mask = (tokens < num_tokens)[:, None] & (elements < ELEMENTS)[None, :]
    far = tokens.to(tl.int64)[:, None]
    k = tl.load(K + far * k_t + heads * k_h + dims, mask=mask)  # before the slots are known: one latency, not two
    v = tl.load(V + far * v_t + heads * v_h + dims, mask=mask)
    mask = mask & (slots >= 0)[:, None]
    if PAGES == "shift":
        block = slots >> block_shift
        slot = slots & (block_size - 1)
    else:
        block = slots // block_size
        slot = slots % block_size
    if FP8:
        known = (elements < ELEMENTS)[None, :]
        k = quantized(k.to(tl.float32), tl.load(K_SCALE + heads, mask=known, other=1.0), NATIVE)
        v = quantized(v.to(tl.float32), tl.load(V_SCALE + heads, mask=known, other=1.0), NATIVE)
    to = (block * kv_b + slot * kv_t)[:, None] + heads * kv_h + dims
    tl.store(K_CACHE + to, k, mask=mask)
    tl.store(V_CACHE + to, v, mask=mask)


def write_kv(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    *,
    scales: KVScales | None = None,
    config: WriteConfig | None = None,
) -> None:
    """k, v [T, KH, D] go to slots slot_mapping [T] int64 of k_cache, v_cache [NB, BS, KH, D]; slot < 0: nowhere.

    Slots are distinct and inside the cache (contents are not read here); bits are copied as they are, or quantized by
    `scales` where the cache is FP8. The caches are views of equal strides, k and v have strides of their own.
    AttentionInputError before anything is launched.
    """
    check_caches(k_cache, v_cache, STORED)
    check_same_strides(k_cache, v_cache)
    check_scales(k_cache, scales)
    check_write(k, v, k_cache, v_cache, slot_mapping)
    check_dtype("k", k, DTYPES)
    check_dtype("v", v, (k.dtype,))
    num_tokens, num_heads, head_size = k.shape
    if num_tokens == 0:
        return
    config = config or write_config(num_tokens, num_heads * head_size)
    pages = Pages.of_slots(k_cache.shape[1])
    grid = (-(-num_tokens // config.tokens), -(-num_heads * head_size // config.block_elements))
    with on_device(k):
        write_kernel[grid](
            k, v, as_bytes(k_cache), as_bytes(v_cache), *scales_of(scales, k), slot_mapping, k.stride(0), k.stride(1),
            v.stride(0), v.stride(1), k_cache.stride(0), k_cache.stride(1), k_cache.stride(2), num_tokens,
            pages.block_size, pages.shift,
            **write_options(config, head_size, num_heads, pages.mode, fp8=fp8_of(write_kernel, k_cache)),
        )  # fmt: skip


def write_options(
    config: WriteConfig, head_size: int, num_heads: int, mode: Mode, *, fp8: dict[str, bool] = NOT_FP8
) -> dict[str, Any]:
    """What is compiled into write_kernel; `fp8` as `fp8_of`."""
    return {
        "D": head_size,
        "ELEMENTS": num_heads * head_size,
        "TOKENS": config.tokens,
        "BLOCK_E": config.block_elements,
        "PAGES": mode,
        "num_warps": config.num_warps,
        **fp8,
    }
