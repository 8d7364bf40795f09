"""The runs of a results folder, as the exporters read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from experiments import store
from experiments.exits import UsageError
from experiments.export.chosen import chosen, named, place_of
from experiments.folders import results_folder
from experiments.series import series_of_row
from experiments.views import read_manifest

if TYPE_CHECKING:
    import pandas as pd


KEPT_BY: Final = {
    "map": "--map-frames 160 keeps the pool (run and compare keep it by themselves; several replicas have none)",
    "requests": "a sweep keeps its cells' tables with --record requests,timeline",
    "timeline": "a sweep keeps its cells' tables with --record requests,timeline",
    "steps": "--record steps keeps it",
}
"""What to say where a table is missing."""


@dataclass(frozen=True)
class StoredRun:
    """One finished cell: its row of summary.csv, and its tables when they are asked for."""

    folder: Path
    row: Mapping[str, Any]
    """Of summary.csv; missing values are None."""
    manifest: Mapping[str, Any]

    @property
    def label(self) -> str:
        """`paged, block size 16, seed 0`."""
        return f"{series_of_row(self.row)}, block size {self.row['block_size']:g}, seed {self.row['seed']:g}"

    @property
    def model(self) -> str:
        """As the configuration names it."""
        return str(self.manifest.get("config", {}).get("model", {}).get("name") or "unknown")

    def table(self, name: str) -> pd.DataFrame:
        """requests, timeline, map, ... UsageError where the run has no such table, or a damaged one."""
        import pandas as pd

        path = self.folder / f"{name}.parquet"
        if not path.is_file():
            raise UsageError(f"{path}: not there; {KEPT_BY.get(name, f'this run was stored without {name}')}")
        try:
            return pd.read_parquet(path)
        except Exception as error:  # whatever the reader makes of a damaged file
            raise UsageError(f"{path}: cannot be read: {error}") from error

    @cached_property
    def requests(self) -> pd.DataFrame:
        """One row a request."""
        return self.table("requests")

    @cached_property
    def timeline(self) -> pd.DataFrame:
        """One row a bin of simulated time."""
        return self.table("timeline")

    @property
    def end_s(self) -> float:
        """When the run ended, in seconds: its last token, or the cut."""
        last = self.timeline.iloc[-1] if len(self.timeline) else {"time_s": 0.0, "duration_s": 0.0}
        return max(float(last["time_s"] + last["duration_s"]), float(self.row.get("makespan_s") or 0.0))

    def away(self) -> dict[int, list[tuple[float, float | None, bool]]]:
        """When each request was preempted, came back (None: never), and whether it was swapped out. UsageError for
        results that count preemptions and do not say when they were."""
        if not self.row.get("num_preemptions"):
            return {}
        if not (self.folder / "preemptions.parquet").is_file():
            raise UsageError(
                f"{self.folder}: {self.row['num_preemptions']:g} preemptions, but no preemptions.parquet that says "
                "when: these results are of an older pagelab, run the experiment again"
            )
        found: dict[int, list[tuple[float, float | None, bool]]] = {}
        for row, start, stop, swapped in self.table("preemptions").itertuples(index=False):
            found.setdefault(int(row), []).append((start, None if stop != stop else stop, bool(swapped)))
        return found


def runs_of(folder: Path, cells: Sequence[str] = ()) -> list[StoredRun]:
    """Finished runs of which all of `cells` holds (`chosen`), in the order of summary.csv; UsageError where there are
    none."""
    import pandas as pd

    manifest = read_manifest(results_folder(folder))
    if not manifest:
        raise UsageError(f"{folder}: no {store.MANIFEST}: a run that was killed before its end; run it again")
    frame = pd.read_csv(folder / store.SUMMARY, dtype={"cell": str})  # a hash of digits is no number
    lacking = {"cell", "seed", "allocator", "block_size"} - set(frame.columns)
    if lacking:
        raise UsageError(f"{folder / store.SUMMARY}: not of simulated runs: no column {', '.join(sorted(lacking))}")
    if frame.empty:
        raise UsageError(f"{folder}: empty")
    found = []
    for record in chosen(folder, frame, manifest, cells).to_dict("records"):
        row = {str(name): None if value != value else value for name, value in record.items()}
        found.append(StoredRun(place_of(folder, row), row, manifest))
    return found


def the_only(runs: Sequence[StoredRun]) -> StoredRun:
    """UsageError, with all of them, where there are several."""
    import pandas as pd

    if len(runs) == 1:
        return runs[0]
    frame = pd.DataFrame([run.row for run in runs])
    raise UsageError(
        f"a snapshot is of one run, and these are {len(runs)}: say --cell with the beginning of one's name, or with "
        f"what tells it from the others (--cell KEY=VALUE):{named(frame, runs[0].manifest)}"
    )
