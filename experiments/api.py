"""The Python interface: a configuration and a trace in, data frames out; nothing is printed or written.

from experiments.api import Config, compare, run
result = run(Config.of(allocator="paged", block_size=16, kv_tokens=40_000), "trace.csv")
result.summary, result.requests, result.timeline
"""

from __future__ import annotations

from collections.abc import Mapping
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

    from workloads import Trace

__all__ = ["Comparison", "Config", "Result", "compare", "run"]

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


def run(config: Config | Mapping[str, Any] | None = None, trace: Source = None) -> Result:
    """One allocator, one block size. ValueError for what cannot be run; RuntimeError if the run breaks."""
    plan = _planned(config, trace, "run")
    return _results(plan)[0]


def compare(config: Config | Mapping[str, Any] | None = None, trace: Source = None) -> Comparison:
    """Every allocator with every block size of the configuration."""
    plan = _planned(config, trace, "compare")
    return Comparison(plan, _results(plan))


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
