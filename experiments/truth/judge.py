"""A simulated run held against an engine's measured one: errors of TTFT, TPOT and E2E, request for request the same
trace."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from experiments import exits, store
from experiments.console import say, say_json, show
from experiments.exits import UsageError
from experiments.truth.vllm_bench import FORMAT, Measured, read_vllm_bench
from experiments.views import read_manifest
from sim.metrics import PS, latencies
from sim.rows import RequestRow

if TYPE_CHECKING:
    pass

STATISTICS: Final = ("mean", "p50", "p99")
TIMES: Final = ("ttft", "tpot", "e2e")


class Error(NamedTuple):
    """One number of both; seconds."""

    metric: str
    """mean_ttft_s and so on, as in `sim.metrics`."""
    measured: float | None
    simulated: float | None

    @property
    def frac(self) -> float | None:
        """(simulated - measured) / measured; None where either is missing."""
        if not self.measured or self.simulated is None:
            return None
        return self.simulated / self.measured - 1


def errors_of(measured: Sequence[RequestRow], simulated: Sequence[RequestRow]) -> list[Error]:
    """Over the requests that both served, by one definition of each number."""
    served = {row.request_id for row in measured if row.status == "finished"}
    served &= {row.request_id for row in simulated if row.status == "finished"}
    ours, theirs = (latencies(r for r in rows if r.request_id in served) for rows in (simulated, measured))
    names = [f"{statistic}_{time}_s" for time in TIMES for statistic in STATISTICS]
    return [Error(name, theirs[name], ours[name]) for name in names]


def against_verb(against: Path, folder: Path, tolerance: float | None, *, as_json: bool) -> int:
    """0, or 4 where an error is larger than the tolerance (or cannot be told) in any cell."""
    if tolerance is not None and not 0 < tolerance < 1:
        raise UsageError(f"--tolerance is a fraction between 0 and 1, such as 0.05 for 5 %, got {tolerance:g}")
    manifest = read_manifest(folder)
    if not manifest:
        raise UsageError(f"{folder}: no {store.MANIFEST}: name a folder that run or compare has written")
    try:
        measured = read_vllm_bench(against)
    except ValueError as error:
        raise UsageError(str(error)) from error
    _same_trace(measured, manifest, against, folder)
    cells = {
        str(cell["cell"]): errors_of(measured.rows, _simulated(folder, str(cell["cell"])))
        for cell in manifest.get("cells", [])
        if cell["status"] != "failed"
    }
    if not cells:
        raise UsageError(f"{folder}: no cell has finished, so there is nothing to compare")
    late = {name: [e.metric for e in errors if _beyond(e, tolerance)] for name, errors in cells.items()}
    if as_json:
        say_json(_object(measured, cells, late, tolerance))
    else:
        _show(measured, cells, late, tolerance)
    return exits.INVALID if any(late.values()) else exits.OK


def _beyond(error: Error, tolerance: float | None) -> bool:
    return tolerance is not None and (error.frac is None or abs(error.frac) > tolerance)


def _same_trace(measured: Measured, manifest: dict[str, Any], against: Path, folder: Path) -> None:
    sha256 = next((cell.get("trace_sha256") for cell in manifest.get("cells", [])), None)
    if sha256 != measured.trace.sha256():
        raise UsageError(
            f"{folder} replayed another trace than {against} measured ({str(sha256)[:12]} is not "
            f"{measured.trace.sha256()[:12]}): run it with --trace {against} --trace-format {FORMAT}"
        )


def _simulated(folder: Path, cell: str) -> list[RequestRow]:
    """Rows of a stored cell, times in picoseconds."""
    import pandas as pd

    path = folder / store.CELLS / cell / "requests.parquet"
    try:
        table = pd.read_parquet(path)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from error
    return [_stored_row(row) for row in table.to_dict("records")]


def _stored_row(row: dict[Any, Any]) -> RequestRow:
    values = []
    for name in RequestRow._fields:
        value = row[f"{name}_s"] if f"{name}_s" in row else row[name]
        if f"{name}_s" in row:
            value = -1 if value != value else round(value * PS)
        values.append(value)
    return RequestRow(*values)


def _object(
    measured: Measured, cells: dict[str, list[Error]], late: dict[str, list[str]], tolerance: float | None
) -> dict[str, Any]:
    rows = [
        {"cell": name, **error._asdict(), "error_frac": error.frac, "within": error.metric not in late[name]}
        for name, errors in cells.items()
        for error in errors
    ]
    return {"model": measured.model, "num_requests": len(measured.rows), "tolerance": tolerance, "errors": rows}


def _show(
    measured: Measured, cells: dict[str, list[Error]], late: dict[str, list[str]], tolerance: float | None
) -> None:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    for head in ("cell", "metric", "measured s", "simulated s", "error", ""):
        table.add_column(head, justify="left" if head in ("cell", "metric", "") else "right", no_wrap=True)
    for name, errors in cells.items():
        for error in errors:
            frac = "–" if error.frac is None else f"{error.frac:+.1%}"
            mark = "" if tolerance is None else "beyond" if error.metric in late[name] else "within"
            table.add_row(name, error.metric, _seconds(error.measured), _seconds(error.simulated), frac, mark)
    show(table, f"{measured.model or 'engine'}: {len(measured.rows):,} requests measured")
    failed = sum(row.status == "failed" for row in measured.rows)
    if failed:
        say(f"{failed} requests failed on the engine and are left out")
    if tolerance is not None:
        count = sum(map(len, late.values()))
        say(f"{count} errors are beyond {tolerance:.1%}" if count else f"all errors are within {tolerance:.1%}")


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"
