"""What indirection costs in memory: bytes of block tables against bytes of the KV that they point to, by block size.

The chapter (4.2) calls reading the table "a small read of metadata". A table has one entry a block; the engine's is
made for the longest request in every row, and read once in each layer. Both are judged: the entries of running
requests beside the KV of their tokens, and the whole table beside the whole pool, which is what indirection takes from
it. Blocks of a single token are shown, not judged: no system has them, and a context of 131,072 tokens makes the table
of every row more than a thousandth of an 80 GB card.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from engine.core.allocator import Refusal
from engine.core.capacity import default_capacity
from engine.core.catalogue import lookup
from engine.core.gpus import lookup_gpu
from engine.core.limits import SchedulerConfig
from engine.core.model_shape import ModelShape
from engine.core.paged import PagedAllocator
from engine.core.registry import PoolConfig, make_allocator
from engine.core.request import Request
from experiments.paper.claims import Claim, Result, exact, not_here
from experiments.paper.experiment import Experiment, Table
from experiments.paper.runs import Lab
from experiments.paper.tensors import without_torch

ENTRY_BYTES: Final = 4
"""int32; a claim asks the engine's table."""
SIZES: Final = (1, 8, 16, 32, 64, 128, 256)
LEAST_SIZE: Final = 8
"""Of the block sizes that are judged: vLLM's smallest."""
MODELS: Final = (("llama-2-13b", "a100-80g", 1), ("llama-3.1-8b", "a100-80g", 1), ("llama-3-70b", "a100-80g", 4))
SMALL_PPM: Final = 1000
"""What counts as small: a thousandth."""
NUM_SEQS: Final = SchedulerConfig(1).max_num_seqs
NUM_REQUESTS: Final = 64
PROMPT, OUTPUT = 161, 338


class Weighed(NamedTuple):
    """Bytes of what requests hold on one rank and of the tables that point to it."""

    pool_bytes: int
    """All KV of the rank."""
    kv_bytes: int
    """Of the tokens of the requests."""
    used_bytes: int
    """Entries of blocks that requests hold."""
    table_bytes: int
    """The engine's table: max_num_seqs rows, each as wide as the longest request."""


def weigh(model: str, gpu: str, tp: int, block_size: int) -> Weighed:
    """Allocates requests of ShareGPT's mean length and weighs their tables."""
    shape = lookup(model)
    capacity = default_capacity(shape, lookup_gpu(gpu), tp=tp, block_size=block_size)
    longest = _longest(shape, capacity.capacity_tokens)
    blocks = min(capacity.num_blocks, NUM_REQUESTS * -(-(PROMPT + OUTPUT) // block_size))
    allocator = make_allocator("paged", PoolConfig(blocks, block_size, longest, enable_caching=False))
    assert isinstance(allocator, PagedAllocator)
    entries = 0
    for index in range(NUM_REQUESTS):
        request = Request(index, PROMPT + OUTPUT, 1)
        granted = allocator.admit(request, PROMPT + OUTPUT, others_running=False)
        assert not isinstance(granted, Refusal), f"{model}: {granted}"
        entries += len(allocator.block_table(request))
    held = allocator.stats().num_referenced
    assert entries == held, f"{model}: {entries} table entries point to {held} blocks"
    width = -(-longest // block_size)
    return Weighed(
        capacity.kv_bytes,
        NUM_REQUESTS * (PROMPT + OUTPUT) * capacity.bytes_per_token,
        entries * ENTRY_BYTES,
        NUM_SEQS * width * ENTRY_BYTES,
    )


def _longest(shape: ModelShape, capacity_tokens: int) -> int:
    return min(shape.max_model_len, capacity_tokens)


def _grid(lab: Lab) -> dict[tuple[str, int], Weighed]:
    def make() -> dict[tuple[str, int], Weighed]:
        return {(model, size): weigh(model, gpu, tp, size) for model, gpu, tp in MODELS for size in SIZES}

    return lab.once("table-bytes", make)


def judge(lab: Lab) -> list[Result]:
    """The whole table is small; no request has more entries than its tokens fill; the engine's are of four bytes."""
    grid = _grid(lab)
    results = []
    for model, _, tp in MODELS:
        whole = {size: 1e6 * grid[model, size].table_bytes / grid[model, size].pool_bytes for size in SIZES}
        listed = ", ".join(f"{size}: {ppm:.2f}" for size, ppm in whole.items())
        judged = max(ppm for size, ppm in whole.items() if size >= LEAST_SIZE)
        metric = f"{model}: whole table / pool, block sizes of {LEAST_SIZE} and more"
        made = _claim(f"{model}/whole", metric, SMALL_PPM, "ppm", at_most=True)
        at_16 = grid[model, 16]
        tokens_bytes = (PROMPT + OUTPUT) * lookup(model).kv_spec(None, tp).bytes_per_token
        least = 1e6 * ENTRY_BYTES * -(-(PROMPT + OUTPUT) // 16) / tokens_bytes
        used = _claim(f"{model}/at_16", f"{model}: entries / KV of the tokens, size 16", least, "ppm", tolerance=1e-6)
        results += [
            exact(made, judged, f"by block size {listed}"),
            exact(used, 1e6 * at_16.used_bytes / at_16.kv_bytes),
        ]
    return [*results, _entry()]


def _entry() -> Result:
    made = _claim("entry", "bytes of an entry of the engine's block table", ENTRY_BYTES, "B")
    lacking = without_torch()
    if lacking:
        return not_here(made, lacking)
    from engine.worker.block_table import BlockTable

    return exact(made, BlockTable(2, 8, 16).gpu.element_size())


def _claim(
    name: str, metric: str, expected: float, unit: str, *, tolerance: float = 0.0, at_most: bool = False
) -> Claim:
    source = "chapter 4.2: the table is a small read of metadata"
    return Claim(f"table-bytes/{name}", metric, expected, unit, tolerance, source, "R", at_most=at_most)


def tables(lab: Lab) -> list[Table]:
    """Megabytes of tables and gigabytes of KV, by block size."""
    rows = []
    for (model, size), weighed in _grid(lab).items():
        pool, held, used, whole = weighed
        rows.append(
            (model, size, held / 1e9, used / 1e3, 1e6 * used / held, pool / 1e9, whole / 1e6, 1e6 * whole / pool)
        )
    columns = (
        "model",
        "block size",
        "their KV, GB",
        "entries, kB",
        "ppm",
        "pool, GB",
        "whole table, MB",
        "ppm of the pool",
    )
    note = f"{NUM_REQUESTS} requests of {PROMPT} + {OUTPUT} tokens; the whole table: {NUM_SEQS} rows of the longest one"
    title = "Block tables beside the KV they point to, on one rank"
    return [Table("table-bytes/sizes", title, columns, tuple(rows), note)]


TABLE_BYTES = Experiment("table-bytes", "Block tables in bytes (4.2)", judge, tables=tables)
