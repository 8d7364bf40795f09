"""One run of a sweep: a point and a repeat, resolved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from experiments.config import dump
from experiments.resolve import plan_of
from experiments.sweep.arrivals import of_this_process
from experiments.sweep.merging import told

if TYPE_CHECKING:
    from experiments.resolve import Plan
    from experiments.settings import Config
    from experiments.sweep.axes import Point


@dataclass(frozen=True, slots=True)
class SweepCell:
    """One run."""

    name: str
    """Folder: ten digits of its point's hash, and the repeat."""
    key: str
    """sha256 of the resolved configuration, the trace and the schema."""
    point: Point
    repeat: int
    seed: int
    config: dict[str, Any]
    """Resolved, as plain values."""
    allocator: str
    block_size: int
    num_blocks: int
    tokens: int | None
    """Capacity that the pool's blocks were cut from."""
    num_requests: int
    trace_sha256: str

    @property
    def label(self) -> str:
        """For people: `kv.block_size=8 kv.allocator=paged repeat 0`."""
        return f"{told(self.point)} repeat {self.repeat}".strip()


@dataclass(frozen=True, slots=True)
class Infeasible:
    """A point that no run can be made of."""

    point: Point
    reason: str


def planned(config: Config) -> Plan:
    """As `pagelab run` would, with the traces of this process at hand."""
    return plan_of(config, verb="run", writes=False, source=of_this_process())


def cell_of(point: Point, repeat: int, plan: Plan, key: str, name: str) -> SweepCell:
    [cell] = plan.cells
    return SweepCell(
        name=name,
        key=key,
        point=point,
        repeat=repeat,
        seed=cell.seed,
        config=dump(plan.config),
        allocator=cell.allocator,
        block_size=cell.block_size,
        num_blocks=cell.num_blocks,
        tokens=plan.pool.tokens,
        num_requests=int(plan.arriving.provenance["num_requests"]),
        trace_sha256=plan.arriving.provenance["sha256"],
    )
