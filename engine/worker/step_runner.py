"""One rank's side of a step: its block table, its record of rows, its K and V, and the steps over them.

What runs is an `Order`. On rank 0 an executor makes it from what the scheduler has decided; another rank takes the same
one, with the table entries and the record that it brings, and so has the same block table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from engine.worker.block_table import BlockTable
from engine.worker.decode_step import DecodeStep
from engine.worker.mixed_step import MixedInputs, MixedStep
from engine.worker.order import DecodeArguments
from engine.worker.staging import RowState

if TYPE_CHECKING:
    from engine.model.decoder import Decoder
    from engine.worker.kv_memory import KVMemory
    from engine.worker.limits import Limits
    from engine.worker.order import Order


def _nobody_asks() -> None:
    """Where no clock runs."""


class StepRunner:
    """Runs orders, in the order in which they come."""

    def __init__(self, decoder: Decoder, kv: KVMemory, limits: Limits, *, graphs: bool, padded: bool) -> None:
        """`padded`: mixed steps have the sizes that graphs have."""
        device, size = kv.caches[0].device, kv.block_size
        self.kv = kv
        self.table = BlockTable(limits.max_num_seqs, -(-limits.max_model_len // size), size, device)
        self.state = RowState(limits.max_num_seqs, device)
        self.decode = DecodeStep(decoder, self.table, self.state, max_model_len=limits.max_model_len, graphs=graphs)
        self.mixed = MixedStep(decoder, self.table, limits, padded=padded, graphs=graphs)

    def run(self, order: Order, prepared: Callable[[], None] = _nobody_asks) -> torch.Tensor:
        """Launches a step whose entries and record the host side has already; logits [N, V] of the rows that sample.
        `prepared` is called right before the first command: what the host does until then is no time of the device."""
        packed = self.mixed.pack(order.step) if isinstance(order.step, MixedInputs) else None
        prepared()
        self.kv.move_blocks(order.moves)
        self.table.stage_entries(order.entries)
        if order.record is not None:
            self.state.upload()
        if packed is not None:
            return self.mixed.run(packed)
        assert isinstance(order.step, DecodeArguments)
        return self.decode.run(order.step.num_rows, filtered=order.step.filtered, shared=order.step.shared)

    def follow(self, order: Order) -> None:
        """Launches a step of rank 0 on another rank."""
        self.table.take(order.entries)
        if order.record is not None:
            self.state.take(order.record)
        self.run(order)

    def close(self) -> None:
        """Gives K and V and the graphs back."""
        self.kv.release()
        self.decode.steps.forget()
        self.mixed.steps.forget()
