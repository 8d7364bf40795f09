"""`bench engine`: a closed batch of equal requests through scheduler, allocator and the real engine, at full speed.

Runs without pydantic, cyclopts, pandas and simpy, so that a machine with nothing but torch and triton can measure.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from engine.core.content import TokenContent
from engine.core.limits import SchedulerConfig
from engine.core.progress import Progress
from engine.core.registry import PoolConfig, make_allocator
from engine.core.request import Request
from engine.core.scheduler import Scheduler
from engine.core.step import execute
from experiments.bench.engine_rows import BatchRun, Row, Step, line_of, row_of
from experiments.exits import DeviceMissing
from experiments.provenance import without_folders
from experiments.ranks import broken_by_a_rank

if TYPE_CHECKING:
    from engine.core.allocator import KVAllocator
    from engine.core.batch import Batch
    from engine.worker.engine import Engine
    from engine.worker.executor import ModelExecutor
    from engine.worker.step_clock import StepTime

Say = Callable[[str], None]
PS: Final = 10**12
NS: Final = 10**9
SCHEMA_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class EngineWanted:
    """What was asked for; all of it is in the manifest."""

    model: str = "llama-3-8b"
    device: str = "cuda"
    dtype: str = "auto"
    attention: str = "auto"
    layout: str | None = None
    allocator: str = "paged"
    kernel: Literal["paged", "contiguous"] = "paged"
    block_size: int = 16
    prefix_caching: bool = False
    num_requests: int = 256
    input_len: int = 512
    output_len: int = 128
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    max_model_len: int | None = None
    """None: input_len + output_len."""
    kv_tokens: int | None = None
    """None: all requests at once, by the allocator's largest reservation."""
    num_runs: int = 3
    tensor_parallel_size: int = 1
    graphs: bool = True
    shared_prefix_kernel: bool = True
    profile: bool = False
    seed: int = 0
    """Of the prompts, and of random weights."""

    def __post_init__(self) -> None:
        for name in ("block_size", "num_requests", "input_len", "output_len", "num_runs", "tensor_parallel_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"need {name} of at least 1, got {getattr(self, name)}")
        if self.longest < self.input_len + self.output_len:
            raise ValueError(
                f"max_model_len={self.longest} is less than input_len + output_len = {self.input_len + self.output_len}"
            )
        if self.profile and self.device != "cuda":
            raise ValueError(f"--profile reads the kernel times of a CUDA device, and the device is {self.device}")

    def to_dict(self) -> dict[str, Any]:
        """Plain values, files and folders by name."""
        named: dict[str, Any] = without_folders(asdict(self))
        return named

    @property
    def longest(self) -> int:
        """Most tokens of a request."""
        return self.max_model_len or self.input_len + self.output_len

    def pool(self) -> PoolConfig:
        """Room for all requests at their longest, rounded up to a power of two of blocks where buddies do so."""
        needed = -(-self.longest // self.block_size)
        if self.allocator != "paged":
            needed = 1 << (needed - 1).bit_length()
        tokens = self.kv_tokens or min(self.num_requests, self.max_num_seqs) * needed * self.block_size
        return PoolConfig(
            max(tokens // self.block_size, 1), self.block_size, self.longest, enable_caching=self.prefix_caching
        )

    def limits(self) -> SchedulerConfig:
        """Of the scheduler."""
        return SchedulerConfig(self.longest, self.max_num_seqs, self.max_num_batched_tokens)


@dataclass
class EngineMeasured:
    """What came out; runs that were finished are there also when the session broke off."""

    wanted: EngineWanted
    machine: dict[str, Any]
    engine: dict[str, Any]
    num_blocks: int
    rows: list[Row] = field(default_factory=list)
    """One a run; the best by wall clock has `best`."""
    steps: list[Row] = field(default_factory=list)
    """Of the best run."""
    profile: list[Row] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Everything but the long table of steps."""
        return {
            "schema_version": SCHEMA_VERSION,
            "config": self.wanted.to_dict(),
            "machine": self.machine,
            "engine": self.engine,
            "num_blocks": self.num_blocks,
            "rows": self.rows,
            "profile": self.profile,
        }


def measure(wanted: EngineWanted, say: Say) -> EngineMeasured:
    """Loads the model and runs the batch `num_runs` times over one allocator and one KV cache. DeviceMissing without
    torch or device; ValueError for what cannot be run; RunBroken where a rank dies."""
    watched = broken_by_a_rank() if wanted.tensor_parallel_size > 1 else nullcontext()
    with watched, closing(engine_of(wanted)) as engine:
        return measured(wanted, engine, say)


def measured(wanted: EngineWanted, engine: Engine, say: Say) -> EngineMeasured:
    """As `measure`, by an engine that is there."""
    allocator = make_allocator(wanted.allocator, wanted.pool())
    executor = engine.executor(allocator, kernel=wanted.kernel)
    done = EngineMeasured(wanted, _machine(wanted), without_folders(engine.provenance), allocator.capacity_blocks)
    runs: list[BatchRun] = []
    for index in range(wanted.num_runs):
        runs.append(run_batch(wanted, engine, allocator, executor, index))
        done.rows.append(row_of(wanted.to_dict(), runs[-1], index))
        say(line_of(done.rows[-1]))
    best = min(range(len(runs)), key=lambda index: runs[index].wall_s)
    done.rows[best]["best"] = True
    done.steps = [step._asdict() for step in runs[best].steps]
    if wanted.profile:
        from experiments.bench.engine_profile import profiled

        done.profile = profiled(wanted, engine, allocator, executor, runs[best].steps, say)
    return done


def engine_of(wanted: EngineWanted) -> Engine:
    """The engine that was asked for; random weights where the model is a name or a folder without any."""
    try:
        from engine.worker.engine import DeviceUnavailable, EngineConfig
        from engine.worker.rank_engine import open_engine
    except ModuleNotFoundError as error:
        raise DeviceMissing(f"the engine needs {error.name}: pip install -e '.[engine]'") from error
    path = Path(wanted.model)
    has_weights = path.is_file() or any(path.glob("*.safetensors"))
    config = EngineConfig(
        model=wanted.model,
        device=wanted.device,
        dtype=wanted.dtype,
        attention=wanted.attention,
        layout=wanted.layout,
        weights_seed=None if has_weights else wanted.seed,
        max_num_seqs=wanted.max_num_seqs,
        max_num_batched_tokens=wanted.max_num_batched_tokens,
        max_model_len=wanted.longest,
        tensor_parallel_size=wanted.tensor_parallel_size,
        graphs=wanted.graphs,
        shared_prefix_kernel=wanted.shared_prefix_kernel,
    )
    try:
        return open_engine(config)
    except DeviceUnavailable as error:
        raise DeviceMissing(str(error)) from error


def _machine(wanted: EngineWanted) -> dict[str, Any]:
    if wanted.device != "cuda":
        return {}
    from experiments.bench.machine import described

    return described()


def requests_of(wanted: EngineWanted, vocab_size: int, run: int) -> list[Request]:
    """Requests of random tokens, other ones in each run: nothing is found in a prefix cache, everything is hashed."""
    generator = np.random.Generator(np.random.Philox(key=(wanted.seed << 16) + run))
    prompts = generator.integers(0, vocab_size, (wanted.num_requests, wanted.input_len)).tolist()
    return [
        Request(run * wanted.num_requests + index, wanted.input_len, wanted.output_len, content=TokenContent(prompt))
        for index, prompt in enumerate(prompts)
    ]


def scheduler_of(wanted: EngineWanted, engine: Engine, allocator: KVAllocator, run: int) -> Scheduler:
    """A scheduler with all requests of a run in its queue. ValueError for a pool that can never hold one."""
    scheduler = Scheduler(wanted.limits(), allocator)
    for request in requests_of(wanted, engine.architecture.vocab_size, run):
        if scheduler.refuses_forever(request):
            raise ValueError(
                f"{wanted.allocator}: {allocator.capacity_blocks:,} blocks of {wanted.block_size} can never hold "
                f"{wanted.input_len} + {wanted.output_len} tokens: raise --kv-tokens"
            )
        scheduler.add(request)
    return scheduler


def run_batch(
    wanted: EngineWanted, engine: Engine, allocator: KVAllocator, executor: ModelExecutor, run: int
) -> BatchRun:
    """All requests at once, to the last token; garbage collection is off meanwhile."""
    scheduler = scheduler_of(wanted, engine, allocator, run)
    mallocs, steps = _num_cuda_mallocs(wanted), list[Step]()
    gc.collect()
    gc.disable()
    try:
        begun = time.perf_counter_ns()
        for step in stepping(scheduler, executor):
            steps.append(step)
        wall_s = (time.perf_counter_ns() - begun) / NS
    finally:
        gc.enable()
    tokens = wanted.num_requests * wanted.output_len
    return BatchRun(wall_s, steps, tokens, _num_cuda_mallocs(wanted) - mallocs, scheduler.prefix.hits)


def stepping(
    scheduler: Scheduler, executor: ModelExecutor, before: Callable[[int, Batch], None] | None = None
) -> Iterator[Step]:
    """Steps until nobody runs or waits. `before` is told the number of each step that is about to run."""
    number, progress = 0, Progress(scheduler)
    while scheduler.has_work:
        start = time.perf_counter_ns()
        batch = scheduler.schedule()
        decided = time.perf_counter_ns()
        if batch.preempted or not batch.num_seqs:
            progress.watch(batch)
            if not batch.num_seqs:
                continue  # everyone was preempted: the next call admits again
        if before is not None:
            before(number, batch)
        result = execute(scheduler, executor, batch)
        ran = time.perf_counter_ns()
        scheduler.update(batch, result)
        number += 1
        yield _step(executor.steps[-1], decided - start + time.perf_counter_ns() - ran)


def _step(measured: StepTime, decide_ns: int) -> Step:
    return Step(
        measured.duration_ps / PS,
        measured.device_ps / PS,
        measured.gap_ps / PS,
        measured.host_ps / PS,
        decide_ns / NS,
        measured.num_decodes,
        measured.num_chunk_tokens,
        measured.graph,
    )


def _num_cuda_mallocs(wanted: EngineWanted) -> int:
    if wanted.device != "cuda":
        return 0
    import torch

    return int(torch.cuda.memory_stats()["segment.all.allocated"])
