"""Blocks that decoding fills are committed late, and nobody can tell: not by what is found, nor by who is evicted."""

from __future__ import annotations

from random import Random
from unittest import mock

from engine.core.batch import StepResult
from engine.core.commits import Commits
from engine.core.content import TokenContent
from engine.core.limits import SchedulerConfig
from engine.core.paged import PagedAllocator
from engine.core.request import Request
from engine.core.scheduler import Scheduler


def history(seed, *, ahead=False):
    """Every step of a short life under pressure: batches, hits, tables, the free queue."""
    rng = Random(seed)
    size, longest = rng.choice((1, 2, 3, 4)), 40
    allocator = PagedAllocator(rng.randint(-(-longest // size), 3 * longest // size), size, max_model_len=longest)
    limits = SchedulerConfig(
        longest, max_num_seqs=rng.choice((2, 4, 8)), max_num_batched_tokens=rng.choice((5, 16, 64))
    )
    scheduler = Scheduler(limits, allocator)
    texts = [[rng.randrange(2) for _ in range(longest)] for _ in range(rng.choice((1, 1, 2)))]
    late = []
    for index in range(rng.randint(3, 12)):
        prompt, output = rng.randint(1, 20), rng.randint(1, 20)
        content = TokenContent(list(rng.choice(texts)[: prompt + output]))
        late.append(Request(index, prompt, output, content=content))
    left: dict[Request, int] = {}
    seen = []
    while late or scheduler.running or scheduler.waiting:
        while late and rng.random() < 0.5:
            request = late.pop()
            left[request] = request.num_stop_tokens
            scheduler.add(request)
        batch = scheduler.schedule()
        sampled = [*batch.decodes.members, *(chunk.request for chunk in batch.chunks if chunk.completes)]
        for request in sampled:
            left[request] -= 1
        if ahead:
            scheduler.look_ahead()
        seen.append(
            (
                [(request.request_id, *rest, tuple(request.blocks)) for request, *rest in batch.items()],
                [(one.request.request_id, one.num_hit_tokens) for one in batch.admitted],
                [one.request.request_id for one in batch.preempted],
                allocator.pool.free_queue(),
                allocator.stats(),
            )
        )
        scheduler.update(batch, StepResult(1, 1, [request for request in sampled if not left[request]]))
        allocator.check()
    return seen


def now(commits, request, full):
    """In place of `later`."""
    commits.now(request, request.blocks, full)


def test_committing_late_is_committing_at_once():
    hits = 0
    for seed in range(120):
        late = history(seed)
        with mock.patch.multiple(
            Commits, later=now, all_later=lambda self, filled: [now(self, *one) for one in filled]
        ):
            at_once = history(seed)
        assert late == at_once, f"seed {seed}"
        hits += sum(found for _, admitted, *_ in late for _, found in admitted)
    assert hits > 500


def test_looking_ahead_decides_nothing():
    for seed in range(60):
        assert history(seed, ahead=True) == history(seed)
