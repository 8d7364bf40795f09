"""Launchers of prefill attention: the paged kernel and its contiguous twin, the same source with PAGES="contiguous".

Neither waits for the device nor reads it. Descriptors for TMA are made on the host, from the strides of the views.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from engine.attention.checks import FP8, AttentionInputError
from engine.attention.kernels.device import capability, multiprocessors, on_device, upcast
from engine.attention.kernels.fp8 import NOT_FP8, fp8_of, scales_of
from engine.attention.kernels.inputs import (
    check_contiguous,
    check_paged,
    check_query_starts,
    padded,
    score_factors,
    with_an_entry,
)
from engine.attention.kernels.matrix import CacheMatrix
from engine.attention.kernels.pages import Mode, Pages
from engine.attention.kernels.prefill import prefill_kernel
from engine.attention.kernels.tuning import PrefillConfig, PrefillShape, prefill_config
from engine.attention.kv_scales import KVScales, as_bytes

if TYPE_CHECKING:
    from engine.attention.kernels.launch_hopper import HopperConfig


def prefill_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    *,
    scale: float,
    max_query_len: int,
    max_seq_len: int,
    out: torch.Tensor | None = None,
    window: int = 0,
    soft_cap: float = 0.0,
    scales: KVScales | None = None,
    config: PrefillConfig | HopperConfig | None = None,
) -> torch.Tensor:
    """Causal attention of the last query_start_loc[s + 1] - query_start_loc[s] tokens of each sequence s.

    q [T, H, D], sequences end to end; k_cache, v_cache [NB, BS, KH, D], views of equal strides that hold all
    seq_lens[s] tokens already, the queries' own included; block_table [S, max_blocks] int32; query_start_loc [S + 1]
    int32; seq_lens [S] int32. Query lengths may be 0 and 1; a query before position 0 (a padded row of length 0) gets
    zeros; rows of q outside every sequence are left alone. `window`, `soft_cap`, `scales` as in decode. Returns `out`
    [T, H, D]. AttentionInputError before anything is launched.
    """
    return prepared_prefill(
        q, k_cache, v_cache, block_table, query_start_loc, seq_lens, scale=scale, max_query_len=max_query_len,
        max_seq_len=max_seq_len, out=out, window=window, soft_cap=soft_cap, scales=scales, config=config,
    )()  # fmt: skip


def prepared_prefill(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    *,
    scale: float,
    max_query_len: int,
    max_seq_len: int,
    out: torch.Tensor | None,
    window: int,
    soft_cap: float,
    scales: KVScales | None,
    config: PrefillConfig | HopperConfig | None,
) -> Callable[[], torch.Tensor]:
    """`prefill_attention`, checked but not launched (an explicit HopperConfig is checked by its own launcher)."""
    check_paged(q, k_cache, v_cache, block_table, seq_lens, max_seq_len=max_seq_len, out=out, scales=scales)
    check_query_starts(query_start_loc, seq_lens, max_query_len)
    factor, block_size = score_factors(scale, window, soft_cap), k_cache.shape[1]
    block_table = with_an_entry(block_table)
    sizes = max_query_len, max_seq_len, block_size, window
    shape = prefill_shape(q, seq_lens, k_cache.shape[2], *sizes, k_cache.dtype)
    config = config or chosen_config(q, k_cache, v_cache, shape, soft_cap)
    if not isinstance(config, PrefillConfig):
        from engine.attention.kernels.launch_hopper import prefill_hopper

        return functools.partial(
            prefill_hopper, q, k_cache, v_cache, block_table, query_start_loc, seq_lens, scale=scale,
            max_query_len=max_query_len, max_seq_len=max_seq_len, out=out, scales=scales, config=config,
        )  # fmt: skip
    pages = Pages.of(block_size, config.block_n)
    call = PrefillCall.of(factor, window, soft_cap, pages, config, shape, scales)
    return functools.partial(
        launch_prefill, q, k_cache, v_cache, block_table, query_start_loc, seq_lens, out, call
    )  # fmt: skip


def prefill_contiguous(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    starts: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    *,
    scale: float,
    max_query_len: int,
    max_seq_len: int,
    out: torch.Tensor | None = None,
    window: int = 0,
    soft_cap: float = 0.0,
    scales: KVScales | None = None,
    config: PrefillConfig | HopperConfig | None = None,
) -> torch.Tensor:
    """`prefill_attention` without a table: the tokens of sequence s are rows starts[s], starts[s] + 1, ... of k and v.

    k, v [N, KH, D], equal strides, N below 2^31; starts [S] int64; the rest as there.
    """
    check_contiguous(q, k, v, starts, seq_lens, max_seq_len=max_seq_len, out=out, scales=scales)
    check_query_starts(query_start_loc, seq_lens, max_query_len)
    factor = score_factors(scale, window, soft_cap)
    shape = prefill_shape(q, seq_lens, k.shape[1], max_query_len, max_seq_len, 0, window, k.dtype)
    config = config or chosen_config(q, k[None], v[None], shape, soft_cap)
    if not isinstance(config, PrefillConfig):
        from engine.attention.kernels.launch_hopper import prefill_hopper_contiguous

        return prefill_hopper_contiguous(
            q, k, v, starts, query_start_loc, seq_lens, scale=scale, max_query_len=max_query_len,
            max_seq_len=max_seq_len, out=out, scales=scales, config=config,
        )  # fmt: skip
    pages = Pages.contiguous()
    call = PrefillCall.of(factor, window, soft_cap, pages, config, shape, scales)
    return launch_prefill(q, k[None], v[None], starts, query_start_loc, seq_lens, out, call)


def prefill_shape(
    q: torch.Tensor,
    seq_lens: torch.Tensor,
    num_kv_heads: int,
    max_query_len: int,
    max_seq_len: int,
    block_size: int,
    window: int = 0,
    stored: torch.dtype | None = None,
) -> PrefillShape:
    """What the tuning rule reads of a call; q [T, H, D], seq_lens [S]. `stored`: type of the cache; None: q's."""
    return PrefillShape(
        num_tokens=q.shape[0],
        num_seqs=seq_lens.shape[0],
        num_kv_heads=num_kv_heads,
        group=q.shape[1] // num_kv_heads,
        head_size=q.shape[2],
        element_bytes=q.element_size(),
        max_query_len=max_query_len,
        max_seq_len=max_seq_len,
        block_size=block_size,
        num_sms=multiprocessors(q.device),
        capability=capability(q.device),
        windowed=window > 0,
        fp8=stored == FP8,
    )


def chosen_config(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, shape: PrefillShape, soft_cap: float = 0.0
) -> PrefillConfig | HopperConfig:
    """The rule's kernel and configuration: Hopper's own kernel where it takes such a call, else the portable one.

    k, v [NB, BS, KH, D]; shape.block_size 0: the twin's, one block of all rows.
    """
    if q.is_cuda and shape.capability // 10 == 9 and not shape.windowed and soft_cap == 0:
        from engine.attention.kernels import launch_hopper

        if launch_hopper.supports_shapes(q, k, v, shape.block_size):
            return launch_hopper.HopperConfig()
    return prefill_config(shape)


@dataclass(frozen=True, slots=True)
class PrefillCall:
    """A checked call but for its tensors."""

    scale: float
    window: int
    soft_cap: float
    pages: Pages
    config: PrefillConfig
    shape: PrefillShape
    scales: KVScales | None

    @classmethod
    def of(
        cls,
        scale: float,
        window: int,
        soft_cap: float,
        pages: Pages,
        config: PrefillConfig,
        shape: PrefillShape,
        scales: KVScales | None,
    ) -> PrefillCall:
        """AttentionInputError where a tile of block_m rows cannot hold one query's group."""
        if shape.group > config.block_m:
            raise AttentionInputError(
                f"heads: expected at most block_m={config.block_m} query heads a KV head, got {shape.group}"
            )
        return cls(scale, window, soft_cap, pages, config, shape, scales)

    @property
    def max_tiles(self) -> int:
        """Query tiles at most, however the tokens spread over the sequences: axis 0 of the grid."""
        queries = self.config.block_m // self.shape.group
        per_seq = -(-self.shape.max_query_len // queries)
        return min(self.shape.num_seqs * per_seq, self.shape.num_tokens // queries + self.shape.num_seqs)


def launch_prefill(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    table: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    out: torch.Tensor | None,
    call: PrefillCall,
) -> torch.Tensor:
    """k, v [NB, BS, KH, D]; table is the block table, or the starts of the twin."""
    out = torch.empty_like(q, memory_format=torch.contiguous_format) if out is None else out
    if call.max_tiles == 0:
        return out
    config, head_size, fp8 = call.config, q.shape[2], fp8_of(prefill_kernel, k)
    k, v = as_bytes(k), as_bytes(v)
    tma = config.use_tma and call.pages.whole_tiles and not call.window
    matrix = CacheMatrix.of(k, v, config.block_n) if tma else None
    k_desc, v_desc = (matrix.descriptor(k), matrix.descriptor(v)) if matrix else (k, v)
    with on_device(q):
        prefill_kernel[(call.max_tiles, call.shape.num_kv_heads)](
            q, k, v, k_desc, v_desc, *scales_of(call.scales, q), table, query_start_loc, seq_lens, out,
            q.stride(0), q.stride(1), k.stride(0), k.stride(1), k.stride(2), table.stride(0),
            out.stride(0), out.stride(1), matrix.rows_per_block if matrix else 0, call.scale, call.soft_cap,
            call.shape.num_seqs, call.shape.group, call.window, call.pages.block_size, call.pages.shift,
            **prefill_options(
                config, head_size, call.pages.mode, windowed=call.window > 0, capped=call.soft_cap > 0,
                tma=matrix is not None, upcast=upcast(prefill_kernel, q.dtype) and not fp8["FP8"], fp8=fp8,
            ),
        )  # fmt: skip
    return out


def prefill_options(
    config: PrefillConfig,
    head_size: int,
    mode: Mode,
    *,
    windowed: bool,
    capped: bool,
    tma: bool,
    upcast: bool = False,
    fp8: dict[str, bool] = NOT_FP8,
) -> dict[str, Any]:
    """What is compiled into prefill_kernel; `fp8` as `fp8_of`."""
    return {
        "D": head_size,
        "BLOCK_D": padded(head_size),
        "BLOCK_M": config.block_m,
        "BLOCK_N": config.block_n,
        "NUM_STAGES": config.num_stages,
        "PAGES": mode,
        "WINDOW": windowed,
        "SOFT_CAP": capped,
        "TMA": tma,
        "UPCAST": upcast,
        "num_warps": config.num_warps,
        "num_stages": config.num_stages,
        **fp8,
    }
