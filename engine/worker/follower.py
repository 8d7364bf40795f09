"""Ranks 1 and up of a model: a process each, that does what rank 0 says by a pipe, and ends with rank 0.

No scheduler, no allocator, no requests: `Order`s come in, steps are launched. A rank that fails says why and ends.
"""

from __future__ import annotations

import os
import signal
import threading
import traceback
from collections.abc import Callable
from multiprocessing import connection, parent_process
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from engine.model.share import Share
    from engine.worker.engine_config import EngineConfig
    from engine.worker.kv_memory import Kernel
    from engine.worker.order import Order
    from engine.worker.pool_shape import PoolShape
    from engine.worker.rank_engine import RankEngine


def follow(config: EngineConfig, share: Share, port: int, threads: int, pipe: connection.Connection[Any, Any]) -> None:
    """A rank's whole life. `port`: of rank 0's store; `threads`: that torch may use on a CPU."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # rank 0 gets it, too, and decides
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    try:
        Follower(config, share, port, pipe).serve()
    except (EOFError, BrokenPipeError):
        pass  # rank 0 is gone
    except Exception:  # noqa: BLE001 - said by rank 0
        pipe.send(("failed", traceback.format_exc()))
        os._exit(1)  # at once: what other ranks are to do with this one will not happen
    os._exit(0)


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


class Follower:
    """One rank at work."""

    def __init__(self, config: EngineConfig, share: Share, port: int, pipe: connection.Connection[Any, Any]) -> None:
        from engine.worker.rank_engine import RankEngine

        self._share, self._port, self._pipe = share, port, pipe
        if config.device == "cuda":
            torch.cuda.set_device(share.rank)
        self._engine: RankEngine | None = None
        if (made := self._said(lambda: RankEngine(config, share), tell=False)) is not None:
            self._engine = made
        self._last: torch.cuda.Event | None = None
        """End of the step that was launched last."""

    def _said(self, what: Callable[[], Any], *, tell: bool = True) -> Any:
        """Does it, and answers rank 0: what came of it (`tell`), or why it cannot be."""
        try:
            done = what()
        except ValueError as error:
            self._pipe.send(("error", str(error)))
            return None
        self._pipe.send(("done", done if tell else None))
        return done

    @torch.inference_mode()
    def serve(self) -> None:
        """Until it is told to stop."""
        while (message := self._pipe.recv())[0] != "stop":
            self._do(*message)
        if self._engine is not None:
            self._engine.close()

    def _do(self, name: str, *arguments: Any) -> None:
        engine = self._engine
        assert engine is not None, f"told to {name} without an engine"
        if name == "step":
            self._step(*arguments)
        elif name == "executor":
            self._executor(*arguments)
        elif name == "join":
            engine.join(self._port)
        elif name == "budget":
            self._said(lambda: engine.budget(arguments[0], utilization=arguments[1]))
        else:  # check_pool, release, mute, survey
            self._said(lambda: getattr(engine, name)(*arguments))

    def _step(self, order: Order) -> None:
        executor = self._engine.executor_in_use if self._engine is not None else None
        assert executor is not None, "told to step without an executor"
        if self._last is not None:
            self._last.synchronize()  # what the host writes for this step, the one before may still read
        executor.runner.follow(order)
        if self._last is not None:
            self._last.record()

    def _executor(self, shape: PoolShape, kernel: Kernel, warm_up: bool) -> None:
        assert self._engine is not None
        self._engine.executor(shape, kernel=kernel, warm_up=warm_up)
        self._last = torch.cuda.Event() if self._engine.device.type == "cuda" else None  # type: ignore[no-untyped-call]
