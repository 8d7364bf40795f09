"""`prefix-cache-overhead`: what is timed is what the cases say, and numbers over their limits are misses."""

from __future__ import annotations

import pytest

from engine.core.block_pool import BlockPool
from experiments.bench import block_costs
from experiments.bench.block_costs import CASES, POOL_BLOCKS, Cost, best_us, measured
from experiments.paper import prefix_overhead
from experiments.paper.prefix_overhead import BLOCK, LIMITS_US, PREFIX_OVERHEAD, Overhead, unshared
from experiments.paper.runs import Lab


@pytest.fixture
def pools(monkeypatch) -> list[BlockPool]:
    """Every pool that a case makes."""
    made: list[BlockPool] = []

    def make(capacity: int) -> BlockPool:
        made.append(BlockPool(capacity))
        return made[-1]

    monkeypatch.setattr(block_costs, "BlockPool", make)
    return made


@pytest.mark.parametrize("batch", [1, 16, 256])
def test_each_call_commits_and_evicts_a_batch(pools, batch):
    go = block_costs.commit_and_evict(batch)
    (pool,) = pools
    stored, evicted = pool.num_stored, pool.num_evictions
    for _ in range(3 * POOL_BLOCKS // batch):
        go()

    pool.check()
    assert pool.num_stored - stored == pool.num_evictions - evicted == 3 * POOL_BLOCKS // batch * batch
    assert pool.num_cached_free == pool.num_free == POOL_BLOCKS


@pytest.mark.parametrize("case", ["without caching", "unhashed"])
def test_blocks_without_content_evict_nothing(pools, case):
    go = CASES[case][0](16)
    (pool,) = pools
    evicted = pool.num_evictions
    go()
    go()

    pool.check()
    assert pool.num_evictions == evicted
    assert pool.num_cached_free == (POOL_BLOCKS - 16 if case == "unhashed" else 0)


def test_hashing_hashes_every_block():
    assert len(set(block_costs.hashing(9)())) == 9


def test_a_call_that_waits_costs_what_it_takes():
    calls = []
    assert best_us(lambda: calls.append(sum(range(20_000))), 3, 2) > 10
    assert len(calls) == 6


def test_every_case_and_batch_is_measured():
    found = measured(rounds=1)

    assert [(cost.case, cost.batch) for cost in found] == [(c, b) for c, (_, many) in CASES.items() for b in many]
    assert min(cost.us_per_block for cost in found) > 0
    assert LIMITS_US.keys() <= {(cost.case, cost.batch) for cost in found}


def test_unshared_prompts_share_nothing_and_keep_their_lengths():
    trace = unshared(50)

    assert len(set(trace.block_ids.tolist())) == len(trace.block_ids)
    assert [len(trace.block_ids_of(i)) for i in range(50)] == [-(-int(n) // BLOCK) for n in trace.num_prompt_tokens]


def test_the_replays_find_nothing_and_evict(monkeypatch):
    monkeypatch.setattr(prefix_overhead, "NUM_BLOCKS", 1_500)
    monkeypatch.setattr(prefix_overhead, "LIMITS", prefix_overhead.SchedulerConfig(2048, max_num_seqs=12))
    found = prefix_overhead._overhead(80, 1)

    assert found.num_evictions > 0
    assert found.off_us > 0
    assert found.step_us > 0


def judged(costs_us: float, overhead: Overhead) -> dict[str, str]:
    lab = Lab()
    lab._once[f"{prefix_overhead.NAME}/blocks"] = [Cost(c, b, costs_us) for c, (_, many) in CASES.items() for b in many]
    lab._once[prefix_overhead.NAME] = overhead
    return {r.claim.id.removeprefix("prefix-cache-overhead/"): r.verdict for r in PREFIX_OVERHEAD.judge(lab)}


def test_slow_blocks_and_slow_requests_are_misses():
    fine = judged(0.10, Overhead(100.0, 150.0, 100_000.0, 30.0, 9))
    slow = judged(0.30, Overhead(100.0, 150.0, 3_000.0, 30.0, 9))

    assert {name for name, verdict in fine.items() if verdict == "miss"} == set()
    assert {name for name, verdict in slow.items() if verdict != "miss"} == {
        "commit-and-evict/16",
        "commit-and-evict/256",
        "simulator/ratio",
    }
