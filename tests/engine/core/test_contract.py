"""The contract, over every registered allocator and every combination of reservation, placement and switch."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.contract import ContractViolation, ShadowMemory, run_contract
from engine.core.paged import PagedAllocator
from engine.core.registry import ALLOCATORS, FITS, PoolConfig, make_allocator
from engine.core.request import Request

BLOCK_SIZES = (1, 3, 4, 16)
RESERVES = ("max", "limit", "pow2", "oracle", "chunk-1", "chunk-2", "chunk-3")
"""chunk-n: chunks of n blocks."""
SEEDS = st.integers(0, 2**32 - 1)

quick = settings(max_examples=15, deadline=None, derandomize=True, database=None)


@st.composite
def pools(draw: st.DrawFn) -> PoolConfig:
    """Pools from one block up; models shorter than the pool, as long, and longer."""
    block_size = draw(st.sampled_from(BLOCK_SIZES))
    capacity = draw(st.integers(1, 40))
    quarters = draw(st.sampled_from((1, 2, 3, 4, 8)))
    longest = max(2, capacity * block_size * quarters // 4)
    return PoolConfig(capacity, block_size, longest, host_blocks=draw(st.sampled_from((0, 1, capacity, 99))))


@pytest.mark.parametrize("name", ALLOCATORS)
@given(seed=SEEDS)
@quick
def test_registered_allocators_keep_the_contract(name, seed):
    run_contract(ALLOCATORS[name], seed=seed)


@pytest.mark.parametrize("fit", FITS)
@pytest.mark.parametrize("reserve", RESERVES)
@given(pool=pools(), seed=SEEDS)
@quick
def test_contiguous_allocators_keep_the_contract(reserve, fit, pool, seed):
    head, _, blocks = reserve.partition("-")
    rule = f"{head}({int(blocks) * pool.block_size})" if blocks else head
    run_contract(lambda p: make_allocator(f"contiguous-{rule}-{fit}", p), seed=seed, config=pool)


@pytest.mark.parametrize("one_free_each", [False, True])
@pytest.mark.parametrize("freed_to", ["front", "back"])
@pytest.mark.parametrize("watermark", [0.0, 0.25])
@pytest.mark.parametrize("enable_caching", [True, False])
@given(pool=pools(), seed=SEEDS)
@quick
def test_paged_allocators_keep_the_contract(pool, seed, enable_caching, watermark, freed_to, one_free_each):
    config = PoolConfig(
        pool.capacity_blocks,
        pool.block_size,
        pool.max_model_len,
        enable_caching=enable_caching,
        watermark=watermark,
        freed_to=freed_to,
        one_free_each=one_free_each,
        host_blocks=pool.host_blocks,
    )
    run_contract(ALLOCATORS["paged"], seed=seed, config=config)


def test_an_allocator_that_only_steps_keeps_the_contract():
    class Stepping(PagedAllocator):
        """Answers 0 to `free_run`, as a new allocator may."""

        def free_run(self, requests, limit, watch=None):
            return 0

    for seed in range(10):
        run_contract(lambda p: Stepping(p.capacity_blocks, p.block_size, max_model_len=p.max_model_len), seed=seed)


def test_an_allocator_of_unknown_growth_keeps_the_contract():
    class Unknown(PagedAllocator):
        """Has the scheduler ask for every request in every step."""

        def __init__(self, pool):
            super().__init__(pool.capacity_blocks, pool.block_size, max_model_len=pool.max_model_len)
            self.growth_tokens = None

    for seed in range(10):
        run_contract(Unknown, seed=seed)


class Serving:
    """A user's allocator: it serves each request by itself, and neither forks nor swaps."""

    OFFERS = ("refuses_forever", "lookup", "free_run", "admit", "extend", "advance", "settle", "free", "block_table",
              "stats", "regions", "check")  # fmt: skip

    def __init__(self, pool):
        self._inside = PagedAllocator(pool.capacity_blocks, pool.block_size, max_model_len=pool.max_model_len)
        for name in ("block_size", "num_blocks", "capacity_blocks", "growth_tokens", "contiguous", *self.OFFERS):
            setattr(self, name, getattr(self._inside, name))


def test_an_allocator_that_neither_forks_nor_swaps_keeps_the_contract():
    for seed in range(20):
        run_contract(Serving, seed=seed)


def test_the_actor_meets_what_it_is_meant_to_meet(monkeypatch):
    """No vacuous contract: groups fork, tails are copied, victims leave, return and are refused."""
    met = Counter()

    def count(name):
        original = getattr(PagedAllocator, name)

        def counted(self, *args, **options):
            answer = original(self, *args, **options)
            met[name, type(answer).__name__] += 1
            met[name, "copies"] += len(getattr(answer, "copies", ()))
            return answer

        monkeypatch.setattr(PagedAllocator, name, counted)

    for name in ("fork", "swap_out", "swap_in", "admit", "extend"):
        count(name)
    for seed in range(50):
        run_contract(ALLOCATORS["paged"], seed=seed)
    at_least = {
        ("fork", "Grant"): 200,
        ("extend", "copies"): 50,
        ("swap_out", "Grant"): 40,
        ("swap_out", "Refusal"): 15,
        ("swap_in", "Grant"): 40,
        ("swap_in", "Refusal"): 3,
        ("admit", "Refusal"): 50,
        ("extend", "Refusal"): 20,
    }
    assert {name: met[name] for name, least in at_least.items() if met[name] < least} == {}


def test_a_violation_names_the_seed_the_pool_and_the_last_actions():
    class Leaking(PagedAllocator):
        """Forgets to free."""

        def free(self, request):
            del self._tables[request]
            request.blocks = None

    with pytest.raises(ContractViolation) as caught:
        run_contract(
            lambda p: Leaking(p.capacity_blocks, p.block_size, max_model_len=p.max_model_len), seed=0, num_actions=200
        )
    message = str(caught.value)
    for part in ("seed=0", "PoolConfig(capacity_blocks=", "\n  free Request("):
        assert part in message


def test_shadow_memory_reads_all_sources_of_a_copy_before_it_writes():
    memory, request = ShadowMemory(4, 2), Request("r", 4, 1)
    memory.write(request, 0, 4, [1, 2])
    memory.copy([(1, 2), (2, 3)])
    memory.check(request, 4, [2, 3])
    with pytest.raises(ContractViolation, match="as its token 2"):
        memory.check(request, 4, [2, 2])


def test_shadow_memory_has_no_slot_beyond_the_table():
    memory, request = ShadowMemory(4, 2), Request("r", 4, 1)
    with pytest.raises(ContractViolation, match="no slot for token 3"):
        memory.write(request, 0, 4, [1])
