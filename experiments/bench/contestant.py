"""Who can be measured: a kernel of ours or of a library, as calls over the input sets of a problem."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from experiments.bench.inputs import Problem
from experiments.bench.shapes import Kernel
from experiments.bench.timing import Call

if TYPE_CHECKING:
    from torch import Tensor


class UnsupportedError(Exception):
    """The contestant does not do this shape; the message says why."""


class Missing(NamedTuple):
    """A library that cannot take part here."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Entry:
    """A contestant's calls for one problem, one for each input set."""

    calls: list[Call]
    read: Callable[[Any], Tensor] | None = None
    """The output [T, H, D] from what the first call returned; None: it is in the first set's `out`."""
    config: str = ""
    """How the kernel was launched, where the contestant knows."""
    captured: bool = True
    """Whether a CUDA graph can hold the calls."""


class Contestant(Protocol):
    """A name, and how to call it."""

    @property
    def name(self) -> str:
        """As in the column `peer`."""

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The kinds of problem that it is there for; of others it has no row."""

    @property
    def contiguous(self) -> bool:
        """Whether it reads the memory as sequences one after another, without a block table."""

    def enter(self, problem: Problem) -> Entry:
        """Its calls, host-side planning done; UnsupportedError for shapes it cannot do."""


def written(config: Any) -> str:
    """`block_n=64 num_warps=4 ...`: what the column `config` holds."""
    values = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    return " ".join(f"{name}={value}" for name, value in values.items() if value is not None)


def each(problem: Problem, call: Callable[[Any], Any]) -> list[Call]:
    """One call a set, bound to it."""
    return [partial(call, one) for one in problem.sets]


def contiguous_rows(problem: Problem, cache: Tensor) -> Tensor:
    """[N, KH, D]: the slots of a cache one after another, a view. UnsupportedError where the layout scatters them, or
    sequences share some."""
    if problem.shape.shared_tokens:
        raise UnsupportedError("sequences that share blocks do not lie one after another")
    if problem.shape.layout != "kv_first":
        raise UnsupportedError(f"{problem.shape.layout} has no contiguous rows")
    return cache.view(-1, *cache.shape[2:])


def uniform_batch(problem: Problem, cache: Tensor) -> Tensor:
    """[S, longest, KH, D]: sequences of one length as a batch, a view; UnsupportedError for ragged ones."""
    shape = problem.shape
    if not shape.is_uniform:
        raise UnsupportedError("takes sequences of one length only")
    rows = contiguous_rows(problem, cache)
    padded = shape.blocks_of[0] * shape.block_size
    return rows.view(shape.num_seqs, padded, *rows.shape[1:])[:, : shape.seq_lens[0]]
