"""`bench alloc`: every call is timed and none is changed."""

import json

import pytest

from engine.core.contract import run_contract
from engine.core.registry import PoolConfig, make_allocator
from engine.core.request import Request
from experiments.bench import timed_allocator
from experiments.bench.alloc_run import FILLS, AllocWanted, measure, report, requests_of
from experiments.bench.engine_rows import from_csv
from experiments.bench.timed_allocator import OPERATIONS, TimedAllocator, stopwatch_ns

WANTED = AllocWanted(("paged", "orca-oracle"), (4096,), (16,))


@pytest.mark.parametrize("made", [timed_allocator.timed_paged, timed_allocator.timed_orca_oracle])
@pytest.mark.parametrize("seed", range(4))
def test_a_timed_allocator_keeps_the_contract(made, seed):
    assert run_contract(made, seed=seed) > 0


def test_each_operation_has_its_time_and_refusals_are_apart():
    ticks = iter(range(0, 1000, 5))
    timed = TimedAllocator(make_allocator("paged", PoolConfig(4, 16, 256)), lambda: next(ticks))
    first, second = Request(0, 40, 8), Request(1, 40, 8)
    timed.admit(first, 40)
    timed.admit(second, 40)
    timed.extend([first], [41])
    timed.block_table(first)
    timed.free(first)
    counts = {name: len(times) for name, times in timed.times_ns.items()}
    assert counts == dict.fromkeys(OPERATIONS, 0) | {
        "admit": 1, "admit-refused": 1, "extend": 1, "block_table": 1, "free": 1
    }  # fmt: skip
    assert {value for times in timed.times_ns.values() for value in times} == {5}


def test_the_stopwatch_is_worth_an_empty_measurement():
    ticks = iter(range(0, 10_000, 7))
    assert stopwatch_ns(lambda: next(ticks), 9) == 7


def test_requests_fill_the_pool_so_often_and_depend_on_the_seed_alone():
    first, again, other = (list(requests_of(4096, seed)) for seed in (0, 0, 1))
    lengths = [(r.num_prompt_tokens, r.num_stop_tokens) for r in first]
    assert lengths == [(r.num_prompt_tokens, r.num_stop_tokens) for r in again]
    assert lengths != [(r.num_prompt_tokens, r.num_stop_tokens) for r in other]
    total = sum(map(sum, lengths))
    assert FILLS * 4096 <= total < FILLS * 4096 + 900


def test_every_request_is_admitted_and_freed_and_the_queue_is_refused():
    said = []
    rows = measure(WANTED, said.append)
    assert said == ["paged, 4,096 tokens in blocks of 16", "orca-oracle, 4,096 tokens in blocks of 16"]
    num_requests = len(list(requests_of(4096, 0)))
    by_place = {(row["allocator"], row["operation"]): row for row in rows}
    assert by_place["orca-oracle", "admit"]["num_calls"] == num_requests  # never preempted
    for name in WANTED.allocators:
        assert by_place[name, "free"]["num_calls"] == by_place[name, "admit"]["num_calls"] >= num_requests
        assert by_place[name, "admit-refused"]["num_calls"] > 0
        for operation in OPERATIONS:
            row = by_place[name, operation]
            if row["num_calls"]:
                assert 0 <= row["p20_s"] <= row["median_s"] <= row["p80_s"]
                assert row["per_request_s"] == pytest.approx(row["total_s"] / num_requests)
            else:
                assert row["median_s"] is None
    assert by_place["paged", "admit"]["mean_batch_size"] > by_place["orca-oracle", "admit"]["mean_batch_size"]
    lines = report(rows)
    assert len(lines) == 3
    assert lines[1].startswith("paged")


def test_the_verb_writes_rows_and_a_manifest(pagelab, tmp_path):
    words = ("bench", "alloc", "--allocator", "paged", "--pool-tokens", "4096", "--block-size", "16", "-o", "out")
    done = pagelab(*words)
    assert done.code == 0, done.err
    assert "median us of a call" in done.out
    rows = from_csv((tmp_path / "out/summary.csv").read_text())
    assert [row["operation"] for row in rows] == list(OPERATIONS)
    assert json.loads((tmp_path / "out/manifest.json").read_text())["config"]["pool_tokens"] == [4096]
    assert pagelab("validate", "out").code == 0
    assert pagelab(*words).code == 2
    assert pagelab(*words, "--overwrite").code == 0


@pytest.mark.parametrize(
    "words,said",
    [
        (("--allocator", "pagedd"), "unknown allocator"),
        (("--pool-tokens", "512"), "requests grow to 1024 tokens, got a pool of 512"),
        (("--block-size", "-1"), "block_sizes: need numbers of at least 1"),
    ],
)
def test_what_cannot_be_made_is_exit_2_before_anything_runs(pagelab, words, said):
    done = pagelab("bench", "alloc", *words)
    assert done.code == 2
    assert said in done.err
