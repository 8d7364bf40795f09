"""A step of nothing but decodes, over fixed buffers: prepared, run and sampled on the device, as one CUDA graph.

From the device's own record of rows the step makes its inputs, and it leaves the sampled tokens there for the next one:
between two steps of the same rows the host writes new block ids into pinned memory and nothing else. Graphs are
captured by bucket of batch size; rows behind those in use have length 0 and slot -1.

Where rows share a prefix long enough, another graph of the same bucket takes it once for all of them. Whether is a
matter of the launch: two kernels more a layer, which cost where nothing is shared. Which rows, and how many tokens, is
in the record on the device: a graph for each would be a graph for each mixture of prompts.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from engine.attention.metadata import AttentionMetadata
from engine.attention.shared_prefix import GROUP_FIELDS, SharedPrefixes
from engine.model.sampling import SamplingTensors
from engine.worker.captured import CapturedSteps
from engine.worker.kernels.prepare import prepare_decode
from engine.worker.sampler import sample_tokens

if TYPE_CHECKING:
    from engine.model.decoder import Decoder
    from engine.worker.block_table import BlockTable
    from engine.worker.staging import RowState


def buckets(max_num_seqs: int) -> list[int]:
    """Batch sizes of graphs: 1, 2, 4, multiples of 8 up to 64, of 16 up to 256, of 32 beyond, and the largest."""
    sizes = [1, 2, 4, *range(8, 64, 8), *range(64, 256, 16), *range(256, max_num_seqs + 32, 32)]
    below = [size for size in sizes if size < max_num_seqs]
    return [*below, max_num_seqs]


class DecodeStep:
    """Runs decode steps of one model over one KV memory."""

    def __init__(
        self, decoder: Decoder, table: BlockTable, state: RowState, *, max_model_len: int, graphs: bool
    ) -> None:
        """`graphs`: replay CUDA graphs; without, the same commands are issued one by one, on any device."""
        self._decoder = decoder
        self._table = table
        self._state = state
        self._max_model_len = max_model_len
        rows, device = table.gpu.shape[0], table.device
        self._ids = torch.zeros(rows, dtype=torch.int64, device=device)
        self._positions = torch.zeros(rows, dtype=torch.int64, device=device)
        self._slots = torch.full((rows,), -1, dtype=torch.int64, device=device)
        self._lens = torch.zeros(rows, dtype=torch.int32, device=device)
        self._starts = torch.arange(rows + 1, dtype=torch.int32, device=device)
        gpu = state.gpu
        self._sampling = SamplingTensors(gpu["temperature"], gpu["seeds"], gpu["top_k"], gpu["top_p"])
        self.sampled = torch.zeros(rows, dtype=torch.int32, pin_memory=device.type == "cuda")
        """The step's tokens on the host, by row, once the step has been waited for."""
        self.buckets = buckets(rows)
        self.steps = CapturedSteps(self._issue, graphs=graphs, collectives=decoder.ranks.size > 1)

    def bucket(self, num_rows: int) -> int:
        """The smallest batch size that holds so many rows."""
        return self.buckets[bisect_left(self.buckets, num_rows)]

    def capture_all(self, can_share: Callable[[int], bool] = lambda size: False) -> None:
        """Captures the graphs of every bucket, largest first, so that they share one pool of memory; of those for which
        `can_share` is true also the one for shared prefixes."""
        for size in reversed(self.buckets):
            for shared in {False, can_share(size)}:
                self._capture(size, filtered=False, shared=shared)

    def run(self, num_rows: int, *, filtered: bool = False, shared: bool = False) -> torch.Tensor:
        """One step of the first `num_rows` rows; logits [num_rows, V], good until the next step.

        The sampled tokens are in the record's `last_tokens`. `filtered`: some row has top-k or top-p. `shared`: rows
        share prefixes, as the record has it.
        """
        key = self.bucket(num_rows), filtered, shared
        if not self.steps.has(*key):
            self._capture(*key)
        return self.steps.run(*key)[:num_rows]

    def _capture(self, size: int, filtered: bool, shared: bool) -> None:
        """No row is in use meanwhile, so that nothing is written; the record keeps what it has."""
        changed = [self._state.gpu[name] for name in ("num_rows", "groups", "last_tokens")]
        kept = [field.clone() for field in changed]
        for field in changed[:2]:
            field.zero_()
        self.steps.capture(size, filtered, shared)
        for field, before in zip(changed, kept, strict=True):
            field.copy_(before)

    def _issue(self, size: int, filtered: bool, shared: bool) -> torch.Tensor:
        """The step's commands, for `size` rows."""
        ids, positions, slots, lens = (x[:size] for x in (self._ids, self._positions, self._slots, self._lens))
        state, table = self._state.gpu, self._table
        last_tokens = state["last_tokens"]
        table.send_staged()
        prepare_decode(
            last_tokens, state["seq_lens"], table.gpu, state["num_rows"][:1], ids, positions, slots, lens,
            table.block_size,
        )  # fmt: skip
        # New metadata each time: what attention plans for the step is planned inside the graph, not kept from before.
        prefixes = SharedPrefixes(state["members"][:size], state["groups"].view(-1, GROUP_FIELDS)) if shared else None
        step = AttentionMetadata(
            self._starts[: size + 1], lens, 1, self._max_model_len, table.gpu[:size], slots, size, prefixes
        )
        hidden = self._decoder.forward(ids, positions, slots, step)
        logits = self._decoder.logits(hidden)
        ranks = self._decoder.ranks
        if ranks.rank == 0:
            sample_tokens(logits, self._sampling.rows(size), positions, last_tokens[:size], filtered=filtered)
        ranks.broadcast(last_tokens[:size])  # each device goes on from its own record
        self.sampled[:size].copy_(last_tokens[:size], non_blocking=True)
        return logits
