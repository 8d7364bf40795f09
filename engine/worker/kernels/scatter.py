"""Single entries of a table on the device, sent as (index, value) pairs."""

from __future__ import annotations

import torch

from engine.model.kernels.inputs import check_dense, described

HEAD = 4
"""Entries in front of staged pairs: the count, and what aligns the rest to 16 bytes."""


def scatter_int32(target_flat: torch.Tensor, pairs: torch.Tensor, count: int) -> None:
    """target_flat[pairs[0, j]] = pairs[1, j] for j < count; target_flat [N] int32, pairs [2, M] int32 beside it.

    Contents are trusted: indices are distinct and inside. One launch on a CUDA device, `scatter_reference` elsewhere.
    ValueError before anything is written, also for N of 2^31 and more, which int32 does not count.
    """
    check_dense("target_flat", target_flat, (target_flat.numel(),), torch.int32, target_flat)
    if target_flat.numel() >= 1 << 31:
        raise ValueError(f"target_flat: expected fewer than 2^31 elements (int32 indices), got {target_flat.numel()}")
    if pairs.dim() != 2 or pairs.shape[0] != 2 or not 0 <= count <= pairs.shape[1]:
        raise ValueError(f"pairs: expected [2, M] with M of at least count={count}, got {described(pairs)}")
    check_dense("pairs", pairs[1], (pairs.shape[1],), torch.int32, target_flat)
    if not count:
        return
    if target_flat.is_cuda:
        from engine.worker.kernels.launch import launch_scatter as scatter
    else:
        scatter = scatter_reference
    scatter(target_flat, pairs, count)


def scatter_counted(target_flat: torch.Tensor, staged: torch.Tensor) -> None:
    """`scatter_int32` of pairs that say themselves how many they are, so that a CUDA graph can hold the launch.

    staged [HEAD + 2 * M] int32: the count in its first entry, M indices from entry HEAD on, then M values. One launch
    of as many programs as M needs on a CUDA device.
    """
    check_dense("target_flat", target_flat, (target_flat.numel(),), torch.int32, target_flat)
    check_dense("staged", staged, (staged.numel(),), torch.int32, target_flat)
    most, odd = divmod(staged.numel() - HEAD, 2)
    if odd or most < 1:
        raise ValueError(f"staged: expected {HEAD} + 2 * M entries with M of at least 1, got {described(staged)}")
    if target_flat.is_cuda:
        from engine.worker.kernels.launch import launch_scatter_counted

        launch_scatter_counted(target_flat, staged, most)
    else:
        scatter_reference(target_flat, staged[HEAD:].view(2, most), int(staged[0]))


def scatter_reference(target_flat: torch.Tensor, pairs: torch.Tensor, count: int) -> None:
    """`scatter_int32` in plain torch, on any device."""
    target_flat[pairs[0, :count].long()] = pairs[1, :count]
