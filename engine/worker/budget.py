"""How many KV blocks a device can hold beside the model: measured, or checked against what is free."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

from engine.worker.limits import Limits

DEFAULT_UTILIZATION = 0.92
"""Fraction of the device's memory that weights, activations, graphs and KV may take together (vLLM's default)."""
CPU_KV_BYTES = 4 << 30
"""What K and V take on a CPU at most, where nobody says (vLLM's default there)."""


class EngineError(ValueError):
    """The engine cannot do what it was asked to; nothing has been allocated or changed."""


@dataclass(frozen=True, slots=True)
class KVBudget:
    """What was free for KV, and how the number came about. All bytes are of the device."""

    total_bytes: int
    utilization: float
    used_bytes: int
    """By weights, the buffers and activations of the largest batch, graphs, and whoever else is on the device."""
    limit_bytes: int | None
    """The most that KV may take by configuration; None: what is free."""
    kv_bytes: int
    """utilization x total - used, within the limit."""
    block_bytes: int
    num_blocks: int
    """Blocks of the KV tensor, the null block included."""


def memory_of(device: torch.device) -> tuple[int, int]:
    """(free, total) bytes of the device; what torch's allocator keeps in reserve counts as free."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        idle = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return free + idle, total
    page = os.sysconf("SC_PAGE_SIZE")
    return os.sysconf("SC_AVPHYS_PAGES") * page, os.sysconf("SC_PHYS_PAGES") * page


def kv_budget(device: torch.device, block_bytes: int, utilization: float, limit_bytes: int | None) -> KVBudget:
    """What is left for KV, once weights, buffers and graphs are there. EngineError if that is not one block."""
    if not 0 < utilization <= 1:
        raise EngineError(f"gpu_memory_utilization: expected above 0 and at most 1, got {utilization}")
    free, total = memory_of(device)
    used = total - free
    left = int(utilization * total) - used
    if limit_bytes is not None:
        left = min(left, limit_bytes)
    blocks = left // block_bytes
    if blocks < 2:
        raise EngineError(
            f"{device}: {max(left, 0):,} bytes are left for KV ({utilization:.0%} of {total:,}, {used:,} are in use): "
            f"not enough for the null block and one more of {block_bytes:,} bytes; use a smaller model, fewer "
            "max_num_batched_tokens, or a device with more memory"
        )
    return KVBudget(total, utilization, used, limit_bytes, left, block_bytes, blocks)


def most_on_cpu(limits: Limits, block_size: int, block_bytes: int) -> int:
    """Blocks for requests on a CPU, whose memory is everybody's: what all rows can use at once, within a limit."""
    most = limits.max_num_seqs * -(-limits.max_model_len // block_size)
    return min(most, max(CPU_KV_BYTES // block_bytes, 1))


def check_fits(device: torch.device, num_blocks: int, block_bytes: int, limit_bytes: int | None) -> None:
    """EngineError if so many blocks do not fit, with what was asked for, what is free and how many fit.

    Called before the tensors are allocated, hence before the first request.
    """
    free, _ = memory_of(device)
    left = free if limit_bytes is None else min(free, limit_bytes)
    asked = num_blocks * block_bytes
    if asked > left:
        fits = max(left // block_bytes - 1, 0)
        raise EngineError(
            f"{device}: {num_blocks - 1:,} KV blocks and the null block are {asked:,} bytes ({block_bytes:,} each), "
            f"but {left:,} bytes are free: {fits:,} blocks fit; ask for no more, or for a smaller block_size or model"
        )


def check_weights(device: torch.device, name: str, weights_bytes: int) -> None:
    """EngineError, before a byte of them is read or drawn, for weights that the device has no room for."""
    free, total = memory_of(device)
    if weights_bytes > free:
        raise EngineError(
            f"{name}: its weights alone are {weights_bytes:,} bytes, but {device} has {free:,} of {total:,} free; use "
            "a smaller model, a narrower dtype, or a device with more memory"
        )


def check_host_fits(num_blocks: int, block_bytes: int) -> None:
    """EngineError if host memory has no room for so many blocks of sequences that are swapped out."""
    asked, (free, _) = num_blocks * block_bytes, memory_of(torch.device("cpu"))
    if asked > free:
        raise EngineError(
            f"{num_blocks:,} host blocks are {asked:,} bytes ({block_bytes:,} each), but {free:,} bytes of host memory "
            f"are free: {free // block_bytes:,} blocks fit"
        )
