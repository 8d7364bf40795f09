"""The one-layer executor: tensors behind the same seam, and the same tokens whatever the memory looks like."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the one-layer executor computes on torch tensors")

from engine.core.content import TokenContent  # noqa: E402
from engine.core.limits import SchedulerConfig  # noqa: E402
from engine.core.registry import FITS, PoolConfig, make_allocator  # noqa: E402
from engine.core.request import Request  # noqa: E402
from engine.core.scheduler import Scheduler  # noqa: E402
from engine.core.step import step  # noqa: E402
from engine.worker.one_layer import OneLayerExecutor, WrongOutput  # noqa: E402
from sim.cost_executor import CostExecutor  # noqa: E402
from sim.simulate import RunSpec  # noqa: E402
from tests.sim.cases import Case, differences, play, random_case, random_model  # noqa: E402
from tests.sim.planting import instead  # noqa: E402
from workloads import Trace  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")
ALLOCATORS = ("paged", "orca-max", "orca-pow2", "orca-oracle", *(f"contiguous-chunk(16)-{fit}" for fit in FITS))
SLOTS, LONGEST = 96, 64


def requests(tokens: bool) -> list[Request]:
    """Two texts between them, prompts of several blocks, outputs long enough to outgrow the pool together."""
    rng = Random(5)
    texts = [[rng.randrange(64) for _ in range(LONGEST)] for _ in range(2)]
    made = []
    for index in range(8):
        prompt, output = rng.randint(1, 30), rng.randint(1, 24)
        content = TokenContent(rng.choice(texts)[:prompt]) if tokens else None
        made.append(Request(index, prompt, output + 3, oracle_output_tokens=output, content=content))
    return made


def serve(allocator: str, block_size: int, *, tokens: bool = True, **limits: Any) -> tuple[OneLayerExecutor, Scheduler]:
    """All requests at once, until none is left."""
    pool = PoolConfig(SLOTS // block_size, block_size, max_model_len=LONGEST)
    scheduler = Scheduler(SchedulerConfig(LONGEST, **limits), make_allocator(allocator, pool))
    executor = OneLayerExecutor(scheduler.allocator, duration_ps=lambda batch: batch.num_seqs)
    for request in requests(tokens):
        assert not scheduler.refuses_forever(request)
        scheduler.add(request)
    for _ in range(2_000):
        if not scheduler.running and not scheduler.waiting:
            return executor, scheduler
        step(scheduler, executor)
    raise AssertionError("not served in 2,000 steps")


@pytest.fixture(scope="module")
def expected() -> dict[object, list[int]]:
    """Greedy tokens with room for all, one block a request, whole prompts: nothing to get wrong."""
    return serve("orca-oracle", 1, max_num_seqs=1)[0].outputs


@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_every_allocator_and_block_size_gives_the_same_greedy_tokens(allocator, block_size, expected):
    for budget in (5, 64):
        executor, _ = serve(allocator, block_size, max_num_batched_tokens=budget, full_sequence_gate=False)
        assert executor.outputs == expected


def test_the_cases_above_share_prefixes_move_blocks_and_preempt(expected):
    preempted, hits, copies = 0, 0, 0
    for allocator in ALLOCATORS:
        _, scheduler = serve(allocator, 4, full_sequence_gate=False)
        hits += scheduler.prefix.hits + scheduler.prefix.preempted_hits
        preempted += scheduler.prefix.preempted_queries
        copies += scheduler.allocator.stats().num_copies
    assert min(preempted, hits, copies) > 0
    assert len({tuple(tokens) for tokens in expected.values()}) > 4


def test_private_prompts_are_the_same_in_every_run():
    first, second = (serve("paged", 4, tokens=False)[0].outputs for _ in range(2))
    assert first == second
    assert len({tuple(tokens) for tokens in first.values()}) > 4


def test_a_simulation_on_tensors_decides_as_one_on_a_cost_model():
    """Given durations, the executors differ in nothing that a replay can see."""

    def durations(allocator: Any, model: Any, **options: int) -> OneLayerExecutor:
        cost = CostExecutor(model, **options)
        return OneLayerExecutor(allocator, duration_ps=lambda batch: cost.submit(batch).duration)

    for seed in range(30):
        case = random_case(seed)
        if case.tokens is None:
            assert not differences(play(case, lambda longest: 1).seen, play(case, executor=durations).seen)


def test_without_durations_it_measures():
    trace = Trace.build([0, 0], [3, 5], [4, 2])
    spec = RunSpec("paged", PoolConfig(8, 4, max_model_len=16), SchedulerConfig(16))
    case = Case(0, spec, trace, random_model(Random(0)), None)
    run = play(case, executor=lambda allocator, model, **options: OneLayerExecutor(allocator)).run
    assert [row.status for row in run.rows] == ["finished", "finished"]
    assert run.makespan > 0


def test_samples_are_answered_and_appended_to_content_that_did_not_know_them():
    allocator = make_allocator("paged", PoolConfig(8, 4, max_model_len=16))
    scheduler, executor = (
        Scheduler(SchedulerConfig(16), allocator),
        OneLayerExecutor(allocator, duration_ps=lambda _: 1),
    )
    request = Request("a", 3, 4, content=TokenContent([7, 8, 9]))
    scheduler.add(request)
    sampled = []
    while scheduler.running or scheduler.waiting:
        sampled.append(step(scheduler, executor).result.sampled[request])
    assert request.content.tokens == [7, 8, 9, *sampled]
    assert executor.outputs == {"a": sampled}


# Faults ---------------------------------------------------------------------------------------------------------------


def one_slot_further(original: Callable[..., Any], executor: OneLayerExecutor, slots: Any, k: Any, v: Any) -> None:
    original(executor, (slots + 1).clamp(max=executor.kv.shape[1] * executor.kv.shape[2] - 1), k, v)


def after_the_read(original: Callable[..., Any], executor: OneLayerExecutor, slots: Any, k: Any, v: Any) -> None:
    late = getattr(executor, "late", None)
    if late is not None:
        original(executor, *late)
    executor.late = (slots, k, v)  # type: ignore[attr-defined]


def one_token_of_another_block(original: Callable[..., Any], executor: OneLayerExecutor, table: Any, count: int) -> Any:
    return original(executor, [*table[:-1], table[0]] if len(table) > 1 else table, count)


FAULTS = {
    "slot off by one": ("write", one_slot_further),
    "read before write": ("write", after_the_read),
    "wrong last block": ("read", one_token_of_another_block),
}


@pytest.mark.parametrize("block_size", [1, 4])
@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults_give_wrong_outputs(name, block_size):
    method, faulty = FAULTS[name]
    with instead(OneLayerExecutor, method, faulty), pytest.raises(WrongOutput, match="block table"):
        serve("paged", block_size)


def test_moves_without_copies_give_wrong_outputs():
    def run(original: Callable[..., Any], executor: OneLayerExecutor, batch: Any) -> Any:
        batch.copies = ()
        return original(executor, batch)

    with instead(OneLayerExecutor, "_run", run), pytest.raises(WrongOutput):
        serve("contiguous-chunk(16)-first-fit", 4, full_sequence_gate=False)


def test_outputs_can_be_verified_on_demand():
    allocator = make_allocator("paged", PoolConfig(8, 4, max_model_len=16))
    scheduler, executor = (
        Scheduler(SchedulerConfig(16), allocator),
        OneLayerExecutor(allocator, duration_ps=lambda _: 1),
    )
    request = Request("a", 3, 9)
    scheduler.add(request)
    executor.verify(request)  # nothing sampled yet
    for _ in range(3):
        step(scheduler, executor)
    executor.verify(request)
    executor.kv[0, list(request.blocks)] += 1.0
    step(scheduler, executor)
    with pytest.raises(WrongOutput, match="output 3"):
        executor.verify(request)


def test_heads_must_divide():
    allocator = make_allocator("paged", PoolConfig(8, 4, max_model_len=16))
    with pytest.raises(ValueError, match="num_heads=4"):
        OneLayerExecutor(allocator, num_kv_heads=3)
