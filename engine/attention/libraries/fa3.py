"""FlashAttention-3 and how it is called: vLLM's extension library, or the package flash_attn_interface.

Both take K and V [NB, BS, KH, D] as strided views and a block table, and each query of a row sees what lies before it.
The extension's scheduler metadata follows the lengths; serving systems make it once a step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from engine.attention.libraries.found import LibraryMissingError, imported, inside, named, registered

VARIABLE = "PAGELAB_FA3_LIBRARY"
NAMESPACE = "_vllm_fa3_C"
INSTALL = (
    f"FlashAttention-3 is not here: name vLLM's _vllm_fa3_C.abi3.so in {VARIABLE}, or install vllm, or "
    "flash_attn_interface from github.com/Dao-AILab/flash-attention, folder hopper"
)
NONE_4, NONE_8 = (None,) * 4, (None,) * 8


@dataclass(frozen=True, slots=True)
class Call:
    """What a call needs beside Q, K, V and the output."""

    starts: torch.Tensor
    """int32 [rows + 1]: first query of each."""
    lens: torch.Tensor
    """int32 [rows]: tokens of each, its queries included."""
    block_table: torch.Tensor | None
    """int32 [rows, max_blocks]; None: K and V are [rows, longest, KH, D]."""
    max_query_len: int
    max_seq_len: int
    scale: float
    causal: bool = True
    window_left: int = -1
    """Tokens that a query sees before itself; -1: all."""
    soft_cap: float = 0.0
    metadata: Any = None


@dataclass(frozen=True, slots=True)
class Extension:
    """The operators that vLLM's extension registers under torch.ops._vllm_fa3_C."""

    ops: Any

    def planned(self, call: Call, q: torch.Tensor, k: torch.Tensor, sizes: tuple[int, int] | None = None) -> Call:
        """With its splits and tile order, made on the device; `sizes`: of K and V, where they are not a head's."""
        num_heads, num_kv_heads = q.shape[1], k.shape[2]
        made = self.ops.get_scheduler_metadata(
            *(len(call.lens), call.max_query_len, call.max_seq_len, num_heads, num_kv_heads),
            *(sizes or (q.shape[2], q.shape[2])),
            *(q.dtype, call.lens, call.starts, *NONE_4, k.shape[1] if call.block_table is not None else None, 0),
            *(call.causal, call.window_left, -1, call.soft_cap > 0, 0, None, 0),
        )
        return replace(call, metadata=made)

    def attend(
        self,
        call: Call,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out: torch.Tensor,
        q_v: torch.Tensor | None = None,
    ) -> Any:
        """Output, which is `out`; log-sum-exp [H, T]; and what belongs to splits. `q_v`: of queries over latents, the
        part that meets V's tokens as if they were keys, too."""
        return self.ops.fwd(
            *(q, k, v, None, None, q_v, out, call.starts, None, None, None, call.lens),
            *(call.max_query_len, call.max_seq_len, call.block_table, *NONE_8, call.scale, call.causal),
            *(call.window_left, -1, call.soft_cap, True, call.metadata, 0, None, 0, None, 1, 0, None),
        )


@dataclass(frozen=True, slots=True)
class Package:
    """flash_attn_interface of the FlashAttention-3 distribution."""

    module: Any

    def planned(self, call: Call, q: torch.Tensor, k: torch.Tensor) -> Call:
        """Left to the call: the package's helper changes between releases."""
        return call

    def attend(self, call: Call, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor) -> Any:
        """The output, which it allocates."""
        return (
            self.module.flash_attn_with_kvcache(
                q,
                k,
                v,
                cache_seqlens=call.lens,
                page_table=call.block_table,
                cu_seqlens_q=call.starts,
                max_seqlen_q=call.max_query_len,
                softmax_scale=call.scale,
                causal=call.causal,
                window_size=(call.window_left, -1),
                softcap=call.soft_cap,
            ),
        )


def load(library: Path | None = None) -> Extension | Package:
    """The library that is named, here or in the environment, else whatever is installed. LibraryMissingError."""
    path = library or named(VARIABLE)
    if path is not None:
        return Extension(registered(path, NAMESPACE))
    try:
        return Package(imported("flash_attn_interface", INSTALL))
    except LibraryMissingError:
        path = inside("vllm", "vllm_flash_attn/_vllm_fa3_C*.so")
    if path is None:
        raise LibraryMissingError(INSTALL)
    return Extension(registered(path, NAMESPACE))
