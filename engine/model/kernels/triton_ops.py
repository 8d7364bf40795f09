"""The model's operations by the fused kernels: what `engine.model.ops.TorchOps` specifies, in one launch each."""

from __future__ import annotations

import torch

from engine.attention.kv_scales import KVScales
from engine.model.kernels.gate import silu_gate
from engine.model.kernels.latents import rotate_queries, write_latents
from engine.model.kernels.norm import rms_norm
from engine.model.kernels.rotary import rotate_and_write


class TritonOps:
    """`engine.model.ops.Ops` on a CUDA device (or in Triton's interpreter). Nothing waits: all can be captured.

    Activations are contiguous; sums, squares and rotations are in float32 whatever the type, rounded once at the end.
    """

    def norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor | None = None) -> torch.Tensor:
        """RMSNorm of the rows of x [T, E]; see `rms_norm`."""
        return rms_norm(x, weight, eps, out)

    def add_norm(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """residual [T, E] += x in place; returns the RMSNorm of the sum as stored."""
        return rms_norm(x, weight, eps, out, residual=residual)

    def rotate_and_write(
        self,
        qkv: torch.Tensor,
        cos_sin: torch.Tensor | None,
        positions: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        slots: torch.Tensor,
        *,
        num_heads: int,
        num_kv_heads: int,
        q_norm: torch.Tensor | None = None,
        k_norm: torch.Tensor | None = None,
        eps: float = 0.0,
        scales: KVScales | None = None,
    ) -> torch.Tensor:
        """q [T, H, D] as a view of qkv; keys and values into the cache; see `rotate_and_write`."""
        return rotate_and_write(
            qkv, cos_sin, positions, k_cache, v_cache, slots, num_heads=num_heads, num_kv_heads=num_kv_heads,
            q_norm=q_norm, k_norm=k_norm, eps=eps, scales=scales,
        )  # fmt: skip

    def write_latents(
        self,
        down: torch.Tensor,
        cos_sin: torch.Tensor,
        positions: torch.Tensor,
        kv_cache: torch.Tensor,
        slots: torch.Tensor,
        kv_norm: torch.Tensor,
        *,
        eps: float,
        interleaved: bool,
        q_norm: torch.Tensor | None = None,
        q_out: torch.Tensor | None = None,
    ) -> None:
        """Latents and rotary keys into the cache, the queries' latent into q_out; see `write_latents`."""
        write_latents(
            down, cos_sin, positions, kv_cache, slots, kv_norm, eps=eps, interleaved=interleaved, q_norm=q_norm,
            q_out=q_out,
        )  # fmt: skip

    def rotate_queries(
        self, q: torch.Tensor, cos_sin: torch.Tensor, positions: torch.Tensor, interleaved: bool
    ) -> torch.Tensor:
        """The last elements of each head of q [T, H, N + P] in place; see `rotate_queries`."""
        return rotate_queries(q, cos_sin, positions, interleaved)

    def gate(self, gate_up: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """silu(first half) * second half of the rows of gate_up [T, 2I]; see `silu_gate`."""
        return silu_gate(gate_up, out)
