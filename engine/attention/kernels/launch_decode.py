"""Launchers of decode attention: the paged kernel and its contiguous twin, the same source with PAGES="contiguous".

Neither waits for the device nor reads it: grids come from shapes and bounds, so that a call can be captured in a CUDA
graph and replayed with other lengths up to `max_seq_len`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from engine.attention.checks import check_same_device
from engine.attention.kernels.decode import decode_kernel, reduce_kernel
from engine.attention.kernels.device import capability, launches_early, multiprocessors, on_device, upcast
from engine.attention.kernels.fp8 import NOT_FP8, fp8_of, in_pairs, scales_of
from engine.attention.kernels.inputs import (
    check_contiguous,
    check_kind,
    check_one_query_each,
    check_paged,
    check_workspace,
    padded,
    score_factors,
    with_an_entry,
)
from engine.attention.kernels.pages import Mode, Pages
from engine.attention.kernels.plan import Cut, DecodePlan, plan_decode
from engine.attention.kernels.tuning import DecodeConfig, DecodeShape, decode_config, decode_contiguous_config
from engine.attention.kv_scales import KVScales

PIECES_AT_ONCE = 32
"""Pieces that a program of the reduction loads together."""


def decode_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    *,
    scale: float,
    max_seq_len: int,
    out: torch.Tensor | None = None,
    workspace: torch.Tensor | None = None,
    plan: DecodePlan | None = None,
    window: int = 0,
    soft_cap: float = 0.0,
    scales: KVScales | None = None,
    config: DecodeConfig | None = None,
) -> torch.Tensor:
    """Attention of one query token a sequence, the last of its `seq_lens` tokens, over a paged KV cache.

    q [S, H, D]; k_cache, v_cache [NB, BS, KH, D], views of equal strides, head size innermost; block_table [S,
    max_blocks] int32; seq_lens [S] int32, at most max_seq_len; a sequence of length 0 gets zeros. `window` > 0: the
    last `window` tokens only, the query's own included. `soft_cap` > 0: scores s become soft_cap * tanh(s / soft_cap).
    `workspace` float32 of `decode_workspace(...)` elements, else allocated. A `plan` of these lengths and shape, made
    once for all layers, brings its own config; else one is made, of `config` or of the rule's. Returns `out` [S, H, D],
    written in place. `scales` beside FP8 caches. AttentionInputError before anything is launched.
    """
    return prepared_decode(
        q, k_cache, v_cache, block_table, seq_lens, scale=scale, max_seq_len=max_seq_len, out=out, workspace=workspace,
        plan=plan, window=window, soft_cap=soft_cap, scales=scales, config=config,
    )()  # fmt: skip


def prepared_decode(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    *,
    scale: float,
    max_seq_len: int,
    out: torch.Tensor | None,
    workspace: torch.Tensor | None,
    plan: DecodePlan | None,
    window: int,
    soft_cap: float,
    scales: KVScales | None,
    config: DecodeConfig | None,
) -> Callable[[], torch.Tensor]:
    """`decode_attention`, checked but not launched: whoever launches several kernels checks all of them first."""
    check_paged(q, k_cache, v_cache, block_table, seq_lens, max_seq_len=max_seq_len, out=out, scales=scales)
    check_one_query_each(q, seq_lens)
    block_size = k_cache.shape[1]
    shape = shape_of(q, k_cache.shape[2], max_seq_len, block_size, k_cache.dtype)
    factor = score_factors(scale, window, soft_cap)
    cut = _cut(plan, shape, config, decode_config, window, workspace, q)
    call = _Call(factor, soft_cap, Pages.of(block_size, cut.config.block_n), cut, window, plan, scales)
    return functools.partial(
        _launch, q, k_cache, v_cache, with_an_entry(block_table), seq_lens, out, workspace, call
    )  # fmt: skip


def decode_contiguous(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    starts: torch.Tensor,
    seq_lens: torch.Tensor,
    *,
    scale: float,
    max_seq_len: int,
    out: torch.Tensor | None = None,
    workspace: torch.Tensor | None = None,
    plan: DecodePlan | None = None,
    window: int = 0,
    soft_cap: float = 0.0,
    scales: KVScales | None = None,
    config: DecodeConfig | None = None,
) -> torch.Tensor:
    """`decode_attention` without a table: the tokens of sequence s are rows starts[s], starts[s] + 1, ... of k and v.

    k, v [N, KH, D], equal strides; starts [S] int64; the rest as there.
    """
    check_contiguous(q, k, v, starts, seq_lens, max_seq_len=max_seq_len, out=out, scales=scales)
    check_one_query_each(q, seq_lens)
    shape = shape_of(q, k.shape[1], max_seq_len, 0, k.dtype)
    factor = score_factors(scale, window, soft_cap)
    cut = _cut(plan, shape, config, decode_contiguous_config, window, workspace, q)
    call = _Call(factor, soft_cap, Pages.contiguous(), cut, window, plan, scales)
    return _launch(q, k[None], v[None], starts, seq_lens, out, workspace, call)


def shape_of(
    q: torch.Tensor, num_kv_heads: int, max_seq_len: int, block_size: int, stored: torch.dtype | None = None
) -> DecodeShape:
    """What the tuning rule reads of a call; q [S, H, D]. `stored`: type of the cache; None: q's."""
    num_seqs, num_heads, head_size = q.shape
    heads = num_kv_heads, num_heads // num_kv_heads, head_size
    element_bytes = (stored or q.dtype).itemsize
    device = multiprocessors(q.device), capability(q.device)
    return DecodeShape(num_seqs, *heads, element_bytes, max_seq_len, block_size, *device)


def decode_workspace(shape: DecodeShape, config: DecodeConfig, window: int = 0) -> int:
    """float32 elements that a call of this shape needs between its two kernels; 0 if nothing is split."""
    return Cut.of(shape, config, window).floats


@dataclass(frozen=True, slots=True)
class _Call:
    scale: float
    soft_cap: float
    pages: Pages
    cut: Cut
    window: int
    plan: DecodePlan | None
    """None: to be made."""
    scales: KVScales | None


def _cut(
    plan: DecodePlan | None,
    shape: DecodeShape,
    config: DecodeConfig | None,
    rule: Callable[[DecodeShape], DecodeConfig],
    window: int,
    workspace: torch.Tensor | None,
    q: torch.Tensor,
) -> Cut:
    """The plan's, or that of a plan to be made. AttentionInputError where it does not fit the rest of the call."""
    check_kind("plan", plan, DecodePlan)
    check_kind("config", config, DecodeConfig)
    if plan is not None:
        plan.check(shape, window, config)
        check_same_device(q=q, plan=plan.items)
    cut = plan.cut if plan else Cut.of(shape, config or rule(shape), window)
    if workspace is not None:
        check_workspace(workspace, cut.floats, q)
    return cut


def _launch(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    table: torch.Tensor,
    seq_lens: torch.Tensor,
    out: torch.Tensor | None,
    workspace: torch.Tensor | None,
    call: _Call,
) -> torch.Tensor:
    """k, v [NB, BS, KH, D]; table is the block table, or the starts of the twin."""
    out = torch.empty_like(q, memory_format=torch.contiguous_format) if out is None else out
    num_seqs, num_heads, head_size = q.shape
    if num_seqs == 0:
        return out
    cut = call.cut
    plan = call.plan or plan_decode(seq_lens, cut.shape, cut.config, window=call.window)
    if workspace is None:
        workspace = torch.empty(cut.floats, dtype=torch.float32, device=q.device)
    lse = workspace[cut.floats // (head_size + 1) * head_size :]
    launch_pieces(
        q, k, v, table, seq_lens, out, workspace, lse, plan, call.pages, scale=call.scale, soft_cap=call.soft_cap,
        scales=call.scales,
    )  # fmt: skip
    if cut.split:
        with on_device(q):
            reduce_kernel[(num_seqs, num_heads)](
                plan.seqs, out, workspace, lse, out.stride(0), out.stride(1), num_heads,
                **reduce_options(head_size, early=launches_early(q)),
            )  # fmt: skip
    return out


def launch_pieces(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    table: torch.Tensor,
    seq_lens: torch.Tensor,
    out: torch.Tensor,
    part: torch.Tensor,
    lse: torch.Tensor,
    plan: DecodePlan,
    pages: Pages,
    *,
    scale: float,
    soft_cap: float,
    scales: KVScales | None,
    skip: torch.Tensor | None = None,
) -> None:
    """The decode kernel alone: outputs of sequences in one piece, parts of the others. `skip` int32 [S]: table entries
    that a sequence's keys begin behind; `seq_lens` count from there."""
    cut, head_size, fp8 = plan.cut, q.shape[2], fp8_of(decode_kernel, k)
    k, v = in_pairs(k), in_pairs(v)
    with on_device(q):
        decode_kernel[(cut.grid_heads, cut.max_items)](
            q, k, v, *scales_of(scales, q), table, seq_lens, plan.items, seq_lens if skip is None else skip, out,
            part, lse,
            q.stride(0), q.stride(1), k.stride(0), k.stride(1), k.stride(2), table.stride(0),
            out.stride(0), out.stride(1), scale, soft_cap, q.shape[1], cut.shape.group, plan.window,
            pages.block_size, pages.shift,
            **decode_options(
                cut.config, head_size, cut.block_m, pages.mode, windowed=plan.window > 0,
                capped=soft_cap > 0, split=cut.split, shared=skip is not None, early=launches_early(q),
                upcast=upcast(decode_kernel, q.dtype) and not fp8["FP8"], fp8=fp8,
            ),
        )  # fmt: skip


def decode_options(
    config: DecodeConfig,
    head_size: int,
    block_m: int,
    mode: Mode,
    *,
    windowed: bool,
    capped: bool,
    split: bool,
    shared: bool = False,
    early: bool = False,
    upcast: bool = False,
    fp8: dict[str, bool] = NOT_FP8,
) -> dict[str, Any]:
    """What is compiled into decode_kernel; `early`: programmatic dependent launch; `fp8` as `fp8_of`."""
    options = {
        "D": head_size,
        "BLOCK_D": max(padded(head_size), 32 if fp8["FP8"] else 0),
        "BLOCK_M": block_m,
        "BLOCK_N": config.block_n,
        "NUM_STAGES": config.num_stages,
        "PAGES": mode,
        "WINDOW": windowed,
        "SOFT_CAP": capped,
        "SPLIT": split,
        "SHARED": shared,
        "EARLY": early,
        "UPCAST": upcast,
        "num_warps": config.num_warps,
        "num_stages": config.num_stages,
    }
    return options | fp8 | launched(early)


def reduce_options(head_size: int, *, early: bool) -> dict[str, Any]:
    """What is compiled into reduce_kernel; `early`: programmatic dependent launch."""
    options = {"D": head_size, "BLOCK_D": padded(head_size), "BLOCK_P": PIECES_AT_ONCE, "EARLY": early, "num_warps": 4}
    return options | launched(early)


def launched(early: bool) -> dict[str, Any]:
    """Of a launch: programmatic dependent, or after the end of the kernel before it."""
    return {"launch_pdl": True} if early else {}
