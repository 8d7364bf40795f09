"""A step with chunks of prompts in it: inputs made on the host, sent in one copy, run command by command.

Launching hides behind the computation of some thousand tokens; below that it is what such a step costs at least.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from engine.attention.metadata import AttentionMetadata
from engine.model.sampling import SamplingTensors
from engine.worker.sampler import sample_tokens
from engine.worker.staging import StagingBuffer

if TYPE_CHECKING:
    from engine.model.decoder import Decoder
    from engine.worker.block_table import BlockTable

Int64s = npt.NDArray[np.int64]


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
    sampling: Sequence[npt.NDArray[np.generic]] = ()
    """temperature, seeds, top_k, top_p [N] each; empty: greedy."""
    filtered: bool = False


class MixedStep:
    """Runs mixed steps of one model over one KV memory."""

    def __init__(self, decoder: Decoder, table: BlockTable, *, max_num_batched_tokens: int, max_num_seqs: int) -> None:
        self._decoder = decoder
        self._table = table
        self._staging = StagingBuffer(
            32 * (max_num_batched_tokens + max_num_seqs) + 96 * max_num_seqs + 1024, table.device
        )
        self._sampled = torch.zeros(max_num_seqs, dtype=torch.int32, device=table.device)

    def run(self, inputs: MixedInputs) -> tuple[torch.Tensor, torch.Tensor]:
        """One step: sampled tokens [N] int32 and logits [N, V], both good until the next step."""
        lens, query = inputs.seq_lens, inputs.query_lens
        ends = np.cumsum(query)
        rows = np.repeat(np.arange(len(query)), query)
        positions = np.arange(len(rows)) + (lens - ends)[rows]
        last = ends[inputs.sampled_rows] - 1
        arrays = [
            inputs.tokens,
            positions,
            self._table.slot_mapping(rows, positions),
            last,
            positions[last],
            np.concatenate(([0], ends)).astype(np.int32),
            lens.astype(np.int32),
            *inputs.sampling,
        ]
        ids, places, slots, sampled, after, starts, seq_lens, *sampling = self._staging.send(arrays)
        n = inputs.num_decodes
        step = AttentionMetadata(
            starts,
            seq_lens,
            int(query.max()),
            int(lens.max()),
            self._table.gpu[: len(query)],
            slots,
            num_decodes=n,
        )
        hidden = self._decoder.forward(ids, places, slots, step)
        if not len(last):
            return self._sampled[:0], hidden[:0]
        logits = self._decoder.logits(hidden.index_select(0, sampled))
        out = self._sampled[: len(last)]
        params = SamplingTensors(*sampling) if sampling else SamplingTensors.greedy(len(last), out.device)
        sample_tokens(logits, params, after, out, filtered=inputs.filtered)
        return out, logits
