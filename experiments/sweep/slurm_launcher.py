"""Cells as Slurm jobs, through submitit: each job takes a share of the cells, one after the other.

A job puts every result into a folder that all machines see, so that a job that is killed loses the cell that it was at.
"""

from __future__ import annotations

import os
import pickle
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from experiments.exits import DeviceMissing, UsageError
from experiments.store import write_whole
from experiments.sweep.job import Job, JobResult, lost, run_job
from experiments.sweep.launchers import Results, Started
from experiments.sweep.ray_launcher import ROOT

POLL_S: Final = 0.2
GRACE_S: Final = 5.0
"""How long results of a job that has ended may take to be seen, on a file system that is shared."""


def imported_submitit() -> Any:
    """The package; DeviceMissing, with what to install, where it is not."""
    try:
        import submitit
    except ModuleNotFoundError as error:
        raise DeviceMissing(f"--launcher slurm needs submitit: pip install -e '.[slurm]' ({error})") from None
    return submitit


@dataclass(frozen=True, slots=True)
class SlurmLauncher:
    """Some Slurm jobs, or processes that submitit starts here (`address` local)."""

    folder: Path
    """Logs and results on their way; seen by all machines, emptied at the end."""
    jobs: int = 2
    """Slurm jobs to submit."""
    address: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    """submitit's parameters: timeout_min, mem_gb, slurm_partition, ..."""

    def results(self, jobs: Sequence[Job], started: Started) -> Results:
        """As `Launcher.results`. Of a job that dies the cell that it was at has failed; others are submitted again."""
        spool = self.folder / "results"
        shutil.rmtree(spool, ignore_errors=True)
        spool.mkdir(parents=True)
        executor = self._executor()
        number = min(max(self.jobs, 1), len(jobs))
        shares = [list(jobs[i::number]) for i in range(number)]
        submitted: list[tuple[Any, list[Job]]] = []
        try:
            while shares or submitted:
                for share in shares:
                    for job in share:
                        started(job)
                    submitted.append((_submit(executor, share, spool), share))
                shares = []
                ended = [one for one in submitted if one[0].done()]  # before its results are looked for
                yield from _take(spool, submitted)
                for handle, share in ended:
                    yield from _wait(spool, submitted, share)
                    submitted.remove((handle, share))
                    if share:
                        yield lost(share[0], _why(handle))
                        shares += [share[1:]] if share[1:] else []
                time.sleep(POLL_S if submitted and not shares else 0)
        finally:
            for handle, _ in submitted:
                handle.cancel()
            shutil.rmtree(spool, ignore_errors=True)

    def _executor(self) -> Any:
        submitit = imported_submitit()
        cluster = "slurm" if self.address is None else self.address
        if cluster == "slurm" and shutil.which("sbatch") is None:
            raise DeviceMissing("--launcher slurm: no sbatch here; --address local runs the same jobs on this machine")
        try:
            executor = submitit.AutoExecutor(folder=str(self.folder / "logs"), cluster=cluster)
            executor.update_parameters(name="pagelab-sweep", cpus_per_task=1, **self.options)
        except (NameError, ValueError, KeyError, TypeError, RuntimeError) as error:
            raise UsageError(f"--slurm-option: submitit says: {error}") from error
        return executor


def run_share(share: Sequence[Job], spool: str) -> int:
    """In the Slurm job: its cells, each result as a file that appears whole; how many there were."""
    for job in share:
        write_whole(Path(spool) / f"{job.name}.pickle", pickle.dumps(run_job(job)))
    return len(share)


def _submit(executor: Any, share: Sequence[Job], spool: Path) -> Any:
    with _importable():
        return executor.submit(run_share, tuple(share), str(spool.resolve()))


@contextmanager
def _importable() -> Iterator[None]:
    """Jobs inherit the environment, and find the packages in it."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *([before] if before else [])])
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def _take(spool: Path, submitted: Sequence[tuple[Any, list[Job]]]) -> Iterator[JobResult]:
    """Results that have appeared; their jobs are taken off the shares. Our own jobs wrote the pickles."""
    shares = [share for _, share in submitted]
    for path in sorted(spool.glob("[!.]*.pickle")):
        result: JobResult = pickle.loads(path.read_bytes())
        path.unlink()
        for share in shares:
            share[:] = [job for job in share if job.name != result.name]
        yield result


def _wait(spool: Path, submitted: Sequence[tuple[Any, list[Job]]], share: list[Job]) -> Iterator[JobResult]:
    """The last results of a job that has ended; they may be on their way."""
    until = time.monotonic() + GRACE_S
    while True:
        yield from _take(spool, submitted)
        if not share or time.monotonic() >= until:
            return
        time.sleep(POLL_S)


def _why(handle: Any) -> str:
    error = handle.exception() if hasattr(handle, "exception") else None
    last = str(error).strip().splitlines()[-1:] or ["no message"]
    told = f"the Slurm job {handle.job_id} ended without it ({handle.state}): {last[0][:300]}"
    return f"{told}; its output: {handle.paths.stderr}"
