"""Where the cells run: one small interface, and the processes of this machine behind it.

A launcher takes jobs and gives results in any order. It writes nothing and decides nothing.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from experiments.sweep.job import Job, JobResult, lost, run_job

Results = Generator[JobResult, None, None]
Started = Callable[[Job], None]
"""Told of each job as it is handed out."""
AHEAD = 2
"""Jobs handed out for each worker: the one that it runs, and the next."""


class Launcher(Protocol):
    """Runs jobs somewhere."""

    def results(self, jobs: Sequence[Job], started: Started) -> Results:
        """One a job, as they finish; closing the iterator ends what is running."""
        ...


@dataclass(frozen=True, slots=True)
class LocalLauncher:
    """Processes of this machine, started anew, so that nothing is inherited; a single one is this process itself."""

    jobs: int = 1

    def results(self, jobs: Sequence[Job], started: Started) -> Results:
        """As `Launcher.results`. A process that dies takes at most its own cell with it."""
        if self.jobs == 1:
            for job in jobs:
                started(job)
                yield run_job(job)
            return
        waiting = deque(jobs)
        while waiting:
            suspects = yield from _round(waiting, min(self.jobs, len(waiting)), started)
            for job in suspects:  # one of them ended the pool: alone, each ends only itself
                yield from _alone(job)


def _round(waiting: deque[Job], workers: int, started: Started) -> Generator[JobResult, None, list[Job]]:
    """Takes jobs until none is left or the pool is broken; returns those that were out when it broke."""
    with _pool(workers) as pool:
        out: dict[Future[JobResult], Job] = {}
        while waiting or out:
            while waiting and len(out) < AHEAD * workers:
                job = waiting.popleft()
                started(job)
                try:
                    out[pool.submit(run_job, job)] = job
                except BrokenProcessPool:
                    return [job, *out.values()]
            done = wait(out, return_when=FIRST_COMPLETED).done
            broken = [out[future] for future in done if isinstance(future.exception(), BrokenProcessPool)]
            for future in done:
                job = out.pop(future)
                if job not in broken:
                    yield result_of(future, job)
            if broken:
                return [*broken, *out.values()]
    return []


def _alone(job: Job) -> Iterator[JobResult]:
    with _pool(1) as pool:
        yield result_of(pool.submit(run_job, job), job)


def result_of(future: Future[JobResult], job: Job) -> JobResult:
    """What came through the pipe; a lost process is a failed cell."""
    try:
        return future.result()
    except BrokenProcessPool:
        return lost(job, "the process that ran it died: killed, out of memory, or ended by the allocator's code")
    except Exception as error:  # noqa: BLE001 - whatever came through the pipe, the finished cells are kept
        return lost(job, " ".join(f"{type(error).__name__}: {error}".split()))


@contextmanager
def _pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Ended, with whatever its processes are doing, when the block is left."""
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), initializer=_follow_the_parent)
    try:
        yield pool
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in set(multiprocessing.active_children()) - others:
            process.terminate()


def _follow_the_parent() -> None:
    """A worker ends with its parent, also with one that was killed, and leaves Ctrl-C to it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
