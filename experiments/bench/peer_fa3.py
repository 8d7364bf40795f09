"""FlashAttention-3: the extension library of vLLM (a path, or an installed vLLM), or the package flash_attn_interface.

Paged by the block table and, as `fa3-contiguous`, on sequences of one length without one. Of sequences that share
their first tokens also as `fa3-two-calls` (the extension only): the shared tokens as one sequence of all queries, own
tokens as a decode. Its outputs are merged to be checked, but not in the time: it is what a cascade costs at least. The
extension's scheduler metadata is made before the measurement, as serving systems make it once a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.bench.contestant import Contestant, Entry, Missing, UnsupportedError, each, uniform_batch
from experiments.bench.inputs import InputSet, Problem
from experiments.bench.shapes import ATTENDS, Kernel

if TYPE_CHECKING:
    from torch import Tensor

    from engine.attention.libraries.fa3 import Call, Extension, Package


def call_of(problem: Problem, *, paged: bool) -> Call:
    """The whole problem in one call, with or without its block table."""
    from engine.attention.libraries.fa3 import Call

    return Call(
        problem.query_start_loc,
        problem.seq_lens,
        problem.block_table if paged else None,
        max(problem.shape.query_lens),
        max(problem.shape.seq_lens),
        problem.scale,
    )


def caches_of(problem: Problem, one: InputSet, *, paged: bool) -> tuple[Tensor, Tensor]:
    """[NB, BS, KH, D] with a table, [S, longest, KH, D] without."""
    if paged:
        return one.k_cache, one.v_cache
    return uniform_batch(problem, one.k_cache), uniform_batch(problem, one.v_cache)


@dataclass(frozen=True, slots=True)
class FlashAttention3:
    """Decode, prefill and mixed steps, all in one call."""

    name: str
    api: Extension | Package
    kernels: tuple[Kernel, ...] = ATTENDS
    contiguous: bool = False

    def enter(self, problem: Problem) -> Entry:
        """One call a set; of the package the output is what it returns."""
        paged, first = not self.contiguous, problem.sets[0]
        call = self.api.planned(call_of(problem, paged=paged), first.q, caches_of(problem, first, paged=paged)[0])

        def attend(one: InputSet) -> Any:
            return self.api.attend(call, one.q, *caches_of(problem, one, paged=paged), one.out)

        return Entry(each(problem, attend), lambda returned: returned[0])


@dataclass(frozen=True, slots=True)
class Latents:
    """Decode over latents: K is the rotary part, V the rest, which the rest of the query (q_v) meets as well."""

    api: Extension
    name: str = "fa3"
    kernels: tuple[Kernel, ...] = ("mla",)
    contiguous: bool = False

    def enter(self, problem: Problem) -> Entry:
        """One call a set, into its `out`."""
        heads, call = problem.shape.heads, call_of(problem, paged=True)
        rotary = heads.head_size - heads.rank
        call = self.api.planned(call, problem.sets[0].q, problem.sets[0].k_cache, sizes=(rotary, heads.rank))

        def attend(one: InputSet) -> Any:
            k, q = one.k_cache[..., heads.rank :], one.q[..., heads.rank :]
            return self.api.attend(call, q, k, one.v_cache, one.out, q_v=one.q[..., : heads.rank])

        return Entry(each(problem, attend))


@dataclass(frozen=True, slots=True)
class TwoCalls:
    """What all sequences share, and what each has of its own, in a call each."""

    api: Extension
    name: str = "fa3-two-calls"
    kernels: tuple[Kernel, ...] = ("decode",)
    contiguous: bool = False

    def enter(self, problem: Problem) -> Entry:
        """Two calls a set, each with an output of its own; merged where the output is read."""
        import torch

        from engine.attention.merge import merge_outputs

        shape, first = problem.shape, problem.sets[0]
        if not shape.shared_tokens:
            raise UnsupportedError("nothing is shared")
        parts = [self.api.planned(call, first.q, first.k_cache) for call in split_at(problem, shape.shared_tokens)]

        def attend(one: InputSet) -> list[Tensor]:
            k, v = one.k_cache, one.v_cache
            found = [self.api.attend(call, one.q, k, v, torch.empty_like(one.out)) for call in parts]
            return [tensor for out, lse, *_ in found for tensor in (out, lse.T)]

        return Entry(each(problem, attend), lambda returned: merge_outputs(*returned)[0])


def split_at(problem: Problem, tokens: int) -> tuple[Call, Call]:
    """Sequences with their first `tokens` in common: those as one sequence that all queries see whole, and the rest."""
    import torch

    shape, blocks = problem.shape, tokens // problem.shape.block_size
    whole = call_of(problem, paged=True)

    def integers(*values: int) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=problem.device)

    shared = replace(
        whole,
        max_query_len=shape.num_seqs,
        max_seq_len=tokens,
        starts=integers(0, shape.num_seqs),
        lens=integers(tokens),
        block_table=problem.block_table[:1, :blocks].contiguous(),
        causal=False,
    )
    own = replace(
        whole,
        max_seq_len=whole.max_seq_len - tokens,
        lens=problem.seq_lens - tokens,
        block_table=problem.block_table[:, blocks:].contiguous(),
    )
    return shared, own


def join(library: Path | None) -> Sequence[Contestant | Missing]:
    """A named library that does not load is an error of the user's; without one, whatever is installed."""
    from engine.attention.libraries.fa3 import Extension, load
    from engine.attention.libraries.found import LibraryMissingError

    try:
        found = load(library)
    except LibraryMissingError as error:
        if library is not None:
            raise ValueError(f"FlashAttention-3: {error}") from error
        return [Missing("fa3", str(error))]
    both = [FlashAttention3("fa3", found), FlashAttention3("fa3-contiguous", found, contiguous=True)]
    return [*both, TwoCalls(found), Latents(found)] if isinstance(found, Extension) else both
