"""Launchers of multi-head latent attention with absorbed queries: decodes, and chunks of prompts.

Neither waits for the device nor reads it, so that a call can be captured in a CUDA graph and replayed with other
lengths up to `max_seq_len`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from engine.attention.checks import check_count, check_same_device
from engine.attention.kernels.device import capability, launches_early, multiprocessors, on_device, upcast
from engine.attention.kernels.inputs import (
    check_kind,
    check_one_query_each,
    check_query_starts,
    check_workspace,
    padded,
    score_factors,
    with_an_entry,
)
from engine.attention.kernels.inputs_mla import LatentMatrix, check_latents
from engine.attention.kernels.launch_decode import launched
from engine.attention.kernels.mla import mla_decode_kernel, mla_prefill_kernel, mla_reduce_kernel
from engine.attention.kernels.pages import Mode, Pages
from engine.attention.kernels.plan import Cut, DecodePlan, plan_decode
from engine.attention.kernels.tuning import DecodeShape
from engine.attention.kernels.tuning_mla import (
    MLADecodeConfig,
    MLAPrefillConfig,
    mla_decode_config,
    mla_prefill_config,
)

PIECES_AT_ONCE = 8
"""Pieces that a program of the reduction loads together."""
REDUCING_PROGRAMS = 1024
"""Programs of the reduction from which each takes several heads: where nothing is split they have nothing to do."""


@dataclass(frozen=True, slots=True)
class MLAPlan:
    """Made by `plan_mla` for one batch of lengths; valid until they change, for all layers of one shape."""

    config: MLADecodeConfig
    pieces: DecodePlan


def plan_mla(seq_lens: torch.Tensor, shape: DecodeShape, config: MLADecodeConfig) -> MLAPlan:
    """The pieces of a batch; seq_lens [S] int32, at most shape.max_seq_len. AttentionInputError for another S."""
    return MLAPlan(config, plan_decode(seq_lens, shape, config.cut, block_m=config.block_m))


def mla_shape_of(q: torch.Tensor, rank: int, max_seq_len: int, block_size: int) -> DecodeShape:
    """What the tuning rules read of a call; q [T, H, latent]: the latents are one KV head with V of `rank` elements."""
    num_seqs, num_heads, _ = q.shape
    device = multiprocessors(q.device), capability(q.device)
    return DecodeShape(num_seqs, 1, num_heads, rank, q.element_size(), max_seq_len, block_size, *device)


def chosen_decode(q: torch.Tensor, kv_cache: torch.Tensor, rank: int, max_seq_len: int) -> MLADecodeConfig:
    """The rule's configuration: Hopper's own kernel where it takes such a call, else the portable one."""
    shape = mla_shape_of(q, rank, max_seq_len, kv_cache.shape[1])
    hopper = False
    if q.is_cuda and shape.capability // 10 == 9:
        from engine.attention.kernels import launch_mla_hopper

        hopper = launch_mla_hopper.takes(q, kv_cache, rank)
    return mla_decode_config(shape, rotary=q.shape[2] - rank, hopper=hopper)


def mla_decode(
    q: torch.Tensor,
    kv_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    *,
    rank: int,
    scale: float,
    max_seq_len: int,
    out: torch.Tensor | None = None,
    workspace: torch.Tensor | None = None,
    plan: MLAPlan | None = None,
    config: MLADecodeConfig | None = None,
) -> torch.Tensor:
    """Attention of one absorbed query token a sequence over its latents, all query heads over the same ones.

    q [S, H, latent]; kv_cache [NB, BS, latent], V its first `rank` elements; block_table [S, max_blocks] int32;
    seq_lens [S] int32, at most max_seq_len; a sequence of length 0 gets zeros. `workspace`, `plan` and `config` as in
    `decode_attention`. Returns `out` [S, H, rank], written in place. AttentionInputError before anything is launched.
    """
    check_latents(q, kv_cache, block_table, seq_lens, rank=rank, max_seq_len=max_seq_len, out=out)
    check_one_query_each(q, seq_lens)
    check_kind("plan", plan, MLAPlan)
    check_kind("config", config, MLADecodeConfig)
    factor = score_factors(scale, 0, 0.0)
    shape = mla_shape_of(q, rank, max_seq_len, kv_cache.shape[1])
    if plan is not None:
        plan.pieces.check(shape, 0, config.cut if config else None)
        check_same_device(q=q, plan=plan.pieces.items)
    config = plan.config if plan else config or chosen_decode(q, kv_cache, rank, max_seq_len)
    cut = plan.pieces.cut if plan else Cut.of(shape, config.cut, 0, config.block_m)
    if workspace is not None:
        check_workspace(workspace, cut.floats, q)
    call = _Decode(factor, rank, config, plan or plan_mla(seq_lens, shape, config))
    return call.launch(q, kv_cache, with_an_entry(block_table), seq_lens, out, workspace)


@dataclass(frozen=True, slots=True)
class _Decode:
    """A checked call but for its tensors."""

    scale: float
    rank: int
    config: MLADecodeConfig
    plan: MLAPlan

    def launch(
        self,
        q: torch.Tensor,
        kv_cache: torch.Tensor,
        table: torch.Tensor,
        seq_lens: torch.Tensor,
        out: torch.Tensor | None,
        workspace: torch.Tensor | None,
    ) -> torch.Tensor:
        """Pieces, then their reduction where any sequence may have several."""
        num_seqs, num_heads, _ = q.shape
        out = q.new_empty(num_seqs, num_heads, self.rank) if out is None else out
        if num_seqs == 0:
            return out
        cut = self.plan.pieces.cut
        if workspace is None:
            workspace = torch.empty(cut.floats, dtype=torch.float32, device=q.device)
        lse = workspace[cut.max_items * num_heads * self.rank if cut.split else 0 :]
        if self.config.kernel != "portable":
            from engine.attention.kernels import launch_mla_hopper

            launch_mla_hopper.launch(
                q,
                kv_cache,
                table,
                seq_lens,
                out,
                workspace,
                lse,
                self.plan.pieces,
                self.rank,
                self.scale,
            )
        else:
            self._portable(q, kv_cache, table, seq_lens, out, workspace, lse)
        if cut.split:
            heads = max(1, num_seqs * num_heads // REDUCING_PROGRAMS)
            with on_device(q):
                mla_reduce_kernel[(num_seqs, -(-num_heads // heads))](
                    self.plan.pieces.seqs, out, workspace, lse, out.stride(0), out.stride(1), num_heads, heads,
                    **reduce_options(self.rank, early=launches_early(q)),
                )  # fmt: skip
        return out

    def _portable(
        self,
        q: torch.Tensor,
        kv_cache: torch.Tensor,
        table: torch.Tensor,
        seq_lens: torch.Tensor,
        out: torch.Tensor,
        part: torch.Tensor,
        lse: torch.Tensor,
    ) -> None:
        config, cut = self.config, self.plan.pieces.cut
        rotary = q.shape[2] - self.rank
        pages = Pages.of(kv_cache.shape[1], config.cut.block_n)
        matrix = matrix_of(kv_cache, self.rank, pages) if config.use_tma else None
        descriptors = _descriptors(kv_cache, matrix, config.cut.block_n, self.rank)
        with on_device(q):
            mla_decode_kernel[(cut.grid_heads, cut.max_items)](
                q, kv_cache, *descriptors, table, seq_lens, self.plan.pieces.items, out, part, lse,
                q.stride(0), q.stride(1), kv_cache.stride(0), kv_cache.stride(1), table.stride(0),
                out.stride(0), out.stride(1), matrix.rows_per_block if matrix else 0, self.scale, q.shape[1],
                pages.block_size, pages.shift,
                **decode_options(
                    config, self.rank, rotary, pages.mode, split=cut.split, tma=matrix is not None,
                    upcast=upcast(mla_decode_kernel, q.dtype),
                ),
            )  # fmt: skip


def mla_prefill(
    q: torch.Tensor,
    kv_cache: torch.Tensor,
    block_table: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    *,
    rank: int,
    scale: float,
    max_query_len: int,
    max_seq_len: int,
    out: torch.Tensor | None = None,
    config: MLAPrefillConfig | None = None,
) -> torch.Tensor:
    """Causal attention of absorbed queries, the last query_start_loc[s + 1] - query_start_loc[s] tokens of each s.

    q [T, H, latent], sequences end to end; kv_cache holds all seq_lens[s] tokens already, the queries' own included;
    the rest as in `mla_decode` and `prefill_attention`. Returns `out` [T, H, rank]; rows of tokens outside every
    sequence are left alone. AttentionInputError before anything is launched.
    """
    check_latents(q, kv_cache, block_table, seq_lens, rank=rank, max_seq_len=max_seq_len, out=out)
    check_query_starts(query_start_loc, seq_lens, max_query_len)
    check_count("max_query_len", max_query_len)
    check_kind("config", config, MLAPrefillConfig)
    factor = score_factors(scale, 0, 0.0)
    num_tokens, num_heads, latent = q.shape
    shape = mla_shape_of(q, rank, max_seq_len, kv_cache.shape[1])
    config = config or mla_prefill_config(shape, rotary=latent - rank)
    out = q.new_empty(num_tokens, num_heads, rank) if out is None else out
    block_table, num_seqs = with_an_entry(block_table), seq_lens.shape[0]
    heads = min(config.block_m, padded(num_heads))
    queries = config.block_m // heads
    tiles = min(num_seqs * -(-max_query_len // queries), num_tokens // queries + num_seqs)
    if tiles == 0:
        return out
    pages = Pages.of(kv_cache.shape[1], config.block_n)
    with on_device(q):
        mla_prefill_kernel[(-(-num_heads // heads), tiles)](
            q, kv_cache, block_table, query_start_loc, seq_lens, out,
            q.stride(0), q.stride(1), kv_cache.stride(0), kv_cache.stride(1), block_table.stride(0),
            out.stride(0), out.stride(1), factor, num_seqs, num_heads, pages.block_size, pages.shift,
            **prefill_options(
                config, rank, latent - rank, heads, pages.mode, upcast=upcast(mla_prefill_kernel, q.dtype)
            ),
        )  # fmt: skip
    return out


def matrix_of(kv_cache: torch.Tensor, rank: int, pages: Pages) -> LatentMatrix | None:
    """Where whole tiles can be loaded by descriptor: tiles within blocks, both parts powers of two, whole vectors."""
    rotary = kv_cache.shape[2] - rank
    if not pages.whole_tiles or padded(rank) != rank or padded(rotary) != rotary:
        return None
    return LatentMatrix.of(kv_cache)


def _descriptors(kv_cache: torch.Tensor, matrix: LatentMatrix | None, block_n: int, rank: int) -> tuple[Any, Any]:
    """Of V's part and of the rotary part; without a matrix the cache itself, twice."""
    if matrix is None:
        return kv_cache, kv_cache
    rotary = kv_cache.shape[2] - rank
    return matrix.descriptor(kv_cache, block_n, rank), matrix.descriptor(kv_cache, block_n, rotary)


def _sizes(rank: int, rotary: int) -> dict[str, Any]:
    return {"RANK": rank, "BLOCK_R": padded(rank), "ROTARY": rotary, "BLOCK_ROT": padded(rotary)}


def decode_options(
    config: MLADecodeConfig, rank: int, rotary: int, mode: Mode, *, split: bool, tma: bool, upcast: bool = False
) -> dict[str, Any]:
    """What is compiled into mla_decode_kernel."""
    cut = config.cut
    tile = {"BLOCK_M": config.block_m, "BLOCK_N": cut.block_n, "NUM_STAGES": cut.num_stages, "PAGES": mode}
    switches = {"TMA": tma, "SPLIT": split, "UPCAST": upcast}
    return _sizes(rank, rotary) | tile | switches | {"num_warps": cut.num_warps, "num_stages": cut.num_stages}


def prefill_options(
    config: MLAPrefillConfig, rank: int, rotary: int, heads: int, mode: Mode, *, upcast: bool = False
) -> dict[str, Any]:
    """What is compiled into mla_prefill_kernel; `heads`: of a program."""
    tile = {"HEADS": heads, "BLOCK_M": config.block_m, "BLOCK_N": config.block_n, "NUM_STAGES": config.num_stages}
    switches = {"PAGES": mode, "UPCAST": upcast}
    return _sizes(rank, rotary) | tile | switches | {"num_warps": config.num_warps, "num_stages": config.num_stages}


def reduce_options(rank: int, *, early: bool) -> dict[str, Any]:
    """What is compiled into mla_reduce_kernel; `early`: programmatic dependent launch."""
    options = {"D": rank, "BLOCK_D": padded(rank), "BLOCK_P": PIECES_AT_ONCE, "EARLY": early, "num_warps": 4}
    return options | launched(early)
