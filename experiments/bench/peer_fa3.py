"""FlashAttention-3: the extension library of vLLM (a path, or an installed vLLM), or the package flash_attn_interface.

Paged by the block table and, as `fa3-contiguous`, on sequences of one length without one. Of sequences that share
their first tokens also as `fa3-two-calls` (the extension only): the shared tokens as one sequence of all queries, own
tokens as a decode. Its outputs are merged to be checked, but not in the time: it is what a cascade costs at least. The
extension's scheduler metadata is made before the measurement, as serving systems make it once a step.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.bench.contestant import Contestant, Entry, Missing, UnsupportedError, each, uniform_batch
from experiments.bench.inputs import InputSet, Problem
from experiments.bench.shapes import ATTENDS, Kernel

if TYPE_CHECKING:
    from torch import Tensor

NONE_8 = (None,) * 8
Forward = Callable[["Arguments", InputSet], Any]


@dataclass(frozen=True, slots=True)
class Arguments:
    """What every form of the call needs."""

    problem: Problem
    paged: bool
    max_query_len: int
    max_seq_len: int
    starts: Tensor
    """int32 [rows + 1]: first query of each."""
    lens: Tensor
    """int32 [rows]."""
    block_table: Tensor
    causal: bool = True
    metadata: Any = None

    @classmethod
    def of(cls, problem: Problem, *, paged: bool) -> Arguments:
        """The whole problem in one call."""
        longest = max(problem.shape.query_lens), max(problem.shape.seq_lens)
        return cls(problem, paged, *longest, problem.query_start_loc, problem.seq_lens, problem.block_table)

    def planned(self, api: Extension | Package) -> Arguments:
        """With its scheduler metadata."""
        return replace(self, metadata=api.metadata(self))

    def caches(self, one: InputSet) -> tuple[Tensor, Tensor]:
        """[NB, BS, KH, D] with a table, [S, longest, KH, D] without."""
        if self.paged:
            return one.k_cache, one.v_cache
        return uniform_batch(self.problem, one.k_cache), uniform_batch(self.problem, one.v_cache)

    @property
    def table(self) -> Tensor | None:
        """None without paging."""
        return self.block_table if self.paged else None


@dataclass(frozen=True, slots=True)
class Extension:
    """The operators that vLLM's extension registers under torch.ops._vllm_fa3_C."""

    ops: Any

    def metadata(self, made: Arguments, head_size: int = 0, value_size: int = 0) -> Any:
        """Splits and tile order; of K and V of other sizes than the heads', where they are given."""
        problem, heads = made.problem, made.problem.shape.heads
        sizes = head_size or heads.head_size, value_size or heads.head_size
        return self.ops.get_scheduler_metadata(
            *(len(made.lens), made.max_query_len, made.max_seq_len),
            *(heads.num_heads, heads.num_kv_heads, *sizes),
            *(problem.sets[0].q.dtype, made.lens, made.starts, None, None, None, None),
            *(problem.shape.block_size if made.paged else None, 0, made.causal, -1, -1, False, 0, None, 0),
        )

    def forward(self, made: Arguments, one: InputSet) -> Any:
        """Writes `one.out`."""
        return self.attend(made, one, one.out)

    def attend(self, made: Arguments, one: InputSet, out: Tensor) -> Any:
        """Output, log-sum-exp [H, T] and what belongs to splits."""
        problem = made.problem
        k, v = made.caches(one)
        return self.ops.fwd(
            *(one.q, k, v, None, None, None, out, made.starts, None, None, None, made.lens),
            *(made.max_query_len, made.max_seq_len, made.table, *NONE_8, problem.scale, made.causal, -1, -1, 0.0, True),
            *(made.metadata, 0, None, 0, None, 1, 0, None),
        )


@dataclass(frozen=True, slots=True)
class Package:
    """flash_attn_interface of the FlashAttention-3 distribution."""

    module: Any

    def metadata(self, made: Arguments) -> Any:
        """Left to the call: the package's helper changes between releases."""
        return None

    def forward(self, made: Arguments, one: InputSet) -> Any:
        """Returns its output, which it allocates."""
        problem = made.problem
        k, v = made.caches(one)
        return self.module.flash_attn_with_kvcache(
            one.q,
            k,
            v,
            cache_seqlens=made.lens,
            page_table=made.table,
            cu_seqlens_q=made.starts,
            max_seqlen_q=made.max_query_len,
            softmax_scale=problem.scale,
            causal=True,
        )


@dataclass(frozen=True, slots=True)
class FlashAttention3:
    """Decode, prefill and mixed steps, all in one call."""

    name: str
    api: Extension | Package
    kernels: tuple[Kernel, ...] = ATTENDS
    contiguous: bool = False

    def enter(self, problem: Problem) -> Entry:
        """One call a set; of the package the output is what it returns."""
        made = Arguments.of(problem, paged=not self.contiguous)
        made.caches(problem.sets[0])
        made = made.planned(self.api)
        calls = each(problem, lambda one: self.api.forward(made, one))
        return Entry(calls, None if isinstance(self.api, Extension) else lambda out: out)


@dataclass(frozen=True, slots=True)
class Latents:
    """Decode over latents: K is the rotary part, V the rest, which the rest of the query (q_v) meets as well."""

    api: Extension
    name: str = "fa3"
    kernels: tuple[Kernel, ...] = ("mla",)
    contiguous: bool = False

    def enter(self, problem: Problem) -> Entry:
        """One call a set, into its `out`."""
        heads, made = problem.shape.heads, Arguments.of(problem, paged=True)
        rotary = heads.head_size - heads.rank
        metadata = self.api.metadata(made, rotary, heads.rank)
        longest = made.max_query_len, made.max_seq_len

        def call(one: InputSet) -> Any:
            k, q = one.k_cache[..., heads.rank :], one.q[..., heads.rank :]
            return self.api.ops.fwd(
                *(q, k, one.v_cache, None, None, one.q[..., : heads.rank], one.out, made.starts, None, None, None),
                *(made.lens, *longest, made.block_table, *NONE_8, problem.scale, True, -1, -1, 0.0, True),
                *(metadata, 0, None, 0, None, 1, 0, None),
            )

        return Entry(each(problem, call))


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

        shape = problem.shape
        if not shape.shared_tokens:
            raise UnsupportedError("nothing is shared")
        parts = [made.planned(self.api) for made in split_at(problem, shape.shared_tokens)]

        def call(one: InputSet) -> list[Tensor]:
            found = [self.api.attend(made, one, torch.empty_like(one.out)) for made in parts]
            return [tensor for out, lse, *_ in found for tensor in (out, lse.T)]

        return Entry(each(problem, call), lambda returned: merge_outputs(*returned)[0])


def split_at(problem: Problem, tokens: int) -> tuple[Arguments, Arguments]:
    """Sequences with their first `tokens` in common: those as one sequence that all queries see whole, and the rest."""
    import torch

    shape, blocks = problem.shape, tokens // problem.shape.block_size
    whole = Arguments.of(problem, paged=True)

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
    found = _load(library)
    if isinstance(found, Missing):
        return [found]
    both = [FlashAttention3("fa3", found), FlashAttention3("fa3-contiguous", found, contiguous=True)]
    return [*both, TwoCalls(found), Latents(found)] if isinstance(found, Extension) else both


def _load(library: Path | None) -> Extension | Package | Missing:
    import torch

    if library is not None:
        if not library.is_file():
            raise ValueError(f"{library}: no such FlashAttention-3 library")
        operators: Any = torch.ops
        operators.load_library(str(library))
        return Extension(torch.ops._vllm_fa3_C)
    for name in ("flash_attn_interface", "vllm.vllm_flash_attn._vllm_fa3_C"):
        try:
            module = importlib.import_module(name)
        except (ImportError, OSError):
            continue
        return Package(module) if name == "flash_attn_interface" else Extension(torch.ops._vllm_fa3_C)
    return Missing("fa3", "neither flash_attn_interface nor vllm can be imported, and no library was named")
