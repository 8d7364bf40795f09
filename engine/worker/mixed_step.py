"""A step with chunks of prompts in it: inputs made on the host, sent in one copy, run over buffers of fixed sizes.

On a device tokens are padded to a bucket and rows to the most that there can be, so that such a step is a CUDA graph,
too: issued one by one, the commands of a small model's step take longer than the step. Decodes and chunks are then two
calls of attention: the first leaves zeros where it has no row, the second writes the chunks' tokens over them. On a CPU
sizes are those of the batch.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from engine.attention.metadata import PAD_SLOT, AttentionMetadata
from engine.model.sampling import SamplingTensors
from engine.worker.captured import CapturedSteps
from engine.worker.kv_memory import SplitMetadata
from engine.worker.ran import SAMPLING_DTYPES, RowSampling
from engine.worker.sampler import sample_tokens
from engine.worker.staging import Places, StagingBuffer

if TYPE_CHECKING:
    from engine.model.decoder import Decoder
    from engine.worker.block_table import BlockTable
    from engine.worker.limits import Limits

Int64s = npt.NDArray[np.int64]
INT64, INT32 = np.dtype(np.int64), np.dtype(np.int32)


def buckets(max_num_batched_tokens: int) -> list[int]:
    """Numbers of tokens of graphs: multiples of 64 up to 384, of 128 from 512 to 1,024, then of 256, of 512 from 2,048.

    Not 448: matrix products of so many rows took a quarter more time than those of 512 (Llama-3-8B, H200, cuBLAS of
    CUDA 13.0).
    """
    most = max_num_batched_tokens
    sizes = [*range(64, 448, 64), *range(512, 1024, 128), *range(1024, 2048, 256), *range(2048, most + 512, 512)]
    return [*(size for size in sizes if size < most), most]


@dataclass(frozen=True, slots=True)
class MixedInputs:
    """Rows in the order of the batch: those that decode, one token each, then the chunks."""

    tokens: Int64s
    """[T] input ids, end to end."""
    query_lens: Int64s
    """[S] tokens of each row."""
    seq_lens: Int64s
    """[S] tokens of each row once this step is written."""
    num_decodes: int
    sampled_rows: Int64s
    """Rows [N] of which a token is sampled: all that decode, and the chunks that reach their last token."""
    sampling: Sequence[npt.NDArray[Any]]
    """`RowSampling.columns`, [N] each, or of nobody: greedy."""
    filtered: bool = False


class Sizes(NamedTuple):
    """Of a step's buffers: what a graph is captured for."""

    tokens: int
    decodes: int
    chunks: int
    samples: int
    longest_chunk: int
    longest_seq: int
    filtered: bool


class Packed(NamedTuple):
    """A step's inputs, written where they are sent from."""

    sizes: Sizes
    num_sampled: int
    places: Places


class MixedStep:
    """Runs mixed steps of one model over one KV memory."""

    def __init__(self, decoder: Decoder, table: BlockTable, limits: Limits, *, padded: bool, graphs: bool) -> None:
        """`padded`: sizes of buckets, as graphs need them; else those of the batch."""
        self._decoder = decoder
        self._table = table
        self._limits = limits
        self._padded = padded
        rows = limits.max_num_seqs
        self._staging = StagingBuffer(24 * limits.max_num_batched_tokens + 64 * rows + 1024, table.device)
        self._places = torch.arange(rows + 1, dtype=torch.int32, device=table.device)
        self._tokens_out = torch.zeros(rows, dtype=torch.int32, device=table.device)
        self.sampled = torch.zeros(rows, dtype=torch.int32, pin_memory=table.device.type == "cuda")
        """The step's tokens on the host, in the order of `sampled_rows`, once the step has been waited for."""
        self.buckets = buckets(limits.max_num_batched_tokens)
        self.steps = CapturedSteps(self._issue, graphs=graphs, collectives=decoder.ranks.size > 1)
        self._views: list[torch.Tensor] = []
        self._placed: dict[Sizes, Places] = {}
        """By bucket."""

    def capture_all(self) -> None:
        """Captures the graphs of every bucket, largest first; nothing is written to any block."""
        for tokens in reversed(self.buckets):
            sizes = self._bucket(tokens, filtered=False)
            self._send(self._pack(_nothing(), sizes))
            self.steps.capture(sizes)

    def pack(self, inputs: MixedInputs) -> Packed:
        """What a step is told, by the block table as it is now; nothing is sent yet. To be called when the step before
        has been waited for: that one's inputs are overwritten."""
        return self._pack(inputs, self._sizes(inputs))

    def run(self, packed: Packed) -> torch.Tensor:
        """One step; logits [N, V] of the sampled rows, good until the next step."""
        sizes = packed.sizes
        self._send(packed)
        if not self.steps.has(sizes):
            self.steps.capture(sizes)  # runs the step once more than asked, with the same result
        return self.steps.run(sizes)[: packed.num_sampled]

    def _bucket(self, tokens: int, *, filtered: bool) -> Sizes:
        """The sizes of a graph for so many tokens."""
        limits = self._limits
        size = self.buckets[bisect_left(self.buckets, tokens)]
        rows = limits.max_num_seqs
        return Sizes(size, min(rows, size), rows, rows, size, limits.max_model_len, filtered)

    def _sizes(self, inputs: MixedInputs) -> Sizes:
        if self._padded:
            return self._bucket(len(inputs.tokens), filtered=inputs.filtered)
        n = inputs.num_decodes
        return Sizes(
            len(inputs.tokens),
            n,
            len(inputs.query_lens) - n,
            len(inputs.sampled_rows),
            int(inputs.query_lens[n:].max()),
            int(inputs.seq_lens.max()),
            inputs.filtered,
        )

    def _send(self, packed: Packed) -> None:
        """In one copy; at the same places for the same sizes."""
        self._views = packed.places.device
        self._staging.send(packed.places)

    def _pack(self, inputs: MixedInputs, sizes: Sizes) -> Packed:
        """Everything that the commands read."""
        lens, query, n = inputs.seq_lens, inputs.query_lens, inputs.num_decodes
        ends = query.cumsum()
        rows = np.arange(len(query)).repeat(query)
        positions = np.arange(len(rows)) + (lens - ends)[rows]
        last = ends[inputs.sampled_rows] - 1
        values = (
            (inputs.tokens, 0),
            (positions, 0),
            (self._table.slot_mapping(rows, positions), PAD_SLOT),
            (last, 0),
            (positions[last], 0),
            (np.arange(n, len(query)), 0),
            (lens[:n], 0),
            (np.concatenate(([n], ends[n:])), len(rows)),
            (lens[n:], 0),
            *zip(inputs.sampling, RowSampling(), strict=True),
        )
        places = self._places_of(sizes)
        for place, (array, fill) in zip(places.host, values, strict=True):
            count = len(array)
            place[:count] = array
            place[count:] = fill
        return Packed(sizes, len(inputs.sampled_rows), places)

    def _places_of(self, sizes: Sizes) -> Places:
        """Of the arrays of `_pack`. Sizes of buckets come again, others hardly ever."""
        found = self._placed.get(sizes)
        if found is None:
            tokens, samples, chunks = sizes.tokens, sizes.samples, sizes.chunks
            counts: list[tuple[int, np.dtype[Any]]]
            counts = [(count, INT64) for count in (tokens, tokens, tokens, samples, samples, chunks)]
            counts += [(count, INT32) for count in (sizes.decodes, chunks + 1, chunks)]
            counts += [(samples, np.dtype(dtype)) for dtype in SAMPLING_DTYPES.values()]
            found = self._staging.places(counts)
            if self._padded:
                self._placed[sizes] = found
        return found

    def _issue(self, sizes: Sizes) -> torch.Tensor:
        """The step's commands; logits [samples, V]."""
        ids, positions, slots, last, after, rows, decode_lens, starts, chunk_lens, *sampling = self._views
        table, d = self._table, sizes.decodes
        table.send_staged()
        decodes = None
        if d:
            decodes = AttentionMetadata(
                self._places[: d + 1],
                decode_lens,
                1,
                sizes.longest_seq,
                table.gpu[:d],
                slots[:d],
                num_decodes=d,
            )
        chunks = AttentionMetadata(
            starts, chunk_lens, sizes.longest_chunk, sizes.longest_seq, table.gpu.index_select(0, rows), slots
        )
        hidden = self._decoder.forward(ids, positions, slots, SplitMetadata(decodes, chunks))
        if not sizes.samples:
            return hidden[:0]
        logits = self._decoder.logits(hidden.index_select(0, last))
        if self._decoder.ranks.rank:
            return logits  # rank 0 samples, and says what came of it in the next record
        out = self._tokens_out[: sizes.samples]
        sample_tokens(logits, SamplingTensors(*sampling), after, out, filtered=sizes.filtered)
        self.sampled[: sizes.samples].copy_(out, non_blocking=True)
        return logits


def _nothing() -> MixedInputs:
    """A step without tokens: what is captured before the first request."""
    none = np.zeros(0, np.int64)
    return MixedInputs(none, none, none, 0, none, RowSampling.columns(()))
