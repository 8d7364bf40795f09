"""Two pieces of work compared on a machine that has others: in turns, by CPU seconds, results checked off the clock."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable
from statistics import median
from typing import Any, NamedTuple

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from engine.core.limits import SchedulerConfig
from engine.core.registry import PoolConfig
from sim.cost import parse_step_model
from sim.cost_executor import CostExecutor
from sim.simulate import Run, RunSpec, Simulation
from tests.benchmarks.yardstick import Outcome, Yardstick
from workloads import Trace

NUM_BLOCKS, BLOCK_SIZE, MAX_MODEL_LEN = 6912, 16, 4096
STEP_MODEL = "linear:9.75e-3,38e-6,0.287e-6,89e-6"
LINES = pytest.StashKey[list[str]]()
"""What is printed under the tables."""

Report = Callable[[str], None]


class Workload(NamedTuple):
    """A trace, and what the yardstick makes of it where that is known: makespan, steps, preemptions."""

    name: str
    trace: Trace
    expected: tuple[int, int, int] | None


class Work(NamedTuple):
    """`prepare()` is not timed and returns what is; `check(result)` asserts and is not timed either."""

    prepare: Callable[[], Callable[[], Any]]
    check: Callable[[Any], None]


class Pairs(NamedTuple):
    """CPU seconds of two pieces of work, round by round."""

    ours: list[float]
    theirs: list[float]

    def ratios(self, scale: float = 1.0) -> tuple[float, float]:
        """Best of all rounds over best of all rounds, and the median over the rounds' own ratios."""
        each = [scale * a / b for a, b in zip(self.ours, self.theirs, strict=True)]
        return scale * min(self.ours) / min(self.theirs), median(each)


def timed(work: Work) -> float:
    """CPU seconds of one go."""
    go = work.prepare()
    gc.collect()
    start = time.process_time()
    result = go()
    seconds = time.process_time() - start
    work.check(result)
    return seconds


def in_turns(benchmark: BenchmarkFixture, ours: Work, theirs: Work, *, rounds: int) -> Pairs:
    """Benchmarks `ours`; each round is preceded by one of `theirs`."""
    pairs = Pairs([], [])
    go: Callable[[], Any]
    result: Any = None

    def before() -> None:
        nonlocal go, result
        result = None
        pairs.theirs.append(timed(theirs))
        go = ours.prepare()
        gc.collect()

    def turn() -> None:
        nonlocal result
        start = time.process_time()
        result = go()
        pairs.ours.append(time.process_time() - start)

    pedantic(benchmark, turn, before, rounds)
    ours.check(result)
    return pairs


def pedantic(benchmark: BenchmarkFixture, target: Callable[..., Any], setup: Callable[[], Any], rounds: int) -> Any:
    """`rounds` single calls, each after `setup()`, whose result may be (arguments, keywords)."""
    return benchmark.pedantic(target, setup=setup, rounds=rounds)  # type: ignore[no-untyped-call]


def verdict(name: str, ratios: tuple[float, float], limit: float, aim: float | None = None) -> str:
    """One line."""
    best, middle = ratios
    wanted = f"limit {limit:g}x" + (f", aim {aim:g}x" if aim else "")
    return f"{name} = {best:.2f}x ({wanted}; median of pairs {middle:.2f}x): {'ok' if best <= limit else 'TOO SLOW'}"


def spec_of(num_blocks: int = NUM_BLOCKS, max_num_seqs: int = 256, *, skip: bool = True) -> RunSpec:
    """The preset `vllm`, with its prefix cache, in the pool and with the limits of the yardstick."""
    pool = PoolConfig(num_blocks, BLOCK_SIZE, MAX_MODEL_LEN)
    limits = SchedulerConfig(max_model_len=MAX_MODEL_LEN, max_num_seqs=max_num_seqs, max_num_batched_tokens=4096)
    return RunSpec("paged", pool, limits, skip=skip)


def replay_of(trace: Trace, spec: RunSpec, note: Callable[[Run], None] = lambda run: None) -> Work:
    """The replay alone, as of the yardstick: from made requests to raw rows and integrals; then the equations."""
    model = parse_step_model(STEP_MODEL)

    def prepare() -> Callable[[], Simulation]:
        simulation = Simulation(spec, trace, CostExecutor(model), load=True)

        def go() -> Simulation:
            simulation.replay()
            return simulation

        return go

    def check(simulation: Simulation) -> None:
        run = simulation.run()
        assert len(run.rows) == len(trace)
        assert {row.status for row in run.rows} == {"finished"}
        assert [check.name for check in run.checks if not check.holds] == []
        note(run)

    return Work(prepare, check)


def yardstick_of(workload: Workload) -> Work:
    """The same trace through the yardstick."""
    _, trace, expected = workload
    columns = (1_000 * trace.arrival_ns, trace.num_prompt_tokens, trace.num_output_tokens)
    rows: Iterable[Any] = list(zip(*(column.tolist() for column in columns), strict=True))

    def check(outcome: Outcome) -> None:
        assert len(outcome.times) == len(trace)
        assert min(min(times) for times in outcome.times) > 0
        assert outcome.makespan == max(finish for _, finish in outcome.times)
        if expected is not None:
            assert outcome[:3] == expected

    return Work(lambda: Yardstick(rows, NUM_BLOCKS).run, check)
