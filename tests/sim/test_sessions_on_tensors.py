"""Conversations on tensors: what turns find in the cache is K and V of their own tokens, and changes no logits."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from engine.core.limits import SchedulerConfig  # noqa: E402
from engine.core.registry import PoolConfig  # noqa: E402
from engine.worker.one_layer import OneLayerExecutor  # noqa: E402
from sim.simulate import Run, RunSpec, simulate  # noqa: E402
from tests.engine.worker.tiny import LONGEST, executor_over  # noqa: E402
from workloads import Shape, Trace, session_trace  # noqa: E402

SHAPE = Shape(turns="fixed:4", think_time="constant:0", turn_lengths="uniform:1-5,1-5", prefix_tokens=6)


def chat() -> Trace:
    return session_trace("chat", 2, SHAPE, rate_per_s=1e6, num_requests=12)


def play(make: Any, size: int, *, caching: bool = True, slots: int = 480) -> Run:
    pool = PoolConfig(slots // size, size, max_model_len=LONGEST, enable_caching=caching)
    return simulate(RunSpec("paged", pool, SchedulerConfig(LONGEST, max_num_seqs=8)), chat(), make)


def logits(size: int, **options: Any) -> tuple[dict[int, list[Any]], Run]:
    """Of every output token, by request."""
    seen: dict[int, list[Any]] = {}

    def watch(requests: list[Any], rows: Any) -> None:
        for request, row in zip(requests, rows, strict=True):
            seen.setdefault(request.request_id, []).append(row.clone())

    run = play(lambda allocator: executor_over(allocator, max_num_batched_tokens=2048, watch=watch), size, **options)
    return seen, run


@pytest.mark.parametrize("size", [1, 3, 16])
def test_what_the_cache_gives_changes_no_logits(size):
    with_cache, run = logits(size)
    without, _ = logits(size, caching=False)
    hits = [row.num_hit_tokens for row in run.rows]
    assert sum(hit > 0 for hit in hits) >= (9 if size < 16 else 3)
    assert with_cache.keys() == without.keys()
    for request, rows in with_cache.items():
        torch.testing.assert_close(torch.stack(rows), torch.stack(without[request]), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("slots", [480, 64])
def test_every_output_of_one_layer_is_that_of_a_recomputation(slots):
    """In the small pool cached blocks are evicted on the way."""
    executors: list[OneLayerExecutor] = []

    def make(allocator: Any) -> OneLayerExecutor:
        executors.append(OneLayerExecutor(allocator, duration_ps=lambda batch: 1_000))
        return executors[-1]

    run = play(make, 4, slots=slots)
    assert run.scheduler.prefix.hits > 0
    assert {row.status for row in run.rows} == {"finished"}
    assert (run.allocator.stats().num_evictions > 0) == (slots == 64)
