"""The contract, over every registered allocator and every combination of reservation, placement and switch."""

from __future__ import annotations

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
    return PoolConfig(capacity, block_size, max_model_len=max(2, capacity * block_size * quarters // 4))


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


def test_a_violation_names_the_seed_the_pool_and_the_last_actions():
    class Leaking(PagedAllocator):
        """Forgets to free."""

        def free(self, request):
            del self._tables[request]
            request.blocks = None

    with pytest.raises(ContractViolation) as caught:
        run_contract(
            lambda p: Leaking(p.capacity_blocks, p.block_size, max_model_len=p.max_model_len), seed=3, num_actions=200
        )
    message = str(caught.value)
    for part in ("seed=3", "PoolConfig(capacity_blocks=", "\n  free Request("):
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
