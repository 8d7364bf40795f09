"""From what the host knows of a step, lengths and block tables, to the metadata of any backend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from engine.attention.checks import AttentionInputError, check_count
from engine.attention.metadata import PAD_SLOT, AttentionMetadata, MLAMetadata, PallasMetadata
from engine.core.slots import slot_mapping as slots_of

Int64s = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
INT32 = np.iinfo(np.int32)


@dataclass(frozen=True, slots=True)
class MetadataBuilder:
    """Makes a step's metadata from what the host knows: lengths and block tables."""

    block_size: int
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def __post_init__(self) -> None:
        check_count("block_size", self.block_size, 1)

    def build(
        self,
        query_lens: Sequence[int],
        seq_lens: Sequence[int],
        block_tables: Sequence[Sequence[int]],
        *,
        num_padded_seqs: int = 0,
    ) -> AttentionMetadata:
        """Metadata of rows that are `decodes_first` already, behind them none or more padded rows of one token each.

        seq_lens count the step's own tokens. Padding is for graphs captured at a larger batch: only behind decodes.
        AttentionInputError for lengths that cannot be, tables too short, no block to write into, another order.
        """
        check_count("num_padded_seqs", num_padded_seqs)
        query, lengths = _whole("query_lens", query_lens), _whole("seq_lens", seq_lens)
        num_decodes = self._check(query, lengths, block_tables, num_padded_seqs)
        table = _rows(block_tables, num_padded_seqs)
        ends = np.cumsum(query)
        rows = np.repeat(np.arange(len(query)), query)
        positions = np.arange(len(rows)) - (ends - query)[rows] + (lengths - query)[rows]
        slots = slots_of(table, rows, positions, self.block_size)
        if (slots < 0).any():
            token = int(np.flatnonzero(slots < 0)[0])
            raise AttentionInputError(
                f"block_tables: expected a block of 0 or above for token {positions[token]} of row {rows[token]}, "
                f"got {slots[token] // self.block_size}"
            )
        total = len(rows)
        starts = np.concatenate(([0], ends, total + 1 + np.arange(num_padded_seqs)))
        return AttentionMetadata(
            query_start_loc=self._tensor(starts, np.int32),
            seq_lens=self._tensor(np.pad(lengths, (0, num_padded_seqs)), np.int32),
            max_query_len=int(query.max(initial=min(1, num_padded_seqs))),
            max_seq_len=int(lengths.max(initial=0)),
            block_table=self._tensor(table, np.int32),
            slot_mapping=self._tensor(np.pad(slots, (0, num_padded_seqs), constant_values=PAD_SLOT), np.int64),
            num_decodes=num_decodes + num_padded_seqs,
        )

    def _tensor(self, values: Int64s, dtype: type) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(values.astype(dtype))).to(self.device)

    def _check(
        self,
        query: Int64s,
        lengths: Int64s,
        tables: Sequence[Sequence[int]],
        num_padded_seqs: int,
    ) -> int:
        """The number of decodes."""
        if not query.shape == lengths.shape == (len(tables),):
            raise AttentionInputError(
                "expected as many query lengths, lengths and block tables, got shapes "
                f"{query.shape}, {lengths.shape} and {len(tables)} tables"
            )
        for row, (new, length, table) in enumerate(zip(query.tolist(), lengths.tolist(), tables, strict=True)):
            if not 1 <= new <= length:
                raise AttentionInputError(
                    f"row {row}: expected 1 <= query length <= sequence length, got {new} and {length}"
                )
            if length > len(table) * self.block_size:
                raise AttentionInputError(
                    f"row {row}: expected blocks of {self.block_size} for {length} tokens, got {len(table)} blocks"
                )
        num_decodes = int((query == 1).sum())
        if (query[:num_decodes] != 1).any():
            row = int(np.flatnonzero(query != 1)[0])
            raise AttentionInputError(
                f"row {row}: expected the {num_decodes} rows with one query token first (see decodes_first), "
                f"got a query length of {query[row]}"
            )
        if num_padded_seqs and num_decodes < len(query):
            raise AttentionInputError(
                f"num_padded_seqs: expected 0, or more where all rows are decodes, got {num_padded_seqs} with "
                f"{len(query) - num_decodes} chunks"
            )
        return num_decodes


@dataclass(frozen=True, slots=True)
class PallasBuilder:
    """As MetadataBuilder, under Pallas's names."""

    block_size: int
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def build(
        self,
        query_lens: Sequence[int],
        seq_lens: Sequence[int],
        block_tables: Sequence[Sequence[int]],
        *,
        num_padded_seqs: int = 0,
    ) -> PallasMetadata:
        """What MetadataBuilder makes of it, renamed."""
        step = MetadataBuilder(self.block_size, self.device)
        return PallasMetadata.of(step.build(query_lens, seq_lens, block_tables, num_padded_seqs=num_padded_seqs))


@dataclass(frozen=True, slots=True)
class MLABuilder:
    """As MetadataBuilder, split into decodes and prefills."""

    block_size: int
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def build(
        self,
        query_lens: Sequence[int],
        seq_lens: Sequence[int],
        block_tables: Sequence[Sequence[int]],
        *,
        num_padded_seqs: int = 0,
    ) -> MLAMetadata:
        """What MetadataBuilder makes of it, split."""
        step = MetadataBuilder(self.block_size, self.device)
        return MLAMetadata.of(step.build(query_lens, seq_lens, block_tables, num_padded_seqs=num_padded_seqs))


def _whole(what: str, values: Sequence[int]) -> Int64s:
    """As int64; AttentionInputError for anything but whole numbers that block ids and lengths can be."""
    given = np.asarray(values)
    if given.size and (given.dtype.kind not in "iu" or given.max() > INT32.max or given.min() < INT32.min):
        raise AttentionInputError(f"{what}: expected whole numbers of 32 bits, got {values!r:.80}")
    return given.astype(np.int64)


def _rows(tables: Sequence[Sequence[int]], num_padded: int) -> Int64s:
    """[S, max_blocks]: ragged tables side by side, zeros behind them; an entry at least for padded rows."""
    filled = np.zeros((len(tables) + num_padded, max(map(len, tables), default=min(1, num_padded))), np.int64)
    for row, table in enumerate(tables):
        filled[row, : len(table)] = _whole(f"block_tables[{row}]", table)
    return filled
