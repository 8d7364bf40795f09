"""The usual slips of a capacity estimate, each with what it would have made of this one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from engine.core.capacity import GB, GIB

if TYPE_CHECKING:
    from engine.core.capacity import Capacity
    from engine.core.gpus import Gpu
    from engine.core.kv_spec import KVSpec

KIB, MIB = 2**10, 2**20


class Trap(NamedTuple):
    """A quantity as it is, a way to misread it, and the number of blocks that this gives."""

    what: str
    right: str
    mistake: str
    num_blocks: int | None
    """By the mistake; None where it concerns no number of blocks."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return self._asdict()


def unit_traps(capacity: Capacity, spec: KVSpec, gpu: Gpu | None) -> list[Trap]:
    """Of this capacity; those of ranks only where there are several, that of the card only where one is known, that of
    latents only for a model that caches them."""
    own = *_layers(capacity, spec), *_latents(capacity, spec), *_ranks(capacity, spec)
    return [*_units(capacity), *own, *_card(capacity, gpu)]


def _units(capacity: Capacity) -> list[Trap]:
    budget, block, token = capacity.budget_bytes, capacity.block_bytes, capacity.bytes_per_token
    smaller = int(budget / GIB * GB) // block
    larger = int(budget / GB * GIB) // block
    return [
        Trap(
            "memory for KV on a rank",
            f"{budget:,} B = {budget / GIB:.3f} GiB = {budget / GB:.3f} GB",
            f"{budget / GIB:.3f} read as GB of 10^9 bytes",
            smaller,
        ),
        Trap(
            "the same",
            f"{capacity.num_blocks:,} blocks",
            f"{budget / GB:.3f} read as GiB",
            larger,
        ),
        Trap(
            "a token on a rank",
            f"{token:,} B = {token / KIB:g} KiB = {token / 1000:g} kB",
            f"{token / KIB:g} read as kB",
            int(budget / (token / KIB * 1000)) // capacity.block_size,
        ),
    ]


def _layers(capacity: Capacity, spec: KVSpec) -> list[Trap]:
    layer = spec.block_bytes_per_layer(capacity.block_size)
    return [
        Trap(
            "a block",
            f"{capacity.block_bytes:,} B = {capacity.block_bytes / MIB:g} MiB in the {spec.layers_per_rank} layers of "
            "a rank",
            f"one layer's {layer:,} B taken for the whole",
            capacity.budget_bytes // layer,
        ),
        Trap(
            "blocks that requests can hold",
            f"{capacity.num_blocks:,}; the KV tensor has one more, the null block 0",
            "the null block counted, too",
            capacity.num_blocks + 1,
        ),
    ]


def _latents(capacity: Capacity, spec: KVSpec) -> list[Trap]:
    if spec.kind != "mla":
        return []
    token = spec.bytes_per_token_per_layer
    return [
        Trap(
            "a token in a layer",
            f"one latent of {spec.head_size} elements, {token:,} B: K and V of all heads are made from it",
            "doubled, as for K and V",
            capacity.budget_bytes // (2 * capacity.block_bytes),
        )
    ]


def _ranks(capacity: Capacity, spec: KVSpec) -> list[Trap]:
    ranks = spec.tp * spec.pp
    if ranks == 1:
        return []
    together = ranks * capacity.bytes_per_token
    where = "each tensor-parallel rank has a whole latent" if spec.kind == "mla" else "a token's KV is spread over them"
    return [
        Trap(
            "blocks of a rank",
            f"{capacity.num_blocks:,} on each of {ranks} ranks, under the same ids: {where}",
            "added up over the ranks",
            ranks * capacity.num_blocks,
        ),
        Trap(
            "a token on all ranks",
            f"{together:,} B together, {capacity.bytes_per_token:,} B on each",
            "one rank's memory divided by all ranks' bytes",
            capacity.budget_bytes // (together * capacity.block_size),
        ),
    ]


def _card(capacity: Capacity, gpu: Gpu | None) -> list[Trap]:
    """The number in a card's name against the bytes that its driver reports, whichever this capacity has."""
    total = capacity.terms.get("total_bytes")
    if gpu is None or not isinstance(total, int):
        return []
    named, reported = gpu.nominal_gb * GIB, gpu.total_bytes
    other, misread = (
        (named, f"the {gpu.nominal_gb} of its name read as GiB")
        if total == reported
        else (reported, f"{reported:,} B is what the driver reports")
    )
    blocks = max(0, capacity.budget_bytes + other - total) // capacity.block_bytes
    return [Trap(f"the card {gpu.name}", f"{total:,} B = {total / GIB:.2f} GiB here", misread, blocks)]
