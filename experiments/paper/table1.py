"""Table 1: KV memory and slots of three models, by the artifact's own arithmetic."""

from __future__ import annotations

from typing import Final, NamedTuple

from engine.core.capacity import GIB, sosp23_capacity
from engine.core.catalogue import lookup
from engine.core.gpus import lookup_gpu
from experiments.paper.claims import Claim, Result, exact
from experiments.paper.experiment import Experiment
from experiments.paper.runs import BLOCK_SIZE, Lab


class Setup(NamedTuple):
    """A column of the table."""

    model: str
    gpu: str
    tp: int
    num_blocks: int
    slots: int
    """Printed to hundreds."""
    kv_gb: int
    """Printed to units."""


SETUPS: Final = (
    Setup("opt-13b", "a100-40g", 1, 984, 15_700, 12),
    Setup("opt-66b", "a100-40g", 4, 605, 9_700, 21),
    Setup("opt-175b", "a100-80g", 8, 3758, 60_100, 264),
)


def judge(lab: Lab) -> list[Result]:
    """Blocks exactly; slots and GB to the digits that are printed."""
    results = []
    for model, gpu, tp, num_blocks, slots, kv_gb in SETUPS:
        capacity = sosp23_capacity(lookup(model), lookup_gpu(gpu), tp=tp, block_size=BLOCK_SIZE)
        source = f"Table 1, {tp} x {gpu}"
        blocks = Claim(
            f"table1/{model}/num_blocks",
            "KV blocks of 16 tokens",
            num_blocks,
            "blocks",
            0.0,
            source,
            "R",
            ("gpu-bytes",),
        )
        printed = Claim(
            f"table1/{model}/slots", "KV slots", slots, "tokens", 50.0, source, "A", ("gpu-bytes", "rounded")
        )
        memory = Claim(
            f"table1/{model}/kv_gib", "memory for KV", kv_gb, "GiB", 0.5, source, "A", ("gpu-bytes", "kib", "rounded")
        )
        results += [
            exact(blocks, capacity.num_blocks),
            exact(printed, capacity.capacity_tokens),
            exact(memory, capacity.kv_bytes * tp / GIB, "of all ranks"),
        ]
    return results


TABLE1 = Experiment("table1", "Table 1: KV capacity of OPT-13B, 66B, 175B", judge)
