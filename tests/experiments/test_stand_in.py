"""Allocators that are only asked: they answer as those of the real size, which are made once for each pool."""

from dataclasses import replace

import pytest

from engine.core import registry
from engine.core.registry import ALLOCATORS, PoolConfig
from experiments.settings import Config
from experiments.stand_in import FEW_BLOCKS, stand_in
from experiments.sweep import identity
from experiments.sweep.axes import axes_of_keys
from experiments.sweep.planning import plan_sweep

POOL = PoolConfig(5000, 16, 2048, host_blocks=300)
ASKED = ("growth_tokens", "contiguous", "enable_caching", "block_size", "fork", "swap_out", "catch_up")
NAMES = (*ALLOCATORS, "contiguous-oracle-best-fit", "contiguous-max-first-fit")


@pytest.fixture(autouse=True)
def _anew():
    stand_in.cache_clear()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("pool", [POOL, replace(POOL, host_blocks=0), replace(POOL, enable_caching=False)])
def test_it_answers_as_the_real_one(name, pool):
    pool = pool if name == "paged" else replace(pool, host_blocks=0, enable_caching=False)
    real, few = registry.make_allocator(name, pool), stand_in(name, pool)
    for attribute in ASKED:
        mine, its = getattr(few, attribute, None), getattr(real, attribute, None)
        assert (callable(mine) and callable(its)) or mine == its
    assert bool(getattr(few, "host_blocks", 0)) is bool(getattr(real, "host_blocks", 0))
    assert type(few) is type(real)
    assert few.capacity_blocks == FEW_BLOCKS


@pytest.mark.parametrize(
    "name,change,said",
    [
        ("paged", {"watermark": 1.5}, "watermark must lie in"),
        ("paged", {"capacity_blocks": 0}, "0"),
        ("no-such", {}, "unknown allocator 'no-such'"),
        ("contiguous-max-worst-fit", {}, "unknown allocator"),
    ],
)
def test_what_the_real_one_refuses_is_refused(name, change, said):
    pool = replace(POOL, **change)
    for make in (registry.make_allocator, stand_in):
        with pytest.raises(ValueError, match=said):
            make(name, pool)


def test_one_that_needs_more_blocks_is_the_real_one(monkeypatch):
    def needy(pool):
        if pool.capacity_blocks < 1000:
            raise ValueError("needs a thousand blocks")
        return ALLOCATORS["paged"](pool)

    monkeypatch.setitem(ALLOCATORS, "needy", needy)
    assert stand_in("needy", POOL).capacity_blocks == 5000
    with pytest.raises(ValueError, match="needs a thousand blocks"):
        stand_in("needy", replace(POOL, capacity_blocks=999))


def test_a_plan_makes_each_pool_once_and_reads_a_length_list_once(monkeypatch, tmp_path):
    made, read = [], []
    make, digest = registry.make_allocator, identity.file_sha256
    monkeypatch.setattr(registry, "make_allocator", lambda name, pool: made.append((name, pool)) or make(name, pool))
    monkeypatch.setattr(identity, "file_sha256", lambda path: read.append(path) or digest(path))
    lengths = tmp_path / "lengths.csv"
    lengths.write_text("input_len,output_len\n" + "100,20\n" * 500)
    workload = {"name": "paper-fig13a", "lengths": {"sharegpt": str(lengths)}, "num_requests": 20}
    grid = {"scheduler.max_num_seqs": [8, 16, 32, 64], "kv.block_size": [8, 16], "kv.allocator": ["paged", "orca-max"]}
    plan = plan_sweep(Config.of(workload=workload), axes_of_keys(grid))
    assert len(plan.cells) == 16
    whole = [pool for _, pool in made if pool.capacity_blocks > FEW_BLOCKS]
    assert len(whole) == 4
    assert len(read) == 1


def test_a_length_list_that_has_changed_is_read_again(tmp_path):
    lengths, seeds = tmp_path / "lengths.csv", []
    for rows in (50, 60):
        lengths.write_text("input_len,output_len\n" + "100,20\n" * rows)
        config = Config.of(workload={"name": "paper-fig13a", "lengths": {"sharegpt": str(lengths)}})
        seeds.append(identity.seed_of(config, 0))
    assert seeds[0] != seeds[1]
