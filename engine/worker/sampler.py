"""Sampling of a step's rows into a tensor that is there already: fused on a device, plain torch elsewhere."""

from __future__ import annotations

import torch

from engine.model.sampling import SamplingTensors, mask_filtered, sample


def sample_tokens(
    logits: torch.Tensor, params: SamplingTensors, positions: torch.Tensor, out: torch.Tensor, *, filtered: bool
) -> None:
    """Token ids [S] int32 into `out`, from logits [S, V] and the positions [S] of the tokens that they follow.

    `filtered`: some row has top-k or top-p; without, nothing is sorted.
    """
    if logits.is_cuda:
        from engine.model.kernels.sample import sample_fused

        sample_fused(mask_filtered(logits, params) if filtered else logits, params, positions, out)
    else:
        out.copy_(sample(logits, params, positions))
