"""The other ranks of a model, from rank 0: their processes, what they are told, and what becomes of it if one dies.

Each of ranks 1 to N - 1 is a process of its own (`engine.worker.follower`), told by a pipe what to do: for a few bytes
a pipe is quicker than a collective, needs no device, and breaks with the process behind it. Tensors travel in the
collectives of the group alone. A thread waits for processes that end: it ends the others and what waits for them, so
that rank 0 gets an error instead of waiting for ever.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import connection, reduction
from typing import TYPE_CHECKING, Any

import torch
import torch.multiprocessing

from engine.model.share import Share
from engine.worker.budget import EngineError
from engine.worker.follower import follow
from engine.worker.rank_group import TIMEOUT, open_store

if TYPE_CHECKING:
    from multiprocessing.context import SpawnProcess

    from engine.worker.engine_config import EngineConfig
    from engine.worker.lead import Run
    from engine.worker.order import Order
    from engine.worker.rank_group import RankGroup

GRACE_S = 10
"""For a process that was told to end, and for an error to turn out to be the death of a rank."""
POLL_S = 0.05


class RankDied(RuntimeError):  # noqa: N818 - an event, not a mistake
    """A rank is gone, and with it the engine. The other ranks were ended."""

    def __init__(self, rank: int, message: str) -> None:
        super().__init__(message)
        self.rank = rank


class Peers:
    """Ranks 1 to `config.tensor_parallel_size` - 1."""

    def __init__(self, config: EngineConfig) -> None:
        """Starts the processes; each loads its share, and answers when it has."""
        self.size = size = config.tensor_parallel_size
        self.store = open_store(size)
        self.group: RankGroup | None = None
        """Once all have joined it."""
        self._pipes: list[connection.Connection[Any, Any]] = []
        self._processes: list[SpawnProcess] = []
        self._words: dict[int, str] = {}
        """What a rank has said last, before it ended."""
        self._died: RankDied | None = None
        self._buried = threading.Event()
        self._midway = self._closed = False
        self._wake, self._woken = connection.Pipe()
        context = torch.multiprocessing.get_context("spawn")
        threads = max(torch.get_num_threads() // size, 1)
        for rank in range(1, size):
            here, there = context.Pipe()
            arguments = (config, Share(rank, size), self.store.port, threads, there)
            process = context.Process(target=follow, args=arguments, name=f"pagelab rank {rank}", daemon=True)
            process.start()
            there.close()
            self._pipes.append(here)
            self._processes.append(process)
        self._watch = threading.Thread(target=self._bury, name="watch over ranks", daemon=True)
        self._watch.start()

    @property
    def pids(self) -> list[int | None]:
        """Process of each rank from 1 on."""
        return [process.pid for process in self._processes]

    # telling ------------------------------------------------------------------------------------------------------

    def tell(self, name: str, *arguments: object) -> None:
        """Has every rank do something. RankDied, or EngineError where an error here has left the others behind."""
        self.check()
        if self._closed or self._midway:
            why = "was closed" if self._closed else "broke off in the middle of a step that other ranks were running"
            raise EngineError(f"this engine of {self.size} ranks {why}: make a new one")
        self._send(name, *arguments)

    def _send(self, *words: object) -> None:
        message = reduction.ForkingPickler.dumps(words)
        try:
            for pipe in self._pipes:
                pipe.send_bytes(message)
        except OSError as error:
            raise self._explained(error) from error

    def answers(self) -> list[Any]:
        """What each rank says to what it was asked last. EngineError, with the first that cannot."""
        found = [self._answer(rank) for rank in range(1, self.size)]
        for rank, (kind, value) in enumerate(found, 1):
            if kind == "error":
                raise EngineError(f"rank {rank} of {self.size}: {value}")
        return [value for _, value in found]

    def ask(self, name: str, *arguments: object) -> list[Any]:
        """Tells all, and waits for their answers."""
        self.tell(name, *arguments)
        return self.answers()

    def _answer(self, rank: int) -> tuple[str, Any]:
        pipe = self._pipes[rank - 1]
        try:
            while not pipe.poll(POLL_S):
                self.check()
            answer: tuple[str, Any] = pipe.recv()
        except (EOFError, OSError) as error:
            raise self._explained(error) from error
        if answer[0] == "failed":
            self._words[rank] = answer[1]
            raise self._explained(RuntimeError(answer[1]))
        return answer

    @contextmanager
    def together(self) -> Iterator[None]:
        """Around what all ranks do at the same time: an error in it leaves the others waiting, and ends the engine."""
        self._midway = True
        with self.guard():
            yield
        self._midway = False

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Around what may fail because a rank is gone: RankDied then."""
        try:
            yield
        except RankDied:
            raise
        except RuntimeError as error:
            if (why := self._explained(error)) is not error:
                raise why from error
            raise

    # of `engine.worker.lead.Lead` -----------------------------------------------------------------------------------

    def run(self, order: Order, here: Run) -> torch.Tensor:
        """A step on all ranks."""
        self.tell("step", order)
        with self.together():
            return here(order)

    def wait_for(self, event: torch.cuda.Event) -> None:
        """Asks again and again: the device may be in a collective that a dead rank will never enter."""
        late = time.monotonic() + TIMEOUT.total_seconds()
        while not event.query():  # type: ignore[no-untyped-call]
            if self._died is not None:
                raise self._died
            if time.monotonic() > late:
                self._midway = True
                raise RuntimeError(f"no rank of {self.size} died, but a step has not ended in {TIMEOUT}")

    def check(self) -> None:
        """RankDied, once a rank is gone."""
        if self._died is not None:
            raise self._died

    @property
    def broken(self) -> bool:
        """Whether it serves nobody any more."""
        return self._died is not None or self._midway

    # the end --------------------------------------------------------------------------------------------------------

    def _explained(self, error: BaseException) -> BaseException:
        """The death of a rank where that is why; else the error itself."""
        self._buried.wait(GRACE_S)
        return self._died or error

    def _bury(self) -> None:
        """In a thread of its own: waits for a rank to end, then ends the others and what waits for them here."""
        sentinels = {process.sentinel: rank for rank, process in enumerate(self._processes, 1)}
        ready = connection.wait([*sentinels, self._woken])
        if self._closed:
            return
        gone = [sentinels[one] for one in ready if one in sentinels]
        for rank in gone:
            self._processes[rank - 1].join(GRACE_S)
        # Those that were killed go first: the others may have ended because of them.
        first = min(gone, key=lambda rank: ((self._processes[rank - 1].exitcode or 0) >= 0, rank))
        self._died = self._obituary(first)
        for process in self._processes:
            process.kill()
        self._buried.set()
        if self.group is not None:
            self.group.abort()

    def _obituary(self, rank: int) -> RankDied:
        process, pipe = self._processes[rank - 1], self._pipes[rank - 1]
        code = process.exitcode
        if code is not None and code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
        else:
            how = f"ended with exit code {code}"
        message = f"rank {rank} of {self.size} (process {process.pid}) {how}"
        words = (self._words.get(rank) or _last_words(pipe)).strip().splitlines()
        message += f": {words[-1]}" if words else ""
        died = RankDied(rank, f"{message}; the other ranks were ended, this engine is over: make a new one")
        if words:
            died.add_note("\n".join(words))
        elif code == 1:
            died.add_note(
                "a script that starts ranks is imported by each of them: what it does belongs under "
                "if __name__ == '__main__'"
            )
        return died

    def close(self, *, at_once: bool = False) -> None:
        """Ends all ranks; graphs with collectives in them must be gone. May be called twice. `at_once`: whatever they
        are doing."""
        if self._closed:
            return
        clean, self._closed = not (self.broken or at_once), True
        self._wake.send(None)
        if clean:
            try:
                self._send("stop")
            except (OSError, RankDied):
                clean = False
        if self.group is not None and self._died is None:  # else the thread that watches has aborted it
            ending = threading.Thread(target=self.group.shutdown if clean else self.group.abort, daemon=True)
            ending.start()
            ending.join(GRACE_S)
            self._midway |= ending.is_alive()
        for process in self._processes:
            process.join(GRACE_S if clean else 0)
            process.kill()
            process.join()
        for pipe in self._pipes:
            pipe.close()
        self._watch.join(GRACE_S)
        self.group = None


def _last_words(pipe: connection.Connection[Any, Any]) -> str:
    """The error that a rank has sent before it ended; nothing where it was killed."""
    try:
        while pipe.poll():
            kind, value = pipe.recv()
            if kind == "failed":
                return str(value)
    except (EOFError, OSError):
        pass
    return ""
