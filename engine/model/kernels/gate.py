"""The gated activation of the MLP: silu of one half of a row times the other (vLLM's `silu_and_mul`)."""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"

from __future__ import annotations

import functools
from typing import Any

import torch
import triton
import triton.language as tl

from engine.attention.kernels.device import multiprocessors
from engine.model.kernels.inputs import check_dense, check_floats
from engine.model.kernels.launching import on_device

THREAD_ELEMENTS = 8
"""Elements of each half for each thread: a vector of 16 bytes of a 2-byte type."""
FEW_ELEMENTS = 512
MANY_ELEMENTS = 2_048
"""Elements of the output of a program: few where that is what it takes to reach every multiprocessor."""


@triton.jit
def gate_kernel(GATE_UP, OUT, COLUMNS: tl.constexpr, BLOCK: tl.constexpr):
    """Grid (T, ceil(COLUMNS / BLOCK)). GATE_UP [T, 2 * COLUMNS]."""
    row = tl.program_id(0).to(tl.int64) * COLUMNS
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < COLUMNS
    gate = tl.load(GATE_UP + 2 * row + columns, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(GATE_UP + 2 * row + COLUMNS + columns, mask=mask, other=0.0).to(tl.float32)
    gated = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(OUT + row + columns, gated.to(OUT.dtype.element_ty), mask=mask)


def silu_gate(gate_up: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """silu(gate) * up of gate_up [T, 2I] = [gate | up], in float32 inside; returns `out` [T, I].

    `out` shares no memory with gate_up. ValueError before anything is launched.
    """
    num_tokens, both = gate_up.shape
    check_floats("gate_up", gate_up)
    check_dense("gate_up", gate_up, (num_tokens, both // 2 * 2), gate_up.dtype, gate_up)
    columns = both // 2
    if out is None:
        out = gate_up.new_empty(num_tokens, columns)
    else:
        check_dense("out", out, (num_tokens, columns), gate_up.dtype, gate_up)
    if num_tokens and columns:
        enough = num_tokens * columns >= MANY_ELEMENTS * multiprocessors(gate_up.device)
        options = gate_options(columns, MANY_ELEMENTS if enough else FEW_ELEMENTS)
        with on_device(gate_up):
            gate_kernel[(num_tokens, -(-columns // options["BLOCK"]))](gate_up, out, **options)
    return out


@functools.cache
def gate_options(columns: int, elements: int) -> dict[str, Any]:
    """What is compiled into gate_kernel for programs of up to so many elements."""
    block = min(elements, triton.next_power_of_2(columns))
    num_warps = min(4, max(1, block // (32 * THREAD_ELEMENTS)))
    return {"COLUMNS": columns, "BLOCK": block, "num_warps": num_warps}
