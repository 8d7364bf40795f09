"""RMSNorm (Zhang and Sennrich 2019) of rows, alone or after the residual sum that precedes it (vLLM's
`fused_add_rms_norm`)."""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"

from __future__ import annotations

import functools
from typing import Any

import torch
import triton
import triton.language as tl

from engine.model.kernels.inputs import check_dense, check_floats
from engine.model.kernels.launching import on_device

MAX_COLUMNS = 32_768
"""A row is one program's: 32 elements a thread at most."""
THREAD_ELEMENTS = 16
"""Elements of a row for each thread: two vectors of 16 bytes of a 2-byte type."""


@triton.jit
def norm_kernel(X, RESIDUAL, WEIGHT, OUT, eps, E: tl.constexpr, BLOCK: tl.constexpr, ADD: tl.constexpr):
    """Grid (T,): a row a program. OUT may be X: a row is read before it is written. ADD: RESIDUAL += X first."""
    columns = tl.arange(0, BLOCK)
    mask = columns < E
    weight = tl.load(WEIGHT + columns, mask=mask, other=0.0).to(tl.float32)
    row = tl.program_id(0).to(tl.int64) * E
    x = tl.load(X + row + columns, mask=mask, other=0.0).to(tl.float32)
    if ADD:
        residual = RESIDUAL + row + columns
        total = (x + tl.load(residual, mask=mask, other=0.0).to(tl.float32)).to(RESIDUAL.dtype.element_ty)
        tl.store(residual, total, mask=mask)
        x = total.to(tl.float32)  # as stored: the next layer adds to what this one saw
    factor = tl.rsqrt(tl.sum(x * x, 0) / E + eps)
    tl.store(OUT + row + columns, (x * factor * weight).to(OUT.dtype.element_ty), mask=mask)


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    out: torch.Tensor | None = None,
    *,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) * weight of each row of x [T, E], weight [E], in float32 inside.

    `residual` [T, E]: residual += x in place, rounded to its type, and the norm is of that sum. Returns `out` [T, E],
    which may be x. ValueError before anything is launched.
    """
    num_tokens, columns = x.shape
    check_floats("x", x)
    check_dense("x", x, (num_tokens, columns), x.dtype, x)
    check_dense("weight", weight, (columns,), x.dtype, x)
    if columns > MAX_COLUMNS:
        raise ValueError(f"x: expected rows of at most {MAX_COLUMNS} elements, got {columns}")
    if residual is not None:
        check_dense("residual", residual, (num_tokens, columns), x.dtype, x)
    if out is None:
        out = torch.empty_like(x)
    else:
        check_dense("out", out, (num_tokens, columns), x.dtype, x)
    if num_tokens:
        added = residual is not None
        options = norm_options(columns, added)
        with on_device(x):
            norm_kernel[(num_tokens,)](x, residual if added else x, weight, out, eps, **options)
    return out


@functools.cache
def norm_options(columns: int, added: bool) -> dict[str, Any]:
    """What is compiled into norm_kernel for rows of so many columns."""
    block = triton.next_power_of_2(columns)
    num_warps = min(32, max(1, block // (32 * THREAD_ELEMENTS)))
    return {"E": columns, "BLOCK": block, "ADD": added, "num_warps": num_warps}
