"""The backend `flashinfer`: its paged wrappers over the pool (NB, 2, BS, KH, D), or another layout, without copies.

FlashInfer plans a step on the host and wants the block table as CSR: blocks in use of all rows end to end (`indices`,
made on the device) and where each row's begin (`indptr`). The first layer of a step plans, the others find the plan;
planning waits for the device and cannot happen while a CUDA graph is captured. Decodes and chunks both run on tensor
cores by its FA2 template, so that one compiled module serves all steps of a head size and type.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from engine.attention.archs import Archs
from engine.attention.backend import AttentionImpl, Capabilities, LayerConfig, SizeRule
from engine.attention.checks import AttentionInputError
from engine.attention.layouts import KVLayout
from engine.attention.libraries.found import imported
from engine.attention.libraries.impl import HALVES, LibraryBackend, LibraryImpl
from engine.attention.metadata import AttentionMetadata

WORKSPACE_BYTES = 256 * 2**20
"""Of a wrapper, for partial results of split sequences; FlashInfer recommends 128 MiB, many heads need more."""
DECODE, PREFILL = "decode", "prefill"


@dataclass(frozen=True, slots=True)
class Pages:
    """A block table in FlashInfer's words."""

    indptr: torch.Tensor
    """int32 [S + 1], on the CPU."""
    indices: torch.Tensor
    """int32 [blocks in use], beside the table."""
    last_page_len: torch.Tensor
    """int32 [S], on the CPU; 0 for a row without tokens."""


def pages_of(block_table: torch.Tensor, seq_lens: torch.Tensor, block_size: int) -> Pages:
    """The same table: `block_table` [S, max_blocks] where it is, `seq_lens` [S] int32 on the CPU."""
    counts = (seq_lens + block_size - 1) // block_size
    columns = torch.arange(block_table.shape[1], device=block_table.device)
    used = columns < counts.to(block_table.device)[:, None]
    indptr = torch.nn.functional.pad(counts.cumsum(0), (1, 0)).to(torch.int32)
    last = torch.where(counts > 0, seq_lens - (counts - 1) * block_size, 0).to(torch.int32)
    return Pages(indptr, block_table[used].contiguous(), last)


def capturing(tensor: torch.Tensor) -> bool:
    """Whether commands on a tensor's device go into a CUDA graph now."""
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


class Planner:
    """A wrapper, and which plan it holds: a later step's replaces it."""

    def __init__(self, wrapper: Any) -> None:
        self.wrapper = wrapper
        self.holds: Plan | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """A step's plan, good while its planner holds it."""

    planner: Planner
    num_tokens: int
    """Query tokens of all rows."""
    num_pages: int


class FlashInferImpl(LibraryImpl):
    """The decode wrapper for steps of nothing else, the prefill wrapper for steps with chunks."""

    def __init__(self, config: LayerConfig, layout: KVLayout) -> None:
        super().__init__(config, layout)
        self._planners: dict[str, Planner] = {}

    @staticmethod
    def load() -> Any:
        return imported("flashinfer", "pip install flashinfer-python (compiles its kernels at first use, with nvcc)")

    def read(
        self, query: torch.Tensor, k: torch.Tensor, v: torch.Tensor, step: AttentionMetadata, out: torch.Tensor
    ) -> torch.Tensor:
        plan = self._planned(query, k, step)
        rows = out[: plan.num_tokens]
        if not plan.num_pages:
            return rows.zero_()
        plan.planner.wrapper.run(query[: plan.num_tokens], (k, v), out=rows)
        return rows

    def _planned(self, query: torch.Tensor, k: torch.Tensor, step: AttentionMetadata) -> Plan:
        """The step's plan, made now if no layer like this one has, or if another step's has replaced it."""
        key = "flashinfer", self.config, query.dtype, k.shape[1]
        plan: Plan | None = step.plans.get(key)
        if plan is None or plan.planner.holds is not plan:
            if capturing(query):
                raise AttentionInputError(
                    "flashinfer: expected a step that was planned before the capture of a CUDA graph (call it once "
                    "outside), got a new one: its plan is made on the host"
                )
            kind = PREFILL if step.num_prefills else DECODE
            planner = plan.planner if plan is not None else self._planner(kind, query.device)
            plan = step.plans[key] = planner.holds = self._new_plan(planner, kind, query, k.shape[1], step)
        return plan

    def _planner(self, kind: str, device: torch.device) -> Planner:
        """This layer's; of a model whose layers are alike, only the first layer's is ever made."""
        if kind not in self._planners:
            workspace = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
            if kind == DECODE:
                wrapper = self.library.BatchDecodeWithPagedKVCacheWrapper(
                    workspace, "NHD", use_tensor_cores=True, backend="fa2"
                )
            else:
                wrapper = self.library.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD", backend="fa2")
            self._planners[kind] = Planner(wrapper)
        return self._planners[kind]

    def _new_plan(
        self, planner: Planner, kind: str, query: torch.Tensor, block_size: int, step: AttentionMetadata
    ) -> Plan:
        config, starts, lens = self.config, step.query_start_loc.cpu(), step.seq_lens.cpu()
        pages = pages_of(self._seen(step, starts, lens, block_size), lens, block_size)
        sizes = config.num_heads, config.num_kv_heads, config.head_size, block_size
        options = {
            "sm_scale": config.scale,
            "window_left": self.window_left,
            "logits_soft_cap": config.soft_cap,
            "q_data_type": query.dtype,
            "kv_data_type": query.dtype,
        }
        addresses = pages.indptr, pages.indices, pages.last_page_len
        if not len(pages.indices):
            pass  # padded rows alone: there is nothing to plan
        elif kind == DECODE:
            planner.wrapper.plan(*addresses, *sizes, **options)
        else:
            planner.wrapper.plan(starts, *addresses, *sizes, causal=True, **options)
        return Plan(planner, int(starts[-1]), len(pages.indices))

    def _seen(self, step: AttentionMetadata, starts: torch.Tensor, lens: torch.Tensor, block_size: int) -> torch.Tensor:
        """The block table; with a window, entries before all that a row sees, which may be anything, become its last
        block: FlashInfer masks their tokens, but may look."""
        table, window = step.block_table, self.config.window
        if not window or not table.shape[1]:
            return table
        first = (lens - starts.diff() + 1 - window).clamp(min=0) // block_size
        last = ((lens - 1).clamp(min=0) // block_size).to(table.device, torch.int64)
        columns = torch.arange(table.shape[1], device=table.device)
        return torch.where(columns < first.to(table.device)[:, None], table.gather(1, last[:, None]), table)


class FlashInferBackend(LibraryBackend):
    """`flashinfer`: the package flashinfer-python."""

    @staticmethod
    def get_name() -> str:
        return "flashinfer"

    @staticmethod
    def get_impl_cls() -> type[AttentionImpl[Any]]:
        return FlashInferImpl

    @classmethod
    def capabilities(cls) -> Capabilities:
        return Capabilities(
            (KVLayout.BLOCK_FIRST, KVLayout.KV_FIRST, KVLayout.INTERLEAVED),
            HALVES,
            head_sizes=SizeRule(only=(64, 128, 256)),
            archs=Archs(least=(8, 0)),
            graphs="planned lengths",
        )
