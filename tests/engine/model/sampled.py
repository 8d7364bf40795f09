"""Rows to sample from, and how far counts may be from probabilities."""

from __future__ import annotations

import torch

from engine.model.sampling import SamplingTensors


def params(
    temperature: list[float] | torch.Tensor,
    seeds: list[int] | torch.Tensor | None = None,
    top_k: int | list[int] = 0,
    top_p: float | list[float] = 1.0,
    device: str = "cpu",
) -> SamplingTensors:
    """Of as many rows as there are temperatures; seeds 0, 1, ... unless given."""
    temperature = torch.as_tensor(temperature, dtype=torch.float32)
    count = len(temperature)
    seeds = torch.arange(count) if seeds is None else torch.as_tensor(seeds, dtype=torch.int64)
    return SamplingTensors(
        temperature.to(device),
        seeds.to(device),
        torch.as_tensor(top_k, dtype=torch.int32).expand(count).contiguous().to(device),
        torch.as_tensor(top_p, dtype=torch.float32).expand(count).contiguous().to(device),
    )


def chi_square(tokens: torch.Tensor, probabilities: torch.Tensor) -> float:
    """Pearson's statistic of tokens [N] against probabilities [V], over its bound: above 1 once in 10,000 draws.

    Infinite where a token without probability was drawn. The bound is Wilson and Hilferty's.
    """
    counts = torch.bincount(tokens.long().cpu(), minlength=len(probabilities)).double()
    probabilities = probabilities.double().cpu()
    possible = probabilities > 0
    if counts[~possible].any():
        return torch.inf
    expected = len(tokens) * probabilities[possible]
    statistic = ((counts[possible] - expected).square() / expected).sum().item()
    freedom = max(1, int(possible.sum()) - 1)
    spread = 2 / (9 * freedom)
    return statistic / (freedom * (1 - spread + 3.72 * spread**0.5) ** 3)
