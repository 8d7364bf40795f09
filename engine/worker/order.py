"""What the ranks of one model are told of a step: what rank 0 sends its own device, and no more.

Rank 0 alone has a scheduler and an allocator. The others keep no requests: they get block ids that are new, the record
of the rows where it changed (last tokens, lengths), the tokens of chunks. Steps that go on with the same rows are a
few bytes, as each device goes on from its own record; the sampled tokens follow by a broadcast on the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from engine.worker.block_table import Entries
from engine.worker.mixed_step import MixedInputs

Pairs = Sequence[tuple[int, int]]


class Moves(NamedTuple):
    """Blocks to be moved before a step computes, as in a `Batch`."""

    to_host: Pairs = ()
    to_device: Pairs = ()
    copies: Pairs = ()


class DecodeArguments(NamedTuple):
    """Of `DecodeStep.run`."""

    num_rows: int
    filtered: bool
    shared: bool


class Order(NamedTuple):
    """One step."""

    moves: Moves
    entries: Entries
    record: npt.NDArray[np.uint8] | None
    """Of the rows, where the device's is not good any more."""
    step: DecodeArguments | MixedInputs
