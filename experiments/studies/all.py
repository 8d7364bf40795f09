"""The studies by name, with their figures, as `reproduce` takes them.

Two more are among the paper's experiments: block sizes (`block-size`, `fig18b`) and swap against recomputation
(`fig19a`, `fig19b`); the watermark is beside preemption storms (`watermark`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from experiments.studies import (
    allocator_load,
    capacity_search,
    kv_capacity,
    page_size,
    placement,
    prefill_budget,
    victims,
)

if TYPE_CHECKING:
    from experiments.paper.experiment import Experiment, Picture
    from experiments.paper.runs import Lab

STUDIES: Final[tuple[Experiment, ...]] = (
    page_size.PAGE_SIZE,
    allocator_load.ALLOCATOR_LOAD,
    placement.PLACEMENT,
    prefill_budget.PREFILL_BUDGET,
    victims.VICTIMS,
    kv_capacity.KV_CAPACITY,
    capacity_search.CAPACITY_SEARCH,
)
FIGURES: Final[Mapping[str, Callable[[Lab], list[Picture]]]] = {
    module.NAME: module.pictures
    for module in (page_size, allocator_load, placement, prefill_budget, victims, kv_capacity, capacity_search)
}
