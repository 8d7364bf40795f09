"""Measures contestants on shapes: poison, run, check, time; a failure costs its own row and no other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from experiments.bench import truth
from experiments.bench.contestant import Contestant, Entry, UnsupportedError
from experiments.bench.inputs import Arena, Problem, problem_of
from experiments.bench.rows import Row, row_of
from experiments.bench.shapes import Kernel, Shape
from experiments.bench.timing import Stopwatch, measure

if TYPE_CHECKING:
    from torch import Tensor

Say = Callable[[str], None]
REASON_CHARS: Final = 300


class Bench:
    """One device, one arena, one stopwatch."""

    def __init__(
        self, arena: Arena, stopwatch: Stopwatch, *, seed: int = 0, note: dict[str, Any] | None = None
    ) -> None:
        self.arena, self.stopwatch, self.seed = arena, stopwatch, seed
        self.note = {"seed": seed, **(note or {})}
        """Columns that all rows share."""

    def rows(self, shape: Shape, contestants: Sequence[Contestant]) -> Iterator[Row]:
        """A row a contestant, in order. Errors that leave the device unusable are raised."""
        try:
            problem = problem_of(shape, self.arena, self.seed)
        except ValueError as error:
            for one in contestants:
                yield self._row(shape, one, status="unsupported", reason=str(error))
            return
        wanted: dict[bool, Tensor] = {}
        for one in contestants:
            yield self._measured(problem, one, wanted)
        del problem
        self._release()

    def _measured(self, problem: Problem, one: Contestant, wanted: dict[bool, Tensor]) -> Row:
        try:
            entry = one.enter(problem)
            error = self._error(problem, entry, one, wanted)
            if not error <= truth.LARGEST_ERROR:
                text = f"relative error {error:.3g} against float32"
                return self._row(
                    problem.shape, one, status="wrong", reason=text, relative_error=error, config=entry.config
                )
            timing = measure(entry.calls, self.stopwatch, captured=entry.captured)
        except UnsupportedError as reason:
            return self._row(problem.shape, one, status="unsupported", reason=str(reason))
        except Exception as problem_of_theirs:  # noqa: BLE001 - whatever a library raises is its row's reason
            self._raise_if_lost(problem_of_theirs)
            text = f"{type(problem_of_theirs).__name__}: {problem_of_theirs}"[:REASON_CHARS]
            return self._row(problem.shape, one, status="failed", reason=" ".join(text.split()))
        return self._row(problem.shape, one, status="ok", timing=timing, relative_error=error, config=entry.config)

    def _row(self, shape: Shape, one: Contestant, **values: Any) -> Row:
        return row_of(
            shape, one.name, contiguous=one.contiguous, swept=getattr(one, "swept", False), **values, **self.note
        )

    def _error(self, problem: Problem, entry: Entry, one: Contestant, wanted: dict[bool, Tensor]) -> float:
        """Runs the first call on poisoned memory, and compares."""
        first = problem.sets[0]
        if problem.shape.kernel == "write":
            return truth.write_error(problem, entry.calls[0], self.stopwatch)
        if problem.shape.kernel == "copy":
            return truth.copy_error(problem, entry.calls[0], self.stopwatch)
        if one.contiguous not in wanted:
            wanted[one.contiguous] = truth.expected(problem, first, contiguous=one.contiguous)
        first.out.fill_(float("nan"))
        returned = entry.calls[0]()
        self.stopwatch.synchronize()
        out = entry.read(returned) if entry.read else first.out
        return truth.attention_error(problem, out, wanted[one.contiguous])

    def _raise_if_lost(self, error: Exception) -> None:
        """Some CUDA errors are sticky: every later call would fail, and its rows would lie. Waiting shows them."""
        try:
            self.stopwatch.synchronize()
        except RuntimeError as lost:
            raise RuntimeError(f"the device is lost: {lost}") from error

    def _release(self) -> None:
        import torch

        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def chosen(
    kernel: Kernel, ours: Sequence[Contestant], names: Sequence[str], peers: Sequence[Contestant]
) -> list[Contestant]:
    """Those of ours that a case names, in its order, and all peers where it says so; those for this kernel only."""
    found: list[Contestant] = []
    for name in names:
        found += peers if name == "peers" else [one for one in ours if one.name == name]
    return [one for one in found if kernel in one.kernels]
