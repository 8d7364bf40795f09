"""FlashAttention-3: the extension library of vLLM (a path, or an installed vLLM), or the package flash_attn_interface.

Paged by the block table and, as `fa3-contiguous`, on sequences of one length without one. The extension's scheduler
metadata is made before the measurement, as serving systems make it once a step.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.bench.contestant import Contestant, Entry, Missing, each, uniform_batch
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
    metadata: Any = None

    def caches(self, one: InputSet) -> tuple[Tensor, Tensor]:
        """[NB, BS, KH, D] with a table, [S, longest, KH, D] without."""
        if self.paged:
            return one.k_cache, one.v_cache
        return uniform_batch(self.problem, one.k_cache), uniform_batch(self.problem, one.v_cache)

    @property
    def table(self) -> Tensor | None:
        """None without paging."""
        return self.problem.block_table if self.paged else None


@dataclass(frozen=True, slots=True)
class Extension:
    """The operators that vLLM's extension registers under torch.ops._vllm_fa3_C."""

    ops: Any

    def metadata(self, made: Arguments) -> Any:
        """Splits and tile order."""
        problem, heads = made.problem, made.problem.shape.heads
        return self.ops.get_scheduler_metadata(
            *(problem.shape.num_seqs, made.max_query_len, made.max_seq_len),
            *(heads.num_heads, heads.num_kv_heads, heads.head_size, heads.head_size),
            *(problem.sets[0].q.dtype, problem.seq_lens, problem.query_start_loc, None, None, None, None),
            *(problem.shape.block_size if made.paged else None, 0, True, -1, -1, False, 0, None, 0),
        )

    def forward(self, made: Arguments, one: InputSet) -> Any:
        """Writes `one.out`."""
        problem = made.problem
        k, v = made.caches(one)
        return self.ops.fwd(
            *(one.q, k, v, None, None, None, one.out, problem.query_start_loc, None, None, None, problem.seq_lens),
            *(made.max_query_len, made.max_seq_len, made.table, *NONE_8, problem.scale, True, -1, -1, 0.0, True),
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
            cache_seqlens=problem.seq_lens,
            page_table=made.table,
            cu_seqlens_q=problem.query_start_loc,
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
        shape = problem.shape
        made = Arguments(problem, not self.contiguous, max(shape.query_lens), max(shape.seq_lens))
        made.caches(problem.sets[0])
        made = Arguments(problem, made.paged, made.max_query_len, made.max_seq_len, self.api.metadata(made))
        calls = each(problem, lambda one: self.api.forward(made, one))
        return Entry(calls, None if isinstance(self.api, Extension) else lambda out: out)


def join(library: Path | None) -> Sequence[Contestant | Missing]:
    """A named library that does not load is an error of the user's; without one, whatever is installed."""
    found = _load(library)
    if isinstance(found, Missing):
        return [found]
    return [FlashAttention3("fa3", found), FlashAttention3("fa3-contiguous", found, contiguous=True)]


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
