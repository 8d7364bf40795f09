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

import torch

from engine.attention.checks import AttentionInputError, check_count, check_index, check_same_device
from engine.attention.shared_prefix import SharedPrefixes

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
    shared: SharedPrefixes | None = None
    """Of the decodes: which of them start with the same blocks. The result is the same without."""
    plans: dict[Any, Any] = field(default_factory=dict, init=False, compare=False, repr=False)
    """What a backend works out once for all layers of the step, by a key of its own: good until lengths change."""

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
        check_count("max_query_len", self.max_query_len)
        check_count("max_seq_len", self.max_seq_len)
        check_count("num_decodes", self.num_decodes, most=min(self.num_seqs, self.num_tokens))
        if self.shared is not None:
            check_index("shared members", self.shared.members, (self.num_decodes,), torch.int32)
            check_same_device(seq_lens=self.seq_lens, members=self.shared.members)

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
    """The same step under the names of vLLM's Pallas backend; the kernel takes lengths of all rows alike.

    AttentionInputError where shapes, types or devices do not agree.
    """

    slot_mapping: torch.Tensor
    block_tables: torch.Tensor
    context_lens: torch.Tensor
    """[S] int32: seq_lens, in spite of the name."""
    query_start_loc: torch.Tensor
    num_seqs: torch.Tensor
    """[1] int32: rows beyond it are padding and never looked at."""
    plans: dict[Any, Any] = field(default_factory=dict, init=False, compare=False, repr=False)
    """As of AttentionMetadata."""

    def __post_init__(self) -> None:
        check_index("slot_mapping", self.slot_mapping, ("T",), torch.int64)
        check_index("context_lens", self.context_lens, ("S",), torch.int32)
        rows = self.context_lens.shape[0]
        check_index("block_tables", self.block_tables, (rows, "max_blocks"), torch.int32)
        check_index("query_start_loc", self.query_start_loc, (rows + 1,), torch.int32)
        check_index("num_seqs", self.num_seqs, (1,), torch.int32)
        check_same_device(
            slot_mapping=self.slot_mapping,
            context_lens=self.context_lens,
            block_tables=self.block_tables,
            query_start_loc=self.query_start_loc,
            num_seqs=self.num_seqs,
        )

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
    """The same step split in two; a part without rows is None. AttentionInputError where the parts do not fit."""

    slot_mapping: torch.Tensor
    """[T] int64, of both parts: decodes first."""
    num_decodes: int
    num_prefills: int
    decode: MLADecode | None
    prefill: MLAPrefill | None
    plans: dict[Any, Any] = field(default_factory=dict, init=False, compare=False, repr=False)
    """As of AttentionMetadata."""

    def __post_init__(self) -> None:
        check_index("slot_mapping", self.slot_mapping, ("T",), torch.int64)
        check_count("num_decodes", self.num_decodes, most=len(self.slot_mapping))
        check_count("num_prefills", self.num_prefills)
        self._check_part("decode", self.decode, self.num_decodes)
        self._check_part("prefill", self.prefill, self.num_prefills)
        if self.prefill is not None:
            starts = self.prefill.query_start_loc
            check_index("prefill.query_start_loc", starts, (self.num_prefills + 1,), torch.int32)
            check_same_device(slot_mapping=self.slot_mapping, query_start_loc=starts)

    def _check_part(self, name: str, part: MLADecode | MLAPrefill | None, rows: int) -> None:
        if (part is None) != (rows == 0):
            raise AttentionInputError(f"{name}: expected a part for {rows} rows (None for 0), got {part!r:.20}")
        if part is not None:
            check_index(f"{name}.seq_lens", part.seq_lens, (rows,), torch.int32)
            check_index(f"{name}.block_table", part.block_table, (rows, "max_blocks"), torch.int32)
            check_same_device(slot_mapping=self.slot_mapping, seq_lens=part.seq_lens, block_table=part.block_table)

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
