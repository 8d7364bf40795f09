"""Figures of stored results. A drawing function takes axes and frames, draws, and returns the plotted numbers."""

from experiments.figures import (
    batch,
    block_size,
    fragmentation,
    latency,
    lengths,
    memory,
    memory_steps,
    pressure,
    states,
    throughput,
    waste,
)
from experiments.figures.batch import batched_requests
from experiments.figures.block_size import by_block_size
from experiments.figures.fragmentation import external_fragmentation
from experiments.figures.latency import latency_ecdf
from experiments.figures.lengths import trace_lengths
from experiments.figures.map_text import memory_map_text
from experiments.figures.memory import free_extents, memory_map
from experiments.figures.pressure import queue_and_preemptions
from experiments.figures.spec import Figure, NothingToDrawError
from experiments.figures.states import slot_states
from experiments.figures.stored import Stored
from experiments.figures.waste import waste_breakdown

FIGURES: dict[str, Figure] = {
    figure.name: figure
    for figure in (
        waste.FIGURE,
        batch.FIGURE,
        states.FIGURE,
        memory.MAP,
        memory_steps.FIGURE,
        pressure.FIGURE,
        latency.TTFT,
        latency.TPOT,
        latency.E2E,
        block_size.FIGURE,
        fragmentation.FIGURE,
        memory.EXTENTS,
        lengths.FIGURE,
    )
}
"""By name, in the order of the report."""
MEASURED_FIGURES: tuple[Figure, ...] = (throughput.FIGURE,)
"""More, of runs on the real engine; they come first."""

__all__ = [
    "FIGURES",
    "MEASURED_FIGURES",
    "Figure",
    "NothingToDrawError",
    "Stored",
    "batched_requests",
    "by_block_size",
    "external_fragmentation",
    "free_extents",
    "latency_ecdf",
    "memory_map",
    "memory_map_text",
    "queue_and_preemptions",
    "slot_states",
    "trace_lengths",
    "waste_breakdown",
]
