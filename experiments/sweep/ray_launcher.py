"""Cells on a Ray cluster, or on one that is started here. Cells on a GPU ask for one."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from experiments.exits import DeviceMissing
from experiments.sweep.job import Job, JobResult, lost, run_job
from experiments.sweep.launchers import AHEAD, Results, Started

ROOT: Final = Path(__file__).resolve().parents[2]
"""Where the packages lie: on the machines of a cluster pagelab must be installed."""


def imported_ray() -> Any:
    """The package; DeviceMissing, with what to install, where it is not."""
    try:
        import ray
    except ModuleNotFoundError as error:
        raise DeviceMissing(f"--launcher ray needs Ray: pip install -e '.[ray]' ({error})") from None
    return ray


@dataclass(frozen=True, slots=True)
class RayLauncher:
    """One task a cell, of one CPU each."""

    address: str | None = None
    """Of a cluster, or auto; None: one is started here for the sweep."""
    jobs: int = 0
    """Most tasks at once; 0: as many as there are CPUs."""

    def results(self, jobs: Sequence[Job], started: Started) -> Results:
        """As `Launcher.results`. A task whose process dies is a failed cell."""
        ray = imported_ray()
        mine = not ray.is_initialized()
        if mine:
            self._connect(ray)
        try:
            yield from self._tasks(ray, jobs, started)
        finally:
            if mine:
                ray.shutdown()

    def _connect(self, ray: Any) -> None:
        path = os.pathsep.join(
            dict.fromkeys([str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep), str(Path.cwd())])
        )
        local = {"num_cpus": self.jobs or None, "include_dashboard": False} if self.address is None else {}
        here = {"runtime_env": {"env_vars": {"PYTHONPATH": path}}} if self.address is None else {}
        try:
            ray.init(address=self.address, log_to_driver=False, logging_level="error", **local, **here)
        except ConnectionError as error:
            raise DeviceMissing(f"--address {self.address}: no Ray cluster there: {error}") from error

    def _tasks(self, ray: Any, jobs: Sequence[Job], started: Started) -> Iterator[JobResult]:
        limit = self.jobs or AHEAD * max(int(ray.cluster_resources().get("CPU", 1)), 1)
        task = ray.remote(max_retries=0)(run_job)
        waiting, out = deque(jobs), dict[Any, Job]()
        try:
            while waiting or out:
                while waiting and len(out) < limit:
                    job = waiting.popleft()
                    started(job)
                    out[task.options(**needs_of(job)).remote(job)] = job
                [done], _ = ray.wait(list(out), num_returns=1)
                yield _result(ray, done, out.pop(done))
        finally:
            for reference in out:
                ray.cancel(reference, force=True)


def needs_of(job: Job) -> dict[str, int]:
    """What a task asks Ray for."""
    return {"num_cpus": 1, "num_gpus": int(job.on_gpu)}


def _result(ray: Any, reference: Any, job: Job) -> JobResult:
    try:
        result: JobResult = ray.get(reference)
    except Exception as error:  # noqa: BLE001 - whatever happened to the task, the finished cells are kept
        return lost(job, " ".join(f"{type(error).__name__}: {error}".split())[:500])
    return result
