"""The allocators' own cost, by the block: what every turn does, and the calls whose cost has a shape of its own."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import cycle

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from engine.core.allocator import Grant, Hit
from engine.core.contiguous import ContiguousAllocator
from engine.core.paged import PagedAllocator
from engine.core.request import Request, Status
from engine.core.slots import slot_mapping, slot_of
from experiments.bench.block_costs import CASES
from tests.benchmarks.measuring import Report

SIZE = 16
PROMPT, WHOLE = 512, 1024
"""Tokens at admission and at the end of the request that comes, grows block by block, and goes."""
LONG = 4096


class Known:
    """Content whose keys are there already: what is timed is the cache, not the hashing."""

    shares_prompt = shares_outputs = True

    def __init__(self, name: int) -> None:
        self._keys = [(name, index) for index in range(LONG + 1)]

    def keys(self, start: int, stop: int, block_size: int) -> Sequence[Hashable]:
        return self._keys[start:stop]


def per_block(benchmark: BenchmarkFixture, report: Report, name: str, num_blocks: int) -> None:
    """The best round, divided."""
    if benchmark.stats is not None:
        seconds = benchmark.stats.stats.min
        report(f"allocator: {name}: {1e6 * seconds:.1f} us, {1e6 * seconds / num_blocks:.3f} us a block")


@pytest.mark.benchmark(group="allocator, frequent: a request comes, grows and goes")
@pytest.mark.parametrize("prompt", [PROMPT, WHOLE], ids=["growing", "at once"])
@pytest.mark.parametrize("case", ["no cache", "cache, private", "cache, commit and evict"])
def test_allocate_extend_free(benchmark: BenchmarkFixture, report: Report, case: str, prompt: int) -> None:
    """64 blocks: half at admission and half one by one, or all at once. Nothing is found again: by the time a request
    comes back, the others have taken all of its blocks."""
    shared = case == "cache, commit and evict"
    allocator = PagedAllocator(256, SIZE, max_model_len=LONG, enable_caching=case != "no cache")
    requests = [
        Request(i, prompt + 1, WHOLE, content=Known(i) if shared else None, skips_cache_read=shared) for i in range(8)
    ]
    for request in requests:
        request.known = WHOLE + 1
    coming = cycle(requests)

    def life() -> int:
        request = next(coming)
        allocator.admit(request, prompt)
        for total in range(prompt + SIZE, WHOLE + 1, SIZE):
            allocator.extend((request,), (total,))
        request.computed = WHOLE
        request.status = Status.FINISHED
        held = len(allocator.block_table(request))
        allocator.free(request)
        return held

    assert [life() for _ in range(16)] == [WHOLE // SIZE] * 16
    assert benchmark(life) == WHOLE // SIZE
    allocator.check()
    stats = allocator.stats()
    assert stats.num_free == 256
    assert (stats.num_evictions > 0) == (case != "no cache")
    per_block(benchmark, report, f"come, {'grow, ' if prompt < WHOLE else ''}go; {case}", WHOLE // SIZE)


@pytest.mark.benchmark(group="allocator, targeted: the block pool alone")
@pytest.mark.parametrize("case,batch", [(case, batch) for case, (_, batches) in CASES.items() for batch in batches])
def test_block_pool(benchmark: BenchmarkFixture, report: Report, case: str, batch: int) -> None:
    benchmark(CASES[case][0](batch))
    per_block(benchmark, report, f"pool, {case}, batches of {batch}", batch)


@pytest.mark.benchmark(group="allocator, targeted: prefix lookup of 4,096 tokens")
@pytest.mark.parametrize("size", [16, 1])
def test_lookup(benchmark: BenchmarkFixture, report: Report, size: int) -> None:
    num_blocks = LONG // size
    allocator = PagedAllocator(num_blocks + 1, size, max_model_len=2 * LONG)
    content = Known(0)
    first = Request(0, LONG + 1, 1, content=content)
    assert isinstance(allocator.admit(first, LONG), Grant)
    second = Request(1, LONG + 1, 1, content=content)
    hit: Hit = benchmark(allocator.lookup, second)
    assert hit.num_tokens == LONG
    assert list(hit.block_ids) == list(allocator.block_table(first))
    per_block(benchmark, report, f"lookup, B = {size}", num_blocks)


@pytest.mark.benchmark(group="allocator, targeted: first fit")
def test_fragmented_first_fit(benchmark: BenchmarkFixture, report: Report) -> None:
    """A thousand holes of one block, all too small, in front of one that fits."""
    allocator = ContiguousAllocator(2_100, SIZE, max_model_len=LONG, reserve="limit", fit="first-fit")
    small = [Request(i, SIZE - 1, 1) for i in range(2_000)]
    for request in small:
        assert isinstance(allocator.admit(request, SIZE - 1), Grant)
    for request in small[::2]:
        allocator.free(request)
    wanted = Request("wanted", 64 * SIZE - 1, 1)

    def come_and_go() -> int:
        allocator.admit(wanted, 64 * SIZE - 1)
        start = allocator.block_table(wanted)[0]
        allocator.free(wanted)
        return start

    assert benchmark(come_and_go) > 2_000
    allocator.check()
    assert allocator.stats().largest_free_extent < allocator.stats().num_free - 900
    if benchmark.stats is not None:
        report(f"allocator: first fit past 1,000 holes: {1e6 * benchmark.stats.stats.min:.1f} us")


@pytest.mark.benchmark(group="allocator, targeted: slot_mapping of 4,096 tokens")
@pytest.mark.parametrize("num_seqs", [1, 256])
def test_slot_mapping(benchmark: BenchmarkFixture, report: Report, num_seqs: int) -> None:
    """One prompt, or the last 16 tokens of each of 256 requests."""
    width = LONG // SIZE
    tables = np.random.default_rng(0).permutation(np.arange(1, num_seqs * width + 1)).reshape(num_seqs, width)
    rows = np.repeat(np.arange(num_seqs), LONG // num_seqs)
    positions = np.tile(np.arange(LONG - LONG // num_seqs, LONG), num_seqs)
    slots = benchmark(slot_mapping, tables.astype(np.int32), rows, positions, SIZE)
    expected = [slot_of(tables[row].tolist(), position, SIZE) for row, position in zip(rows, positions, strict=True)]
    assert slots.tolist() == expected
    per_block(benchmark, report, f"slot_mapping, {num_seqs} sequence{'s' if num_seqs > 1 else ''}", width)
