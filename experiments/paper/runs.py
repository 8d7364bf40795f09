"""The paper's simulated runs: what each measures, done once each, in one process or in several.

All runs use the artifact's rules (preset `sosp23`) and the step model of OPT-13B. Each gives both accountings, as means
over iterations (`iter_...`) and over time.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from engine.core.limits import SchedulerConfig
from engine.core.registry import PoolConfig
from experiments.paper.cache_lab import CacheLab
from experiments.paper.kernels import KernelLab
from experiments.presets import PRESETS
from sim import metrics
from sim.cost import PAPER_13B
from sim.cost_executor import CostExecutor
from sim.simulate import Run, RunSpec, simulate
from workloads import named_trace

Pairs = tuple[NDArray[np.int64], NDArray[np.int64]]
Lengths = Mapping[str, Pairs]
Measured = dict[str, float]
Made = TypeVar("Made")

NUM_BLOCKS: Final = 984
BLOCK_SIZE: Final = 16
MAX_MODEL_LEN: Final = 2048
WINDOWS_S: Final = {"paper-fig2": (300.0, 900.0), "paper-fig13a": (600.0, 3600.0), "paper-fig13b": (300.0, 900.0)}
"""Half-open windows of the means; a run is cut where its window ends."""
ORCAS: Final = ("orca-max", "orca-pow2", "orca-oracle")
SYSTEMS: Final = (*ORCAS, "paged")
NUM_SEEDS: Final = 10
NUM_QUICK_SEEDS: Final = 3


class Key(Protocol):
    """Names a run and can do it; hashable, small, and the same in every process."""

    @property
    def seed(self) -> int:
        """Of the workload's randomness."""
        ...

    def run(self, lengths: Lengths) -> Measured:
        """Simulates it."""
        ...


class RunKey(NamedTuple):
    """One run of a workload that has a window, cut where it ends."""

    workload: str
    allocator: str
    seed: int
    num_blocks: int = NUM_BLOCKS
    block_size: int = BLOCK_SIZE
    max_num_seqs: int = 0
    """Most running requests; 0: the preset's."""

    def run(self, lengths: Lengths) -> Measured:
        """See `run`."""
        return run(self, lengths)


def spec_of(key: RunKey) -> RunSpec:
    """The artifact's rules for that pool, cut where the window ends."""
    window = WINDOWS_S[key.workload]
    spec = artifact_spec(key.allocator, key.num_blocks, key.block_size, max_num_seqs=key.max_num_seqs)
    return replace(spec, window_s=window, end_s=window[1])


def artifact_spec(allocator: str, num_blocks: int, block_size: int = BLOCK_SIZE, *, max_num_seqs: int = 0) -> RunSpec:
    """The artifact's rules for that pool, drained; `max_num_seqs` other than 0 in place of the preset's."""
    preset = PRESETS["sosp23"]
    pool = PoolConfig(
        num_blocks,
        block_size,
        MAX_MODEL_LEN,
        enable_caching=preset.enable_caching,
        watermark=preset.watermark,
        freed_to=preset.freed_to,
        one_free_each=preset.one_free_each,
    )
    limits = SchedulerConfig(
        max_model_len=MAX_MODEL_LEN,
        max_num_seqs=max_num_seqs or preset.max_num_seqs,
        max_num_batched_tokens=preset.max_num_batched_tokens,
        chunked_prefill=preset.chunked_prefill,
        full_sequence_gate=preset.full_sequence_gate,
    )
    return RunSpec(allocator, pool, limits, final_token_has_slot=preset.final_token_has_slot)


def run(key: RunKey, lengths: Lengths) -> Measured:
    """Simulates one run. AssertionError if its numbers contradict each other."""
    trace = named_trace(key.workload, seed=key.seed, lengths=dict(lengths))
    done = simulate(spec_of(key), trace, CostExecutor(PAPER_13B))
    agree(key, done)
    row = done.integrals_between(done.window.start, done.window.stop)
    slots = done.capacity_slots
    strict = {f"iter_{k}": v for k, v in metrics.memory(row, slots, reserves=done.reserves, per_step=True).items()}
    return numbers_of({**done.summary, **strict})


def agree(key: object, done: Run) -> None:
    """AssertionError if the run's numbers contradict each other."""
    broken = [check for check in done.checks if not check.holds]
    assert not broken, f"{key}: {broken}"


def numbers_of(values: Mapping[str, Any]) -> Measured:
    """The entries that are numbers."""
    return {k: float(v) for k, v in values.items() if isinstance(v, int | float)}


@dataclass
class Lab:
    """How much is run, on which lengths, and what has been measured so far."""

    lengths: Lengths = field(default_factory=dict)
    """Real (prompt, output) tokens in file order, by set; a set that is missing is replaced by its stand-in."""
    num_seeds: int = NUM_SEEDS
    quick: bool = False
    jobs: int = 1
    kernels: KernelLab = field(default_factory=KernelLab)
    """Where measurements of kernels come from."""
    fidelity: Path | None = None
    """A folder of runs of engine and simulator; None: none was named."""
    block_sizes: Path | None = None
    """A folder of the engine's runs by block size; None: they are measured here."""
    cached: CacheLab = field(default_factory=CacheLab)
    """The trace and the sizes of bare prefix caches."""
    _done: dict[Key, Measured] = field(default_factory=dict)
    _once: dict[str, Any] = field(default_factory=dict)

    def is_real(self, name: str) -> bool:
        """Whether the lengths of that set were given."""
        return name in self.lengths

    @property
    def has_few_seeds(self) -> bool:
        """Whether means over seeds are too noisy for the tolerances of ten."""
        return self.num_seeds < NUM_SEEDS

    def deviations(self, name: str) -> tuple[str, ...]:
        """Those that follow from the lengths of that set and from the number of seeds; both widen tolerances."""
        return (() if self.is_real(name) else ("stand-in",)) + (("few-seeds",) if self.has_few_seeds else ())

    def once(self, name: str, make: Callable[[], Made]) -> Made:
        """What `make` gives, made once in a lab's life: for what both a verdict and a table need."""
        if name not in self._once:
            self._once[name] = make()
        made: Made = self._once[name]
        return made

    def keys(
        self, workload: str, allocator: str, num_blocks: int = NUM_BLOCKS, block_size: int = BLOCK_SIZE
    ) -> list[RunKey]:
        """One run a seed."""
        return [RunKey(workload, allocator, seed, num_blocks, block_size) for seed in range(self.num_seeds)]

    def measure(self, keys: Sequence[Key], progress: Callable[[int, int], None] | None = None) -> list[Measured]:
        """The measurements of these runs, in their order; each run happens once in a lab's life."""
        missing = [key for key in dict.fromkeys(keys) if key not in self._done]
        for count, (key, measured) in enumerate(zip(missing, self._run(missing), strict=True), 1):
            self._done[key] = measured
            if progress:
                progress(count, len(missing))
        return [self._done[key] for key in keys]

    def values(self, keys: Sequence[Key], name: str, scale: float = 1.0) -> list[float]:
        """One measured quantity, a value a run."""
        return [measured[name] * scale for measured in self.measure(keys)]

    def _run(self, keys: Sequence[Key]) -> Iterable[Measured]:
        if self.jobs <= 1 or len(keys) <= 1:
            for key in keys:
                yield key.run(self.lengths)
            return
        # Spawned, not forked: the parent may have threads (progress bars, BLAS).
        context = multiprocessing.get_context("spawn")
        workers = min(self.jobs, len(keys))
        with ProcessPoolExecutor(workers, context, _remember, (dict(self.lengths),)) as pool:
            yield from pool.map(_run_here, keys)


_worker_lengths: Lengths = {}


def _remember(lengths: Lengths) -> None:
    """Once a worker process: the lengths are large, the keys small."""
    global _worker_lengths
    _worker_lengths = lengths


def _run_here(key: Key) -> Measured:
    return key.run(_worker_lengths)
