"""What torch has: scaled_dot_product_attention (FlashAttention-2 and cuDNN) on contiguous K and V, and index_copy_."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.bench.contestant import Contestant, Entry, Missing, UnsupportedError, each, uniform_batch
from experiments.bench.inputs import InputSet, Problem
from experiments.bench.shapes import MOVES, Kernel

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Sdpa:
    """One back end of scaled_dot_product_attention; sequences of one length, no table: the best contiguous kernels."""

    name: str
    backend: str
    """Of torch.nn.attention.SDPBackend."""
    kernels: tuple[Kernel, ...] = ("decode", "prefill")
    contiguous: bool = True

    def enter(self, problem: Problem) -> Entry:
        """Decode, whole prompts, and (FlashAttention only) chunks on earlier tokens."""
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.nn.functional import scaled_dot_product_attention

        shape = problem.shape
        mask: dict[str, Any] = self._mask(shape.query_lens[0], shape.seq_lens[0])
        backend = getattr(SDPBackend, self.backend)

        def call(one: InputSet) -> Tensor:
            k, v = (uniform_batch(problem, cache).transpose(1, 2) for cache in (one.k_cache, one.v_cache))
            q = one.q.view(shape.num_seqs, -1, *one.q.shape[1:]).transpose(1, 2)  # [S, H, queries, D]
            with sdpa_kernel(backend):
                return scaled_dot_product_attention(q, k, v, scale=problem.scale, enable_gqa=True, **mask)

        uniform_batch(problem, problem.sets[0].k_cache)
        return Entry(each(problem, call), lambda out: out.transpose(1, 2).flatten(0, 1))

    def _mask(self, query: int, length: int) -> dict[str, Any]:
        if query == 1:
            return {}
        if query == length:
            return {"is_causal": True}
        if self.backend != "FLASH_ATTENTION":
            raise UnsupportedError("its causal mask is aligned to the first key: no queries after earlier tokens")
        from torch.nn.attention.bias import causal_lower_right

        return {"attn_mask": causal_lower_right(query, length)}


@dataclass(frozen=True, slots=True)
class IndexCopy:
    """Writes and block copies with torch's own indexing."""

    name: str = "torch-index-copy"
    kernels: tuple[Kernel, ...] = MOVES
    contiguous: bool = False

    def enter(self, problem: Problem) -> Entry:
        """Two kernels a write, four a copy."""
        if problem.shape.kernel == "write":
            return Entry(each(problem, lambda one: self._write(problem, one)))
        return Entry(each(problem, lambda one: self._copy(problem, one)))

    def _write(self, problem: Problem, one: InputSet) -> None:
        for cache, new in ((one.k_cache, one.k), (one.v_cache, one.v)):
            cache.flatten(0, 1).index_copy_(0, problem.slot_mapping, new)

    def _copy(self, problem: Problem, one: InputSet) -> None:
        sources, targets = problem.pairs[:, 0], problem.pairs[:, 1]
        for cache in (one.k_cache, one.v_cache):
            cache.index_copy_(0, targets, cache.index_select(0, sources))


def join(library: Path | None) -> Sequence[Contestant | Missing]:
    """Always here: torch is what measures."""
    return [Sdpa("torch-flash", "FLASH_ATTENTION"), Sdpa("torch-cudnn", "CUDNN_ATTENTION"), IndexCopy()]
