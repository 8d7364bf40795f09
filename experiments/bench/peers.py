"""The libraries that take part where they can be imported. One that cannot is named with its reason, never dropped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from experiments.bench import peer_fa3, peer_flashinfer, peer_mla, peer_torch, peer_vllm
from experiments.bench.contestant import Contestant, Missing

Join = Callable[[Path | None], Sequence[Contestant | Missing]]
"""Tries to import; what it gets is the path of an extension library, if one was named."""

PEERS: Final[dict[str, Join]] = {
    "torch": peer_torch.join,
    "fa3": peer_fa3.join,
    "flashinfer": peer_flashinfer.join,
    "vllm": peer_vllm.join,
    "mla": peer_mla.join,
}


def check_peers(names: Sequence[str]) -> None:
    """ValueError for an unknown name."""
    unknown = [name for name in names if name not in PEERS]
    if unknown:
        raise ValueError(f"unknown peer {unknown[0]!r}; there are {', '.join(PEERS)}")


def joined(names: Sequence[str], fa3_library: Path | None = None) -> tuple[list[Contestant], list[Missing]]:
    """Those of the named libraries that are here, and those that are not. ValueError for an unknown name."""
    check_peers(names)
    here: list[Contestant] = []
    missing: list[Missing] = []
    for name in names:
        for found in PEERS[name](fa3_library if name == "fa3" else None):
            if isinstance(found, Missing):
                missing.append(found)
            else:
                here.append(found)
    return here, missing
