"""The Python interface: a configuration and a trace in, data frames out; nothing is printed, and nothing is written but
by a `sweep` that is told where.

from experiments.api import Config, compare, run, sweep
result = run(Config.of(allocator="paged", block_size=16, kv_tokens=40_000), "trace.csv")
result.summary, result.requests, result.timeline
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.cells import Outcome, run_task, task_of
from experiments.config import config_of
from experiments.resolve import Plan, plan_of
from experiments.settings import Config
from experiments.store import summary_row

if TYPE_CHECKING:
    import pandas as pd

    from experiments.sweep.planning import SweepPlan
    from workloads import Trace

__all__ = ["Comparison", "Config", "Result", "Sweep", "compare", "run", "sweep"]

Source = Any
"""A Trace, the path of a trace file, or None for the configuration's own workload."""


@dataclass(frozen=True, slots=True)
class Result:
    """One run."""

    plan: Plan
    outcome: Outcome

    @property
    def summary(self) -> pd.DataFrame:
        """One tidy row; `sim.metrics.METRICS` says what the columns mean."""
        import pandas as pd

        return pd.DataFrame([summary_row(self.outcome)])

    @property
    def requests(self) -> pd.DataFrame:
        """One row a request."""
        return self.outcome.tables["requests"]

    @property
    def timeline(self) -> pd.DataFrame:
        """Means over a fixed grid of simulated time."""
        return self.outcome.tables["timeline"]

    @property
    def memory_map(self) -> pd.DataFrame:
        """Who holds which blocks, by snapshot; needs `map_frames` (160 unless set)."""
        import pandas as pd

        return self.outcome.tables.get("map", pd.DataFrame(columns=["time_s", "start_block", "num_blocks", "owner"]))

    @property
    def steps(self) -> pd.DataFrame:
        """One row a step; KeyError unless the configuration says record_steps."""
        return self.outcome.tables["steps"]

    @property
    def checks(self) -> list[dict[str, Any]]:
        """The equations that the run was checked against."""
        return self.outcome.checks


@dataclass(frozen=True, slots=True)
class Comparison:
    """Several runs of one trace at equal capacity."""

    plan: Plan
    results: list[Result]

    @property
    def summary(self) -> pd.DataFrame:
        """One row a run."""
        import pandas as pd

        return pd.DataFrame([summary_row(result.outcome) for result in self.results])


@dataclass(frozen=True, slots=True)
class Sweep:
    """Every cell of some axes."""

    plan: SweepPlan
    rows: list[dict[str, Any]]
    """Of the cells that ran to their end, as in summary.csv."""
    failed: dict[str, str]
    """Why the others did not, by cell."""
    folder: Path | None
    """Where the results lie; None: nowhere."""

    @property
    def summary(self) -> pd.DataFrame:
        """One row a cell and repeat, with a column an axis."""
        import pandas as pd

        return pd.DataFrame(self.rows)


def run(config: Config | Mapping[str, Any] | None = None, trace: Source = None) -> Result:
    """One allocator, one block size. ValueError for what cannot be run; RuntimeError if the run breaks."""
    plan = _planned(config, trace, "run")
    return _results(plan)[0]


def compare(config: Config | Mapping[str, Any] | None = None, trace: Source = None) -> Comparison:
    """Every allocator with every block size of the configuration."""
    plan = _planned(config, trace, "compare")
    return Comparison(plan, _results(plan))


def sweep(
    config: Config | Mapping[str, Any] | None = None,
    grid: Mapping[str, Sequence[Any]] | None = None,
    num_runs: int | None = None,
    jobs: int = 1,
    out: str | Path | None = None,
    resume: bool = False,
    *,
    zips: Sequence[Sequence[str]] = (),
    exclude: Sequence[str] = (),
    record: Sequence[str] = (),
) -> Sweep:
    """Every combination of the grid's values, by dotted key; None leaves a key unset. `zips` are keys that go together,
    `exclude` are expressions, `record` tables that each cell keeps in `out`. `resume` goes on with what is in `out`.

    ValueError for what cannot be run. With jobs > 1 call it under `if __name__ == "__main__"`: processes are spawned.
    """
    from experiments.sweep.axes import axes_of_keys
    from experiments.sweep.in_python import swept

    base = config if isinstance(config, Config) else config_of(config or {})
    base = base if num_runs is None else base.with_(num_runs=num_runs)
    axes = axes_of_keys(grid or {}, zips, exclude)
    plan, rows, failed = swept(base, axes, jobs, None if out is None else Path(out), resume=resume, tables=record)
    return Sweep(plan, rows, failed, None if out is None else Path(out))


def _planned(config: Config | Mapping[str, Any] | None, source: Source, verb: str) -> Plan:
    settings = config if isinstance(config, Config) else config_of(config or {})
    trace: Trace | None = None
    if isinstance(source, str | Path):
        settings = settings.with_(trace=str(source))
    elif source is not None:
        trace = source
    return plan_of(settings, verb=verb, trace=trace)


def _results(plan: Plan) -> list[Result]:
    results = []
    for cell in plan.cells:
        outcome = run_task(task_of(plan, cell))
        if outcome.summary is None:
            raise RuntimeError(f"{cell.name}: {outcome.error}\n{outcome.details}")
        results.append(Result(plan, outcome))
    return results
