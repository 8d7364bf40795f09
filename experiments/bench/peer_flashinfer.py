"""FlashInfer: paged decode on tensor cores and on CUDA cores, paged prefill (FA2 and FA3), and the cache append.

`plan` runs on the host before the measurement: in serving it runs once a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.bench.contestant import Contestant, Entry, Missing, each
from experiments.bench.inputs import Problem
from experiments.bench.shapes import Kernel

if TYPE_CHECKING:
    from engine.attention.libraries.flashinfer import Pages

WORKSPACE_BYTES = 400 * 2**20


def pages_of(problem: Problem) -> Pages:
    """The same table in its words; lengths are known on the host."""
    import torch

    from engine.attention.libraries.flashinfer import pages_of

    lens = torch.tensor(problem.shape.seq_lens, dtype=torch.int32)
    return pages_of(problem.block_table, lens, problem.shape.block_size)


@dataclass(frozen=True, slots=True)
class Attention:
    """One of its wrappers."""

    name: str
    module: Any
    kernels: tuple[Kernel, ...]
    options: tuple[tuple[str, Any], ...]
    contiguous: bool = False

    def enter(self, problem: Problem) -> Entry:
        """Plans, then one run a set into its `out`."""
        import torch

        workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=problem.device)
        decodes = problem.shape.kernel == "decode"
        name = "BatchDecodeWithPagedKVCacheWrapper" if decodes else "BatchPrefillWithPagedKVCacheWrapper"
        wrapper = getattr(self.module, name)(workspace, "NHD", **dict(self.options))
        self._plan(wrapper, problem, decodes)
        return Entry(each(problem, lambda one: wrapper.run(one.q, (one.k_cache, one.v_cache), out=one.out)))

    def _plan(self, wrapper: Any, problem: Problem, decodes: bool) -> None:
        heads, pages, dtype = problem.shape.heads, pages_of(problem), problem.sets[0].q.dtype
        sizes = (heads.num_heads, heads.num_kv_heads, heads.head_size, problem.shape.block_size)
        types = {"q_data_type": dtype, "kv_data_type": dtype}
        if decodes:
            wrapper.plan(pages.indptr, pages.indices, pages.last_page_len, *sizes, **types)
        else:
            queries = problem.query_start_loc.cpu()
            wrapper.plan(queries, pages.indptr, pages.indices, pages.last_page_len, *sizes, causal=True, **types)


@dataclass(frozen=True, slots=True)
class Append:
    """append_paged_kv_cache."""

    module: Any
    name: str = "flashinfer"
    kernels: tuple[Kernel, ...] = ("write",)
    contiguous: bool = False

    def enter(self, problem: Problem) -> Entry:
        """One call a set."""
        import torch

        shape = problem.shape
        pages, device = pages_of(problem), problem.device
        queries = torch.tensor(shape.query_lens, device=device)
        rows = torch.repeat_interleave(torch.arange(shape.num_seqs, device=device), queries).to(torch.int32)
        first = (problem.seq_lens - queries - problem.query_start_loc[:-1])[rows.long()]
        positions = (torch.arange(shape.query_tokens, device=device) + first).to(torch.int32)
        table = (pages.indices, pages.indptr.to(device), pages.last_page_len.to(device))
        append = self.module.append_paged_kv_cache
        calls = each(problem, lambda s: append(s.k, s.v, rows, positions, (s.k_cache, s.v_cache), *table, "NHD"))
        return Entry(calls)


def join(library: Path | None) -> Sequence[Contestant | Missing]:
    """All its variants, if it can be imported."""
    from engine.attention.libraries.flashinfer import FlashInferImpl
    from engine.attention.libraries.found import LibraryMissingError

    try:
        module = FlashInferImpl.load()
    except LibraryMissingError as error:
        return [Missing("flashinfer", str(error))]
    return [
        Attention("flashinfer", module, ("decode",), (("use_tensor_cores", True), ("backend", "fa2"))),
        Attention("flashinfer-cuda-cores", module, ("decode",), (("use_tensor_cores", False),)),
        Attention("flashinfer-fa2", module, ("prefill", "mixed"), (("backend", "fa2"),)),
        Attention("flashinfer-fa3", module, ("prefill", "mixed"), (("backend", "fa3"),)),
        Append(module),
    ]
