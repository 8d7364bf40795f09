"""Decode over latents by FlashInfer (`mla`, by its FA2 and FA3 templates) and by FlashMLA (`flash_mla`).

Both plan on the host or in a kernel before the measurement, as serving systems do once a step. FlashAttention-3's is in
`peer_fa3`.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from experiments.bench.contestant import Contestant, Entry, Missing, UnsupportedError, each
from experiments.bench.inputs import InputSet, Problem
from experiments.bench.peer_flashinfer import WORKSPACE_BYTES, pages_of
from experiments.bench.shapes import Kernel

FLASH_MLA_BLOCK_SIZE: Final = 64


@dataclass(frozen=True, slots=True)
class FlashInferMLA:
    """BatchMLAPagedAttentionWrapper."""

    name: str
    module: Any
    backend: str
    kernels: tuple[Kernel, ...] = ("mla",)
    contiguous: bool = False

    def enter(self, problem: Problem) -> Entry:
        """Plans, then one run a set into its `out`."""
        import torch

        shape, heads = problem.shape, problem.shape.heads
        workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=problem.device)
        wrapper = self.module.BatchMLAPagedAttentionWrapper(workspace, backend=self.backend)
        pages, dtype = pages_of(problem), problem.sets[0].q.dtype
        wrapper.plan(
            *(problem.query_start_loc.cpu(), pages.indptr, pages.indices, problem.seq_lens.cpu()),
            *(heads.num_heads, heads.rank, heads.head_size - heads.rank, shape.block_size, True),
            *(problem.scale, dtype, dtype),
        )

        def call(one: InputSet) -> Any:
            q, latents = one.q, one.k_cache[:, :, 0]
            parts = (q[..., : heads.rank], q[..., heads.rank :], latents[..., : heads.rank], latents[..., heads.rank :])
            return wrapper.run(*parts, out=one.out)

        return Entry(each(problem, call))


@dataclass(frozen=True, slots=True)
class FlashMLA:
    """flash_mla_with_kvcache, which allocates its output."""

    module: Any
    name: str = "flash-mla"
    kernels: tuple[Kernel, ...] = ("mla",)
    contiguous: bool = False

    def enter(self, problem: Problem) -> Entry:
        """One call a set."""
        shape, heads = problem.shape, problem.shape.heads
        if shape.block_size != FLASH_MLA_BLOCK_SIZE:
            raise UnsupportedError(f"takes blocks of {FLASH_MLA_BLOCK_SIZE} tokens only")
        planned = self.module.get_mla_metadata(problem.seq_lens, heads.num_heads, 1)

        def call(one: InputSet) -> Any:
            return self.module.flash_mla_with_kvcache(
                *(one.q[:, None], one.k_cache, problem.block_table, problem.seq_lens, heads.rank, *planned),
                softmax_scale=problem.scale,
                causal=True,
            )

        return Entry(each(problem, call), read=lambda returned: returned[0][:, 0])


def join(library: Path | None) -> Sequence[Contestant | Missing]:
    """Whichever can be imported."""
    found: list[Contestant | Missing] = []
    for name, package in (("flashinfer-mla", "flashinfer.mla"), ("flash-mla", "flash_mla")):
        try:
            module = importlib.import_module(package)
        except (ImportError, OSError, RuntimeError) as error:
            found.append(Missing(name, f"cannot be imported: {error}"))
            continue
        if name == "flash-mla":
            found.append(FlashMLA(module))
        else:
            found += [FlashInferMLA(f"{name}-{backend}", module, backend) for backend in ("fa3", "fa2")]
    return found
