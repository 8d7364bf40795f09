"""Parts of `ranks_main` that must hold: several ranks give one rank's outputs, and one that is killed ends the run."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from experiments import exits

if TYPE_CHECKING:
    import torch

    from engine.core.request import Request
    from engine.worker.engine import Engine
    from experiments.bench.ranks_parts import Parts

TOLERANCE: Final = {"bfloat16": 2e-2, "float32": 1e-3}
"""Of the largest logit of a row, under forced tokens: sums over ranks are rounded in another order."""
NUM_REQUESTS, LONGEST, OUTPUTS = 24, 256, 20
CLOSED_S: Final = 8
"""Graphs, group and processes are gone by then, or something hung."""
CLEAN_S: Final = 20
"""Within which a run must have ended after the death of a rank."""


class Logits:
    """Rows of logits by request and place, on the host."""

    def __init__(self) -> None:
        self.rows: dict[tuple[object, int], torch.Tensor] = {}
        self._counts: dict[object, int] = {}

    def __call__(self, asked: list[Request], logits: torch.Tensor) -> None:
        """As an executor shows them."""
        for request, row in zip(asked, logits.float().cpu(), strict=True):
            place = self._counts.get(request.request_id, 0)
            self._counts[request.request_id] = place + 1
            self.rows[request.request_id, place] = row.clone()


def equal(parts: Parts) -> None:
    """Logits under forced tokens, one rank beside several, with preemptions and shared prefixes."""
    for dtype in ("bfloat16", "float32") if parts.on_device else ("float32",):
        found = {}
        for ranks in (1, parts.ranks):
            with closing(_engine(parts, dtype, ranks)) as engine:
                found[ranks], preemptions = _forced(parts, engine)
                began = time.monotonic()
            closed = time.monotonic() - began
        one, several = found[1].rows, found[parts.ranks].rows
        worst = max(float((several[key] - row).abs().max() / row.abs().max()) for key, row in one.items())
        agree = sum(int(several[key].argmax()) == int(row.argmax()) for key, row in one.items()) / len(one)
        about = f"{dtype}, {len(one)} rows, {preemptions} preemptions"
        limit = TOLERANCE[dtype]
        whole = one.keys() == several.keys() and len(one) == NUM_REQUESTS * OUTPUTS
        parts.row("small", parts.ranks, f"largest difference of logits, relative ({about})", worst, "",
                  f"at most {limit:g}, all rows", worst <= limit and whole)  # fmt: skip
        parts.row("small", parts.ranks, f"rows with the same likeliest token ({dtype})", agree)
        parts.row("small", parts.ranks, "time to end the ranks", closed, "s", f"below {CLOSED_S} s", closed < CLOSED_S)


def _engine(parts: Parts, dtype: str, ranks: int) -> Engine:
    from engine.worker.engine_config import EngineConfig
    from engine.worker.rank_engine import open_engine

    return open_engine(
        EngineConfig(
            parts.small(),
            device=parts.device,
            dtype=dtype,
            weights_seed=0,
            max_num_seqs=16,
            max_num_batched_tokens=192,
            max_model_len=LONGEST,
            tensor_parallel_size=ranks,
        )
    )


def _forced(parts: Parts, engine: Engine) -> tuple[Logits, int]:
    """Serves requests whose outputs are given, in a pool too small for all; (logits, preemptions)."""
    import numpy as np

    from engine.core.content import TokenContent
    from engine.core.limits import SchedulerConfig
    from engine.core.registry import PoolConfig, make_allocator
    from engine.core.request import Request
    from engine.core.scheduler import Scheduler
    from engine.core.step import step
    from engine.worker.rank_engine import LeadingEngine

    draw = np.random.Generator(np.random.Philox(key=5))
    vocab, shown, preemptions = engine.architecture.vocab_size, Logits(), 0
    begin = draw.integers(0, vocab, 64).tolist()
    limits = SchedulerConfig(LONGEST, max_num_seqs=16, max_num_batched_tokens=192)
    scheduler = Scheduler(limits, make_allocator("paged", PoolConfig(70, 16, max_model_len=LONGEST)))
    executor = engine.executor(scheduler.allocator, watch=shown)
    for number in range(NUM_REQUESTS):
        text = begin[: 64 * (number % 2)] + draw.integers(0, vocab, int(draw.integers(20, 120))).tolist()
        content = TokenContent([*text, *draw.integers(0, vocab, OUTPUTS).tolist()])
        scheduler.add(Request(number, len(text), OUTPUTS, content=content))
    while scheduler.has_work:
        preemptions += len(step(scheduler, executor).batch.preempted)
    if isinstance(engine, LeadingEngine):
        tables = {survey.block_table for survey in engine.surveys()}
        parts.row("small", parts.ranks, "different block tables", len(tables), "", "1", len(tables) == 1)
    return shown, preemptions


def kill(parts: Parts) -> None:
    """`engine_main` over several ranks, of which rank 1 is killed in the middle of a run."""
    sizes = ("256", "64", "400") if parts.on_device else ("6", "12", "200")
    words = ["--num-requests", sizes[0], "--input-len", sizes[1], "--output-len", sizes[2], "--num-runs", "200"]
    limits = ["--max-num-batched-tokens", "512"] if parts.on_device else ["--max-num-batched-tokens", "64"]
    command = [sys.executable, "-m", "experiments.bench.engine_main", "--model", parts.small(), *words, *limits]
    command += ["--device", parts.device, "--tensor-parallel-size", str(parts.ranks)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    lines: list[str] = []
    running, reader = threading.Event(), threading.Thread(target=_read, args=(process, lines))
    reader.running = running  # type: ignore[attr-defined]
    reader.start()
    running.wait(50)
    ranks = _ranks_of(process.pid)
    if not ranks:
        process.kill()
        raise RuntimeError(f"no rank runs beside process {process.pid}: {lines[-5:]}")
    os.kill(ranks[0], signal.SIGKILL)
    began = time.monotonic()
    try:
        code: int | str = process.wait(2 * CLEAN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        code = f"none in {2 * CLEAN_S} s"
    took = time.monotonic() - began
    reader.join(5)
    _judge(parts, code, took, lines, [pid for pid in ranks if Path(f"/proc/{pid}").exists()])


def _judge(parts: Parts, code: int | str, took: float, lines: list[str], left: list[int]) -> None:
    named = next((line for line in lines if re.search(rf"rank 1 of {parts.ranks} .* was killed by SIGKILL", line)), "")
    must = f"{exits.FAILED_CELLS}, within {CLEAN_S} s"
    parts.row("small", parts.ranks, "exit code after rank 1 was killed", code, "", must,
              code == exits.FAILED_CELLS and took <= CLEAN_S)  # fmt: skip
    parts.row("small", parts.ranks, "time from the kill to the exit", took, "s")
    parts.row("small", parts.ranks, "error", named or lines[-1:], "", "names the rank", bool(named))
    parts.row("small", parts.ranks, "processes left", len(left), "", "0", not left)


def _read(process: subprocess.Popen[str], lines: list[str]) -> None:
    """Keeps what the process says; its first run is over when it says so."""
    running: Any = getattr(threading.current_thread(), "running")  # noqa: B009
    assert process.stderr is not None
    for line in process.stderr:
        lines.append(line.rstrip())
        sys.stderr.write(line)
        if line.startswith("run 0:"):
            running.set()
    running.set()


def _ranks_of(parent: int) -> list[int]:
    """Processes that a process has spawned as ranks, oldest first."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
            words = (stat.parent / "cmdline").read_bytes()
        except OSError:
            continue  # it has ended meanwhile
        if int(fields[1]) == parent and b"spawn_main" in words:
            found.append(int(stat.parent.name))
    return sorted(found)
