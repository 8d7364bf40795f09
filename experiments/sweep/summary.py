"""The tidy table of a sweep, from what the cells' folders hold: one row a finished cell, in the plan's order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from experiments import exits
from experiments.sweep.merging import told

if TYPE_CHECKING:
    from experiments.sweep.cell import SweepCell
    from experiments.sweep.execution import Ended, Entry
    from experiments.sweep.planning import SweepPlan

SHOWN: Final = (
    "kv_live_frac",
    "mean_batch_size",
    "request_throughput_per_s",
    "mean_ttft_s",
    "mean_tpot_s",
    "num_preemptions",
    "saturated",
)
MOST_SHOWN: Final = 40


def rows_of(
    plan: SweepPlan, finished: Mapping[str, Entry], summary_of: Callable[[str], Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """`cell`, `repeat`, `seed`, a column an axis by its dotted key, then the run's own columns."""
    return [_row(cell, summary_of(cell.name)) for cell in plan.cells if cell.name in finished]


def _row(cell: SweepCell, summary: Mapping[str, Any]) -> dict[str, Any]:
    return {"cell": cell.name, "repeat": cell.repeat, "seed": cell.seed, **cell.point, **summary}


def exit_code(plan: SweepPlan, finished: Mapping[str, Entry], failed: Mapping[str, Entry], ended: Ended) -> int:
    """The worst of what happened."""
    if ended.interrupted:
        return exits.INTERRUPTED
    if ended.device_missing:
        return exits.NO_DEVICE
    if any(entry["failed_checks"] for entry in finished.values()):
        return exits.INVALID
    served = any(entry["num_completed"] for entry in finished.values())
    if ended.full_disk or ended.stopped_by or failed or plan.infeasible or (finished and not served):
        return exits.FAILED_CELLS
    return exits.OK


def notes_of(plan: SweepPlan, finished: Mapping[str, Entry]) -> list[str]:
    """What whoever reads the table must know."""
    labels = {cell.name: cell.label for cell in plan.cells}
    empty = [labels[name] for name, entry in finished.items() if not entry["num_completed"]]
    notes = []
    if empty:
        notes.append(f"no completed request in {_some(empty)}: latencies are empty there")
    if plan.infeasible:
        first = plan.infeasible[0]
        why = f"{told(first.point)}: {' '.join(first.reason.split())}"
        notes.append(f"{len(plan.infeasible)} points cannot be run; the first: {why}")
    return notes


def _some(labels: Sequence[str]) -> str:
    return "; ".join(labels[:3]) + (f" and {len(labels) - 3} more cells" if len(labels) > 3 else "")


def table_of(plan: SweepPlan, rows: Sequence[Mapping[str, Any]]) -> Any:
    """The axes and a few columns, for the terminal."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    repeats = ["repeat"] if plan.num_runs > 1 else []
    names = [*plan.axes.keys, *repeats, *(name for name in SHOWN if any(name in row for row in rows))]
    for name in names:
        table.add_column(name, justify="left" if name in plan.axes.keys else "right", no_wrap=True)
    for row in rows[:MOST_SHOWN]:
        table.add_row(*(_cell(row.get(name), null="null" if name in plan.axes.keys else "-") for name in names))
    return table


def _cell(value: Any, null: str) -> str:
    if value is None:
        return null
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
