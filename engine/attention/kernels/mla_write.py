"""Writing a step's latents into the cache by slot_mapping (vLLM's `concat_and_cache_mla`)."""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from engine.attention.checks import check_caches, check_rank, check_write
from engine.attention.kernels.device import on_device
from engine.attention.kernels.inputs import DTYPES, padded
from engine.attention.kernels.pages import Mode, Pages


@triton.jit(do_not_specialize=["num_tokens", "block_size", "block_shift"])
def mla_write_kernel(
    C, E, KV_CACHE, SLOTS, c_t, e_t, kv_b, kv_t, num_tokens, block_size, block_shift,
    RANK: tl.constexpr, ROTARY: tl.constexpr, TOKENS: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_ROT: tl.constexpr,
    PAGES: tl.constexpr,
):  # fmt: skip
    """Grid (ceil(T / TOKENS)): both parts of TOKENS latents a program."""
    tokens = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    slots = tl.load(SLOTS + tokens, mask=tokens < num_tokens, other=-1)
    alive = (tokens < num_tokens)[:, None]
    far = tokens.to(tl.int64)[:, None]
    ranks = tl.arange(0, BLOCK_R)[None, :]
    rest = tl.arange(0, BLOCK_ROT)[None, :]
    c = tl.load(C + far * c_t + ranks, mask=alive & (ranks < RANK))  # before the slots are known: one latency, not two
    e = tl.load(E + far * e_t + rest, mask=alive & (rest < ROTARY))
    if PAGES == "shift":
        block = slots >> block_shift
        slot = slots & (block_size - 1)
    else:
        block = slots // block_size
        slot = slots % block_size
    kept = alive & (slots >= 0)[:, None]
    to = KV_CACHE + (block * kv_b + slot * kv_t)[:, None]
    tl.store(to + ranks, c, mask=kept & (ranks < RANK))
    tl.store(to + RANK + rest, e, mask=kept & (rest < ROTARY))


def mla_write(c: torch.Tensor, rotary: torch.Tensor, kv_cache: torch.Tensor, slot_mapping: torch.Tensor) -> None:
    """c [T, 1, rank] and rotary [T, 1, latent - rank] go to slots slot_mapping [T] int64 of kv_cache [NB, BS, latent];
    slot < 0: nowhere. Contents and bits as in `write_kv`. AttentionInputError before anything is launched."""
    check_rank("kv_cache", kv_cache, 3, "[NB, BS, latent]")
    check_rank("c", c, 3, "[T, 1, rank]")
    latents, rank = kv_cache[:, :, None], c.shape[2]
    check_caches(latents, latents, DTYPES)
    check_write(c, rotary, latents[..., :rank], latents[..., rank:], slot_mapping)
    if not len(c):
        return
    pages = Pages.of_slots(kv_cache.shape[1])
    options = mla_write_options(rank, rotary.shape[2], pages.mode)
    with on_device(c):
        mla_write_kernel[(-(-len(c) // options["TOKENS"]),)](
            c, rotary, kv_cache, slot_mapping, c.stride(0), rotary.stride(0), kv_cache.stride(0), kv_cache.stride(1),
            len(c), pages.block_size, pages.shift, **options,
        )  # fmt: skip


def mla_write_options(rank: int, rotary: int, mode: Mode) -> dict[str, Any]:
    """What is compiled into mla_write_kernel: 16 bytes of c a thread at two bytes an element."""
    sizes = {"RANK": rank, "ROTARY": rotary, "BLOCK_R": padded(rank), "BLOCK_ROT": padded(rotary)}
    return sizes | {"TOKENS": 1, "PAGES": mode, "num_warps": max(1, padded(rank) // 256)}
