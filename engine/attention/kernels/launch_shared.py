"""Launcher of decode attention over shared prefixes: the shared keys once, the rows' own keys, and their merge.

Neither waits for the device nor reads it. Which rows share what, and how much, is data on the device, as lengths are: a
captured call is replayed with other groups, up to the rows of the table. Plain decode has two launches less.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from engine.attention.checks import AttentionInputError, check_index, check_same_device
from engine.attention.kernels.device import launches_early, on_device, upcast
from engine.attention.kernels.fp8 import NOT_FP8, fp8_of, scales_of
from engine.attention.kernels.inputs import (
    check_kind,
    check_one_query_each,
    check_paged,
    check_workspace,
    padded,
    score_factors,
    with_an_entry,
)
from engine.attention.kernels.launch_decode import PIECES_AT_ONCE, launch_pieces, launched, shape_of
from engine.attention.kernels.pages import Mode, Pages
from engine.attention.kernels.plan import Cut, DecodePlan, plan_decode
from engine.attention.kernels.shared_prefix import merge_kernel, shared_kernel, shared_plan_kernel
from engine.attention.kernels.streams import side_by_side
from engine.attention.kernels.tuning import DecodeShape, decode_config
from engine.attention.kernels.tuning_shared import SharedConfig, shared_config
from engine.attention.kv_scales import KVScales, as_bytes
from engine.attention.shared_prefix import SharedPrefixes

ITEM_FIELDS, SEQ_FIELDS = 8, 4
"""int32 a work item: a row of the group (-1: nothing to do), the group's first place among the members, its pairs of
member and head, tile of pairs, first and last tile of keys + 1, shared tokens, nothing. int32 a row: its group's first
item, pieces (0: nothing is shared), tiles of pairs, the row's place in the group."""
INDICES_AT_ONCE = 128


@dataclass(frozen=True, slots=True)
class SharedCut:
    """How a batch with shared prefixes is cut: bounds from the host, the cuts themselves are the device's."""

    config: SharedConfig
    shape: DecodeShape
    num_groups: int
    """At most."""
    max_items: int
    """Work items a KV head that the shared keys are cut into, about."""
    most_items: int
    """At most: axis 1 of the grid."""
    own: Cut

    @classmethod
    def of(cls, shape: DecodeShape, config: SharedConfig, num_groups: int) -> SharedCut:
        """Pieces are rounded up once a tile of pairs; each group may have a tile of pairs that is not full."""
        max_items = max(1, config.programs // shape.num_kv_heads)
        tiles = min(num_groups, shape.num_seqs) + shape.num_seqs * shape.group // config.block_m
        own = Cut.of(shape, config.own or decode_config(shape), 0)
        return cls(config, shape, num_groups, max_items, max_items + tiles, own)

    @property
    def parts(self) -> tuple[int, int]:
        """Rows of the workspace: of shared parts, of own parts."""
        heads = self.shape.num_kv_heads
        return self.most_items * heads * self.config.block_m, self.own.max_items * heads * self.shape.group

    @property
    def floats(self) -> int:
        """Elements of the workspace: a normalised row and a log-sum-exp a pair and item."""
        return sum(self.parts) * (self.shape.head_size + 1)


@dataclass(frozen=True, slots=True)
class SharedPlan:
    """Made by `plan_shared` for one batch of lengths and groups; valid until they change."""

    cut: SharedCut
    items: torch.Tensor
    """int32 [most_items, 8], as ITEM_FIELDS."""
    seqs: torch.Tensor
    """int32 [S, 4], as SEQ_FIELDS."""
    own_lens: torch.Tensor
    """int32 [S]: tokens behind the shared ones."""
    skip: torch.Tensor
    """int32 [S]: blocks that hold the shared ones."""
    own: DecodePlan

    def check(self, shape: DecodeShape, num_groups: int, config: SharedConfig | None = None) -> None:
        """AttentionInputError for a plan of another call, or of another config than one that is asked for besides."""
        if config not in (None, self.cut.config):
            raise AttentionInputError(
                f"config: expected none beside a plan, or the plan's {self.cut.config}, got {config}"
            )
        if (self.cut.shape, self.cut.num_groups) != (shape, num_groups):
            raise AttentionInputError(
                f"plan: expected one for {shape} and {num_groups} groups, got one for {self.cut.shape} and "
                f"{self.cut.num_groups}"
            )


def plan_shared(
    seq_lens: torch.Tensor, shared: SharedPrefixes, shape: DecodeShape, config: SharedConfig | None = None
) -> SharedPlan:
    """The pieces of a batch; seq_lens [S] int32, at most shape.max_seq_len. `config`: else the rule's."""
    check_index("seq_lens", seq_lens, (shape.num_seqs,), torch.int32)
    check_index("shared members", shared.members, (shape.num_seqs,), torch.int32)
    check_same_device(seq_lens=seq_lens, members=shared.members)
    config = config or shared_config(shape)
    cut = SharedCut.of(shape, config, len(shared.groups))

    def empty(*sizes: int) -> torch.Tensor:
        return torch.empty(sizes, dtype=torch.int32, device=seq_lens.device)

    items, seqs = empty(cut.most_items, ITEM_FIELDS), empty(max(shape.num_seqs, 1), SEQ_FIELDS)
    own_lens, skip = empty(shape.num_seqs), empty(shape.num_seqs)
    if shape.num_seqs:
        programs = -(-max(shape.num_seqs, cut.most_items) // INDICES_AT_ONCE)
        with on_device(seq_lens):
            shared_plan_kernel[(programs,)](
                shared.groups, shared.members, seq_lens, items, seqs, own_lens, skip, shape.num_seqs, cut.num_groups,
                cut.most_items, cut.max_items, max(1, config.min_piece_tokens // config.block_n), shape.group,
                shape.block_size,
                **shared_plan_options(config, cut.num_groups),
            )  # fmt: skip
    own = plan_decode(own_lens, shape, cut.own.config)
    return SharedPlan(cut, items, seqs, own_lens, skip, own)


def shared_prefix_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    shared: SharedPrefixes,
    *,
    scale: float,
    max_seq_len: int,
    out: torch.Tensor | None = None,
    workspace: torch.Tensor | None = None,
    plan: SharedPlan | None = None,
    soft_cap: float = 0.0,
    scales: KVScales | None = None,
    config: SharedConfig | None = None,
) -> torch.Tensor:
    """`decode_attention` of rows of which some start with the same blocks: the same result, shared keys read once.

    Of a group's shared tokens only one member's table entries are read. A row may have no tokens of its own. No sliding
    window: what left it would have to be told apart row by row; such layers take `decode_attention`. A `plan` of these
    lengths, groups and shape, made once for all layers, brings its own config. The rest as there.
    """
    check_paged(q, k_cache, v_cache, block_table, seq_lens, max_seq_len=max_seq_len, out=out, scales=scales)
    check_one_query_each(q, seq_lens)
    check_index("shared members", shared.members, (len(seq_lens),), torch.int32)
    check_same_device(q=q, members=shared.members)
    check_kind("plan", plan, SharedPlan)
    check_kind("config", config, SharedConfig)
    factor = score_factors(scale, 0, soft_cap)
    shape = shape_of(q, k_cache.shape[2], max_seq_len, k_cache.shape[1], k_cache.dtype)
    if plan is not None:
        plan.check(shape, len(shared.groups), config)
        check_same_device(q=q, plan=plan.items)
    cut = plan.cut if plan else SharedCut.of(shape, config or shared_config(shape), len(shared.groups))
    if workspace is not None:
        check_workspace(workspace, cut.floats, q)
    out = torch.empty_like(q, memory_format=torch.contiguous_format) if out is None else out
    if not len(q):
        return out
    plan = plan or plan_shared(seq_lens, shared, shape, cut.config)
    if workspace is None:
        workspace = torch.empty(cut.floats, dtype=torch.float32, device=q.device)
    parts, table = _Parts.of(workspace, cut), with_an_entry(block_table)
    call = _Call(q, k_cache, v_cache, table, out, parts, factor, soft_cap, scales)
    _launch(call, shared, plan)
    return out


@dataclass(frozen=True, slots=True)
class _Parts:
    """Of the workspace: normalised rows and their log-sum-exps."""

    shared: torch.Tensor
    own: torch.Tensor
    shared_lse: torch.Tensor
    own_lse: torch.Tensor

    @classmethod
    def of(cls, workspace: torch.Tensor, cut: SharedCut) -> _Parts:
        """Rows first: their addresses are multiples of 16 bytes."""
        (shared, own), size = cut.parts, cut.shape.head_size
        return cls(*torch.split(workspace[: cut.floats], [shared * size, own * size, shared, own]))


@dataclass(frozen=True, slots=True)
class _Call:
    """A checked call."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    table: torch.Tensor
    out: torch.Tensor
    parts: _Parts
    scale: float
    soft_cap: float
    scales: KVScales | None


def _launch(call: _Call, shared: SharedPrefixes, plan: SharedPlan) -> None:
    overlap, q = plan.cut.config.overlap, call.q
    apart = overlap != "none" and q.is_cuda
    launches: dict[str, Callable[[], None]] = {
        "shared": lambda: _launch_shared(call, shared, plan, early=launches_early(q) and not apart),
        "own": lambda: _launch_own(call, plan),
    }
    if not apart:
        launches["shared"]()
        launches["own"]()
    elif overlap == "own_first":
        side_by_side(q, launches["own"], launches["shared"])
    else:
        side_by_side(q, launches["shared"], launches["own"])
    _launch_merge(call, plan, early=launches_early(q) and not apart)


def _launch_shared(call: _Call, shared: SharedPrefixes, plan: SharedPlan, *, early: bool) -> None:
    cut, q, k, fp8 = plan.cut, call.q, as_bytes(call.k), fp8_of(shared_kernel, call.k)
    pages = Pages.of(cut.shape.block_size, cut.config.block_n)
    with on_device(q):
        shared_kernel[(cut.shape.num_kv_heads, cut.most_items)](
            q, k, as_bytes(call.v), *scales_of(call.scales, q), call.table, plan.items, shared.members,
            call.parts.shared, call.parts.shared_lse, q.stride(0), q.stride(1), k.stride(0), k.stride(1), k.stride(2),
            call.table.stride(0), call.scale, call.soft_cap, cut.shape.group, pages.block_size, pages.shift,
            **shared_options(
                cut.config, q.shape[2], pages.mode, capped=call.soft_cap > 0, early=early,
                upcast=upcast(shared_kernel, q.dtype) and not fp8["FP8"], fp8=fp8,
            ),
        )  # fmt: skip


def _launch_own(call: _Call, plan: SharedPlan) -> None:
    pages = Pages.of(plan.cut.shape.block_size, plan.own.cut.config.block_n)
    launch_pieces(
        call.q, call.k, call.v, call.table, plan.own_lens, call.out, call.parts.own, call.parts.own_lse, plan.own,
        pages, scale=call.scale, soft_cap=call.soft_cap, scales=call.scales, skip=plan.skip,
    )  # fmt: skip


def _launch_merge(call: _Call, plan: SharedPlan, *, early: bool) -> None:
    (num_seqs, num_heads, head_size), out = call.q.shape, call.out
    with on_device(call.q):
        merge_kernel[(num_seqs, num_heads)](
            plan.seqs, plan.own.seqs, out, call.parts.shared, call.parts.shared_lse, call.parts.own,
            call.parts.own_lse, out.stride(0), out.stride(1), num_heads, plan.cut.shape.num_kv_heads,
            **merge_options(plan.cut.config, head_size, split=plan.own.cut.split, early=early),
        )  # fmt: skip


def shared_plan_options(config: SharedConfig, num_groups: int) -> dict[str, Any]:
    """What is compiled into shared_plan_kernel."""
    sizes = {"BLOCK_M": config.block_m, "BLOCK_N": config.block_n, "BLOCK_I": INDICES_AT_ONCE}
    return sizes | {"BLOCK_G": max(2, 1 << (num_groups - 1).bit_length()), "num_warps": 4}


def shared_options(
    config: SharedConfig,
    head_size: int,
    mode: Mode,
    *,
    capped: bool,
    early: bool,
    upcast: bool = False,
    fp8: dict[str, bool] = NOT_FP8,
) -> dict[str, Any]:
    """What is compiled into shared_kernel; `early`: programmatic dependent launch; `fp8` as `fp8_of`."""
    options = {
        "D": head_size,
        "BLOCK_D": padded(head_size),
        "BLOCK_M": config.block_m,
        "BLOCK_N": config.block_n,
        "NUM_STAGES": config.num_stages,
        "PAGES": mode,
        "SOFT_CAP": capped,
        "EARLY": early,
        "UPCAST": upcast,
        "num_warps": config.num_warps,
        "num_stages": config.num_stages,
    }
    return options | fp8 | launched(early)


def merge_options(config: SharedConfig, head_size: int, *, split: bool, early: bool) -> dict[str, Any]:
    """What is compiled into merge_kernel; `early`: programmatic dependent launch."""
    sizes = {"D": head_size, "BLOCK_D": padded(head_size), "BLOCK_M": config.block_m, "BLOCK_P": PIECES_AT_ONCE // 2}
    return sizes | {"SPLIT": split, "EARLY": early, "num_warps": 4} | launched(early)
