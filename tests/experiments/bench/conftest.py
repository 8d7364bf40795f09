"""What stands in for a device: a stopwatch that runs the calls and returns the times it was given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from experiments.bench.contestant import Entry, UnsupportedError, each
from experiments.bench.inputs import InputSet, Problem
from experiments.bench.timing import Call


class ScriptedStopwatch:
    """Runs what it captures; every replay takes the next of `times_s`, the last one again and again."""

    def __init__(self, *times_s: float) -> None:
        self.times_s = list(times_s)
        self.num_syncs, self.num_graphs, self.replays = 0, 0, []

    def synchronize(self) -> None:
        self.num_syncs += 1

    def capture(self, calls: Sequence[Call]) -> Any:
        self.num_graphs += 1
        return list(calls)

    def replay_s(self, graph: Any, num_replays: int) -> list[float]:
        self.replays.append(num_replays)
        times = []
        for _ in range(num_replays):
            for call in graph if isinstance(graph, list) else [graph.replay]:
                call()
            times.append(self.times_s.pop(0) if len(self.times_s) > 1 else self.times_s[0])
        return times


class Plain:
    """A contestant in plain torch: attention by the table, or contiguous; `wrong` is added to its output."""

    def __init__(self, name: str = "pagelab", *, contiguous: bool = False, wrong: float = 0.0) -> None:
        self.name, self.contiguous, self.wrong = name, contiguous, wrong
        self.kernels = ("decode", "prefill", "mixed")

    def enter(self, problem: Problem) -> Entry:
        if problem.shape.kernel not in self.kernels:
            raise UnsupportedError(f"no {problem.shape.kernel}")
        return Entry(each(problem, lambda one: self.call(problem, one)), config="plain")

    def call(self, problem: Problem, one: InputSet) -> None:
        """Token by token, by slots: written apart from `truth`."""
        import torch

        shape, token = problem.shape, 0
        groups = shape.heads.num_heads // shape.heads.num_kv_heads
        k, v = (cache.reshape(-1, *cache.shape[2:]).float() for cache in (one.k_cache, one.v_cache))
        for row, (length, query) in enumerate(zip(shape.seq_lens, shape.query_lens, strict=True)):
            slots = self.slots(problem, row, length)
            for position in range(length - query, length):
                seen = slots[: position + 1]
                keys, values = (x[seen].repeat_interleave(groups, 1) for x in (k, v))
                scores = (one.q[token].float()[None] * keys).sum(-1) * problem.scale
                shares = torch.softmax(scores, 0)
                one.out[token] = ((shares[..., None] * values).sum(0) + self.wrong).to(one.out.dtype)
                token += 1

    def slots(self, problem: Problem, row: int, length: int) -> Any:
        """Of a sequence's tokens."""
        import torch

        positions = torch.arange(length)
        if self.contiguous:
            return int(problem.starts[row]) + positions
        size = problem.shape.block_size
        return problem.block_table[row, positions // size].long() * size + positions % size


class Raising(Plain):
    """Raises when called."""

    def call(self, problem: Problem, one: InputSet) -> None:
        raise ValueError("no such\nkernel")


@pytest.fixture
def stopwatch() -> Callable[..., ScriptedStopwatch]:
    return ScriptedStopwatch


@pytest.fixture
def plain() -> type[Plain]:
    return Plain


@pytest.fixture
def raising() -> type[Raising]:
    return Raising
