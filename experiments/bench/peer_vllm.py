"""vLLM's Triton kernels: unified attention, launched as vLLM launches it, and reshape_and_cache."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.bench.contestant import Contestant, Entry, Missing, each
from experiments.bench.inputs import InputSet, Problem
from experiments.bench.shapes import ATTENDS, Kernel

UNIFIED = "vllm.v1.attention.ops.triton_unified_attention"
RESHAPE = "vllm.v1.attention.ops.triton_reshape_and_cache_flash"
NUM_SEGMENTS = 16
PROGRAMS_2D = 128
"""Above this many (sequence, KV head) pairs vLLM does not split the KV of a sequence."""


@dataclass(frozen=True, slots=True)
class Unified:
    """One call for decodes, chunks and both."""

    function: Any
    name: str = "vllm-triton"
    kernels: tuple[Kernel, ...] = ATTENDS
    contiguous: bool = False

    def enter(self, problem: Problem) -> Entry:
        """Split into 16 segments where the batch is small, else not at all."""
        import torch

        shape, heads = problem.shape, problem.shape.heads
        threshold = PROGRAMS_2D // heads.num_kv_heads
        size = (shape.num_seqs, heads.num_heads, NUM_SEGMENTS)
        partial = torch.empty(*size, heads.head_size, dtype=torch.float32, device=problem.device)
        most, total = (torch.empty(size, dtype=torch.float32, device=problem.device) for _ in range(2))
        fixed = {
            "cu_seqlens_q": problem.query_start_loc,
            "max_seqlen_q": max(shape.query_lens),
            "seqused_k": problem.seq_lens,
            "max_seqlen_k": max(shape.seq_lens),
            "softmax_scale": problem.scale,
            "causal": True,
            "window_size": (-1, -1),
            "block_table": problem.block_table,
            "softcap": 0,
            **dict.fromkeys(("q_descale", "k_descale", "v_descale")),
            "seq_threshold_3D": threshold,
            "num_par_softmax_segments": NUM_SEGMENTS,
            "softmax_segm_output": partial,
            "softmax_segm_max": most,
            "softmax_segm_expsum": total,
        }

        def call(one: InputSet) -> None:
            self.function(q=one.q, k=one.k_cache, v=one.v_cache, out=one.out, **fixed)

        return Entry(each(problem, call))


@dataclass(frozen=True, slots=True)
class Reshape:
    """reshape_and_cache_flash in Triton."""

    function: Any
    name: str = "vllm-triton"
    kernels: tuple[Kernel, ...] = ("write",)
    contiguous: bool = False

    def enter(self, problem: Problem) -> Entry:
        """One call a set, scales of 1."""
        import torch

        one = torch.ones(1, dtype=torch.float32, device=problem.device)
        slots = problem.slot_mapping
        return Entry(each(problem, lambda s: self.function(s.k, s.v, s.k_cache, s.v_cache, slots, "auto", one, one)))


def join(library: Path | None) -> Sequence[Contestant | Missing]:
    """Both, each if its module can be imported."""
    found: list[Contestant | Missing] = []
    wanted = ((UNIFIED, "unified_attention", Unified), (RESHAPE, "triton_reshape_and_cache_flash", Reshape))
    for module, function, kind in wanted:
        try:
            found.append(kind(getattr(importlib.import_module(module), function)))
        except (ImportError, AttributeError, OSError, RuntimeError) as error:
            found.append(Missing(f"vllm-triton ({function})", f"cannot be imported: {error}"))
    return found
