"""Which program of a decode does what: bounds from the host, the cuts themselves from the lengths, on the device.

A plan is made once a step and serves all layers of one shape, as long as the lengths stay: long sequences are cut, so
that all programs have about as much to do. Nothing waits for the device, so making it can be captured, too.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from engine.attention.checks import AttentionInputError, check_index
from engine.attention.kernels.device import on_device
from engine.attention.kernels.tuning import DecodeConfig, DecodeShape, heads_of
from engine.attention.kernels.work import group_of, order_of, piece_tiles, pieces_of, span_of

ITEMS_AT_ONCE = 32
ITEM_FIELDS, SEQ_FIELDS = 4, 2
"""int32 a work item: sequence (-1: nothing to do), first and last tile + 1, pieces of the sequence. int32 a sequence:
its first item, its pieces."""


@triton.jit(do_not_specialize=["num_seqs", "max_items", "max_pieces", "min_tiles", "min_whole", "window"])
def plan_kernel(
    SEQ_LENS, ITEMS, SEQS, num_seqs, max_items, max_pieces, min_tiles, min_whole, window,
    BLOCK_N: tl.constexpr, WINDOW: tl.constexpr, GROUP: tl.constexpr, ONE_GROUP: tl.constexpr, BLOCK_I: tl.constexpr,
):  # fmt: skip
    """Grid (S): ITEMS int32 [max_items, 4], SEQS int32 [S, 2], as in ITEM_FIELDS and SEQ_FIELDS. Items are in the order
    in which their programs start: those of the longest sequences first, so that none of them is left for the end."""
    seq = tl.program_id(0)
    per_piece = piece_tiles(
        SEQ_LENS, num_seqs, max_pieces, min_tiles, min_whole, window, BLOCK_N, WINDOW, GROUP, ONE_GROUP
    )  # fmt: skip
    _, first_tile, tiles = span_of(tl.load(SEQ_LENS + seq), window, BLOCK_N, WINDOW)
    pieces = pieces_of(tiles, True, per_piece)
    first_item, items = order_of(SEQ_LENS, num_seqs, seq, tiles, per_piece, window, BLOCK_N, WINDOW, GROUP)
    tl.store(SEQS + seq * 2, first_item)
    tl.store(SEQS + seq * 2 + 1, pieces)
    for start in range(0, pieces, BLOCK_I):
        piece = start + tl.arange(0, BLOCK_I)
        row = ITEMS + (first_item + piece) * 4
        tl.store(row, seq, mask=piece < pieces)
        tl.store(row + 1, first_tile + tiles * piece // pieces, mask=piece < pieces)
        tl.store(row + 2, first_tile + tiles * (piece + 1) // pieces, mask=piece < pieces)
        tl.store(row + 3, pieces, mask=piece < pieces)
    if seq == 0:
        for start in range(items, max_items, BLOCK_I):
            item = start + tl.arange(0, BLOCK_I)
            tl.store(ITEMS + item * 4, -1, mask=item < max_items)


@dataclass(frozen=True, slots=True)
class Cut:
    """How a batch's keys are cut: bounds from the host, the cuts themselves are the device's (`work`)."""

    config: DecodeConfig
    shape: DecodeShape
    block_m: int
    grid_heads: int
    """Programs a work item: KV heads, times the tiles of a group wider than block_m."""
    max_pieces: int
    min_tiles: int
    min_whole: int
    """Sequences that fill the device as they are, where their lengths are about equal."""
    max_items: int
    """Work items at most: axis 1 of the grid."""

    @classmethod
    def of(cls, shape: DecodeShape, config: DecodeConfig, window: int, block_m: int = 0) -> Cut:
        """Bounds for lengths up to shape.max_seq_len; block_m 0: as `heads_of`."""
        block_m = block_m or heads_of(shape)
        grid_heads = shape.num_kv_heads * -(-shape.group // block_m)
        max_pieces = max(1, config.programs // grid_heads)
        min_tiles = max(1, config.min_piece_tokens // config.block_n)
        longest = -(-shape.max_seq_len // config.block_n)
        if window:
            longest = min(longest, -(-window // config.block_n) + 1)
        per_seq = 1 if max_pieces == 1 else max(1, -(-longest // min_tiles))
        items = min(shape.num_seqs * per_seq, shape.num_seqs + max_pieces)
        min_whole = -(-config.whole_programs // grid_heads)
        return cls(config, shape, block_m, grid_heads, max_pieces, min_tiles, min_whole, items)

    @property
    def split(self) -> bool:
        """Whether any sequence may be in several pieces."""
        return self.max_items > self.shape.num_seqs

    @property
    def floats(self) -> int:
        """Elements of the workspace: a normalised row and a log-sum-exp per item and head."""
        heads = self.shape.num_kv_heads * self.shape.group
        return self.max_items * heads * (self.shape.head_size + 1) if self.split else 0


@dataclass(frozen=True, slots=True)
class DecodePlan:
    """Made by `plan_decode` for one batch of lengths; valid until they change."""

    cut: Cut
    window: int
    items: torch.Tensor
    """int32 [items, 4]; one row of nothing where no sequence can be cut."""
    seqs: torch.Tensor
    """int32 [S, 2]."""

    def check(self, shape: DecodeShape, window: int, config: DecodeConfig | None = None) -> None:
        """AttentionInputError for a plan of another call, or of another config than one that is asked for besides."""
        if config not in (None, self.cut.config):
            raise AttentionInputError(
                f"config: expected none beside a plan, or the plan's {self.cut.config}, got {config}"
            )
        if (self.cut.shape, self.window) != (shape, window):
            raise AttentionInputError(
                f"plan: expected one for {shape} and window {window}, got one for {self.cut.shape} and {self.window}"
            )


def plan_decode(
    seq_lens: torch.Tensor, shape: DecodeShape, config: DecodeConfig, *, window: int = 0, block_m: int = 0
) -> DecodePlan:
    """The pieces of a batch; seq_lens [S] int32, at most shape.max_seq_len. AttentionInputError for another S.

    block_m: query heads a program, 0 for the rule of `Cut`.
    """
    check_index("seq_lens", seq_lens, (shape.num_seqs,), torch.int32)
    cut = Cut.of(shape, config, window, block_m)
    items = torch.empty(max(cut.max_items, 1), ITEM_FIELDS, dtype=torch.int32, device=seq_lens.device)
    seqs = torch.empty(max(shape.num_seqs, 1), SEQ_FIELDS, dtype=torch.int32, device=seq_lens.device)
    if cut.split:
        with on_device(seq_lens):
            plan_kernel[(shape.num_seqs,)](
                seq_lens, items, seqs, shape.num_seqs, cut.max_items, cut.max_pieces, cut.min_tiles, cut.min_whole,
                window,
                **plan_options(config, windowed=window > 0, num_seqs=shape.num_seqs),
            )  # fmt: skip
    return DecodePlan(cut, window, items, seqs)


def plan_options(config: DecodeConfig, *, windowed: bool, num_seqs: int) -> dict[str, Any]:
    """What is compiled into plan_kernel."""
    group, one_group = group_of(num_seqs)
    sizes = {"BLOCK_N": config.block_n, "GROUP": group, "BLOCK_I": ITEMS_AT_ONCE}
    return {**sizes, "WINDOW": windowed, "ONE_GROUP": one_group, "num_warps": 1}
