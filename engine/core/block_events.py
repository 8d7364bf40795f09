"""What happens to cached blocks, for those who keep books of their own."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Literal, NamedTuple


class Event(NamedTuple):
    """A cached block that appeared or went, or all of them (vLLM's BlockStored, BlockRemoved, AllBlocksCleared);
    where the pool tells uses, too, also who was found and who is held by nobody any more.

    Equal content in several blocks is kept several times, and each of them has events of its own, as in vLLM, whose
    listeners take a removal for the end of the content. `num_copies` is what they need to know better.
    """

    kind: Literal["stored", "removed", "cleared", "hit", "freed"]
    block_id: int
    """0 where all are meant."""
    key: Hashable
    num_copies: int
    """Blocks that can be found under the key after the event: who keeps one entry a key drops it at 0."""
