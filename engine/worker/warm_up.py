"""Before the first request: every kernel compiled, every graph captured, every buffer as large as it will be.

Afterwards no step compiles anything and the device's allocator asks for no more memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch

from engine.attention.metadata import PAD_SLOT, AttentionMetadata
from engine.model.sampling import SamplingTensors
from engine.worker.sampler import sample_tokens

if TYPE_CHECKING:
    from engine.worker.executor import Limits, ModelExecutor

DECODES = (0, 1, 8, 32, 128, 512)
"""Decodes beside chunks: kernels are compiled anew about there."""


@torch.inference_mode()
def warm_up(executor: ModelExecutor, limits: Limits) -> None:
    """Runs the largest batch, mixed ones of several sizes, and captures all graphs. Nothing is written to any block."""
    for decodes, chunks in _batches(limits):
        _run(executor, decodes, chunks, limits)
    if executor.decode.captures:
        executor.decode.capture_all()
        torch.cuda.synchronize()


def _batches(limits: Limits) -> Iterator[tuple[int, list[int]]]:
    """(decodes, lengths of chunks): the largest batch first."""
    longest = limits.max_model_len
    whole, rest = divmod(limits.max_num_batched_tokens, longest)
    chunks = [longest] * whole + [rest] * (rest > 0)
    yield 0, chunks[: limits.max_num_seqs]
    room = min(limits.max_num_seqs - 1, limits.max_num_batched_tokens - 1)
    for decodes in sorted({min(n, room) for n in DECODES}):
        for tokens in (1, 16, 300):
            yield decodes, [min(tokens, longest, limits.max_num_batched_tokens - decodes)]


def _run(executor: ModelExecutor, decodes: int, chunks: Sequence[int], limits: Limits) -> None:
    """A step over the null block, with slots that nobody writes."""
    table, device = executor.table.gpu, executor.table.device
    lens = torch.tensor([1] * decodes + list(chunks), dtype=torch.int32)
    starts = torch.zeros(len(lens) + 1, dtype=torch.int32)
    starts[1:] = lens.cumsum(0)
    count = int(starts[-1])
    positions = torch.cat([torch.arange(int(length)) for length in lens]).to(device)
    ids = torch.zeros(count, dtype=torch.int64, device=device)
    slots = torch.full((count,), PAD_SLOT, dtype=torch.int64, device=device)
    step = AttentionMetadata(
        starts.to(device),
        lens.to(device),
        int(lens.max()),
        limits.max_model_len,  # a bound: what is split and planned for is the longest that can come
        table[: len(lens)],
        slots,
        num_decodes=decodes,
    )
    hidden = executor.decoder.forward(ids, positions, slots, step)
    rows = limits.max_num_seqs if count >= limits.max_num_seqs else len(lens)
    logits = executor.decoder.logits(hidden[:rows].clone())
    params = SamplingTensors.greedy(rows, device)
    out = torch.zeros(rows, dtype=torch.int32, device=device)
    sample_tokens(logits, params, positions[:rows], out, filtered=False)
