"""What a step tells attention beyond Q, K and V: whose tokens these are, where to write and where to read.

A batch is T tokens of S sequences, laid end to end. Decodes (one query token) come first, then chunks of prompts, so
that one kernel takes the rows up to num_decodes and another the rest.

| here            | Pallas          | MLA decode  | MLA prefill             | value                             |
|-----------------|-----------------|-------------|-------------------------|-----------------------------------|
| query_start_loc | query_start_loc | one a row   | query_start_loc, from 0 | [S+1], first token of each row    |
| seq_lens        | context_lens    | seq_lens    | seq_lens                | [S], tokens after this step       |
| max_query_len   | -               | 1           | max_query_len           | largest of the query lengths      |
| max_seq_len     | -               | max_seq_len | max_seq_len             | largest of seq_lens               |
| block_table     | block_tables    | block_table | block_table             | [S, max_blocks], where to read    |
| slot_mapping    | slot_mapping    | of both     | of both                 | [T], where to write; < 0: nowhere |
| S               | num_seqs [1]    | num_decodes | num_prefills            | rows                              |

Pallas's name misleads: its context_lens are seq_lens, the step's own tokens included (vLLM's TPU runner fills
them so). Entries of a block table beyond a sequence's own blocks may be anything: nobody reads them. A padded row has
length 0 and a slot below 0; its output is 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from engine.attention.checks import AttentionInputError, check_index, check_same_device
from engine.core.slots import slot_mapping as slots_of

PAD_SLOT = -1
"""Slot of a token that is not to be written."""


@dataclass(frozen=True, slots=True, eq=False)
class AttentionMetadata:
    """One step, for all layers; all tensors on one device. AttentionInputError where shapes or types do not agree."""

    query_start_loc: torch.Tensor
    """[S+1] int32, from 0 to T."""
    seq_lens: torch.Tensor
    """[S] int32, tokens of each sequence once this step is written."""
    max_query_len: int
    max_seq_len: int
    block_table: torch.Tensor
    """[S, max_blocks] int32."""
    slot_mapping: torch.Tensor
    """[T] int64."""
    num_decodes: int = 0
    """The first rows, each with one query token; as many tokens."""
    plans: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)
    """What a backend works out once for all layers of the step, by a key of its own."""

    def __post_init__(self) -> None:
        check_index("seq_lens", self.seq_lens, ("S",), torch.int32)
        check_index("query_start_loc", self.query_start_loc, (self.num_seqs + 1,), torch.int32)
        check_index("block_table", self.block_table, (self.num_seqs, "max_blocks"), torch.int32)
        check_index("slot_mapping", self.slot_mapping, ("T",), torch.int64)
        check_same_device(
            seq_lens=self.seq_lens,
            query_start_loc=self.query_start_loc,
            block_table=self.block_table,
            slot_mapping=self.slot_mapping,
        )
        if not 0 <= self.num_decodes <= min(self.num_seqs, self.num_tokens):
            raise AttentionInputError(
                f"num_decodes: expected 0 to {min(self.num_seqs, self.num_tokens)}, got {self.num_decodes}"
            )

    @property
    def num_seqs(self) -> int:
        """S, padded rows included."""
        return self.seq_lens.shape[0]

    @property
    def num_tokens(self) -> int:
        """T, padding included."""
        return self.slot_mapping.shape[0]

    @property
    def num_prefills(self) -> int:
        """Rows after the decodes."""
        return self.num_seqs - self.num_decodes


@dataclass(frozen=True, slots=True, eq=False)
class PallasMetadata:
    """The same step under the names of vLLM's Pallas backend; the kernel takes lengths of all rows alike."""

    slot_mapping: torch.Tensor
    block_tables: torch.Tensor
    context_lens: torch.Tensor
    """[S] int32: seq_lens, in spite of the name."""
    query_start_loc: torch.Tensor
    num_seqs: torch.Tensor
    """[1] int32: rows beyond it are padding and never looked at."""

    @classmethod
    def of(cls, step: AttentionMetadata) -> PallasMetadata:
        """Renamed; no tensor but num_seqs is new."""
        count = torch.tensor([step.num_seqs], dtype=torch.int32, device=step.seq_lens.device)
        return cls(step.slot_mapping, step.block_table, step.seq_lens, step.query_start_loc, count)


@dataclass(frozen=True, slots=True, eq=False)
class MLADecode:
    """The rows with one query token: attention over latents, queries absorbed."""

    block_table: torch.Tensor
    seq_lens: torch.Tensor
    max_seq_len: int


@dataclass(frozen=True, slots=True, eq=False)
class MLAPrefill:
    """The rows with chunks: latents are expanded to the K and V of every head."""

    block_table: torch.Tensor
    seq_lens: torch.Tensor
    query_start_loc: torch.Tensor
    """[num_prefills + 1] int32, from 0: the chunks' own tokens only."""
    max_query_len: int
    max_seq_len: int


@dataclass(frozen=True, slots=True, eq=False)
class MLAMetadata:
    """The same step split in two; a part without rows is None."""

    slot_mapping: torch.Tensor
    """[T] int64, of both parts: decodes first."""
    num_decodes: int
    num_prefills: int
    decode: MLADecode | None
    prefill: MLAPrefill | None

    @classmethod
    def of(cls, step: AttentionMetadata) -> MLAMetadata:
        """Views of the step's rows; only query_start_loc, which starts at 0 again, is new."""
        first = step.num_decodes
        decode = prefill = None
        if first:
            decode = MLADecode(step.block_table[:first], step.seq_lens[:first], step.max_seq_len)
        if step.num_prefills:
            prefill = MLAPrefill(
                step.block_table[first:],
                step.seq_lens[first:],
                step.query_start_loc[first:] - first,
                step.max_query_len,
                step.max_seq_len,
            )
        return cls(step.slot_mapping, first, step.num_prefills, decode, prefill)


def decodes_first(query_lens: Sequence[int]) -> list[int]:
    """The order of rows in which those with one query token come first; otherwise as they came."""
    return sorted(range(len(query_lens)), key=lambda row: query_lens[row] != 1)


@dataclass(frozen=True, slots=True)
class MetadataBuilder:
    """Makes a step's metadata from what the host knows: lengths and block tables."""

    block_size: int
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

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
        AttentionInputError for lengths that cannot be, tables too short, another order.
        """
        query, lengths = np.asarray(query_lens, np.int64), np.asarray(seq_lens, np.int64)
        num_decodes = self._check(query, lengths, block_tables, num_padded_seqs)
        table = _rows(block_tables, num_padded_seqs)
        ends = np.cumsum(query)
        rows = np.repeat(np.arange(len(query)), query)
        positions = np.arange(len(rows)) - (ends - query)[rows] + (lengths - query)[rows]
        slots = slots_of(table, rows, positions, self.block_size)
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

    def _tensor(self, values: np.ndarray[tuple[int, ...], np.dtype[np.int64]], dtype: type) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(values.astype(dtype))).to(self.device)

    def _check(
        self,
        query: np.ndarray[tuple[int, ...], np.dtype[np.int64]],
        lengths: np.ndarray[tuple[int, ...], np.dtype[np.int64]],
        tables: Sequence[Sequence[int]],
        num_padded_seqs: int,
    ) -> int:
        """The number of decodes."""
        if not query.shape == lengths.shape == (len(tables),):
            raise AttentionInputError(
                f"expected as many query lengths, lengths and block tables, got {len(query)}, {len(lengths)}, "
                f"{len(tables)}"
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
        if num_padded_seqs < 0 or (num_padded_seqs and num_decodes < len(query)):
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


def _rows(tables: Sequence[Sequence[int]], num_padded: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """[S, max_blocks]: ragged tables side by side, zeros behind them."""
    filled = np.zeros((len(tables) + num_padded, max(map(len, tables), default=0)), np.int64)
    for row, table in enumerate(tables):
        filled[row, : len(table)] = table
    return filled
