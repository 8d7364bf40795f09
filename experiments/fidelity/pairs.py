"""One trace on the engine, twice, and on the simulator with a calibrated step model: a row a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from experiments.api import Result, run
from experiments.bench.host import probe_s
from experiments.settings import Config
from experiments.sustained import sustained_rate_per_s
from sim.calibrated import PREFIX

if TYPE_CHECKING:
    import pandas as pd

    from workloads import Trace

Say = Callable[[str], None]
ENGINE, SIMULATED = "engine", "sim"
STEP_COLUMNS: Final = (
    *("time_s", "duration_s", "device_s", "host_s", "num_decodes", "num_chunk_tokens", "num_running"),
    *("num_batched_tokens", "num_kv_tokens", "num_attended_pairs", "longest_chunk_tokens"),
)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What was asked for; all of it is kept beside the rows."""

    model: str = "llama-3-8b"
    backend: str = "gpu"
    allocators: tuple[str, ...] = ("paged",)
    loads: tuple[float, ...] = (0.4, 0.7, 1.5)
    """Of what the engine sustains (`experiments.sustained`)."""
    num_requests: int = 1000
    """Twice as many above saturation: the first few hundred only fill the pool, and what is to be seen is a queue."""
    num_runs: int = 2
    """Of the engine at each load: their differences are its own spread."""
    lengths: str = "sharegpt"
    block_size: int = 16
    kv_tokens: int = 110_592
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    max_model_len: int = 4096
    seed: int = 1000

    def __post_init__(self) -> None:
        if self.num_requests < 1 or self.num_runs < 1 or not self.loads or min(self.loads) <= 0:
            raise ValueError(
                "need at least one request, run and load, and loads above 0, got "
                f"num_requests={self.num_requests}, num_runs={self.num_runs}, loads={self.loads}"
            )

    def config(self, allocator: str, system: str, calibration: Path) -> Config:
        """Of one run."""
        config: Config = Config.of(
            **{name: value for name, value in asdict(self).items() if name in LIMITS},
            model={"name": self.model},
            allocator=allocator,
            preset="vllm",
            enable_prefix_caching=False,
            too_long="truncate",
            map_frames=0,
            **({"backend": self.backend, "weights_seed": 0} if system == ENGINE else {}),
            **({"step_model": f"{PREFIX}{calibration}"} if system == SIMULATED else {}),
        )
        return config

    def trace(self, rate_per_s: float | None, seed: int, load: float = 1.0) -> Trace:
        """Poisson arrivals; None: all at once."""
        from workloads import synthetic_trace

        count = self.num_requests * (2 if load > 1 else 1)
        arrival = "all-at-once" if rate_per_s is None else "poisson"
        return synthetic_trace(arrival, self.lengths, count, seed, rate_per_s=rate_per_s or 1.0)


LIMITS: Final = ("block_size", "kv_tokens", "max_num_seqs", "max_num_batched_tokens", "max_model_len")


@dataclass(frozen=True, slots=True)
class Done:
    """One run, reduced to what is kept."""

    row: dict[str, Any]
    steps: pd.DataFrame | None
    """Of an engine's first run at a load."""


def measured(wanted: Wanted, calibration: Path, say: Say) -> Iterator[Done]:
    """Saturation first, by allocator; then every load, the engine before the simulator. AssertionError where a run's
    equations do not hold."""
    for number, allocator in enumerate(wanted.allocators):
        waiting = wanted.trace(None, wanted.seed)
        closed = _run(wanted, allocator, ENGINE, calibration, waiting)
        rate = sustained_rate_per_s(closed.steps, waiting)
        say(f"{allocator}: {rate:.2f} requests a second are sustained")
        yield _done(closed, allocator, ENGINE, "all", 0, rate)
        for place, load in enumerate(wanted.loads, 1):
            seed = wanted.seed + 100 * number + place
            yield from _at(wanted, allocator, load, rate, seed, calibration, say)


def _at(
    wanted: Wanted, allocator: str, load: float, rate: float, seed: int, calibration: Path, say: Say
) -> Iterator[Done]:
    trace = wanted.trace(load * rate, seed, load)
    systems = [*((ENGINE, number) for number in range(wanted.num_runs)), (SIMULATED, 0)]
    for system, number in systems:
        done = _done(_run(wanted, allocator, system, calibration, trace), allocator, system, load, number, load * rate)
        keys = ("mean_ttft_s", "mean_tpot_s", "mean_e2e_s", "output_tok_per_s")
        say(f"  {load} {system} {number}: " + ", ".join(f"{key} {done.row[key]:.4g}" for key in keys))
        yield done


def _run(wanted: Wanted, allocator: str, system: str, calibration: Path, trace: Trace) -> Result:
    result = run(wanted.config(allocator, system, calibration), trace)
    if result.outcome.summary is None:
        raise RuntimeError(f"{allocator} on the {system}: {result.outcome.error}\n{result.outcome.details}")
    assert not result.outcome.failed_checks, f"{allocator} on the {system}: {result.outcome.failed_checks}"
    return result


def _done(result: Result, allocator: str, system: str, load: float | str, number: int, rate: float) -> Done:
    assert result.outcome.summary is not None
    where = {"allocator": allocator, "load": load, "system": system, "repeat": number, "asked_rate_per_s": rate}
    host = {"host_probe_s": probe_s() if system == ENGINE else None}
    steps = None
    if system == ENGINE and number == 0:
        steps = result.steps[list(STEP_COLUMNS)]
    trace = {"trace_sha256": result.plan.arriving.provenance["sha256"]}
    return Done({**result.outcome.summary, **where, **host, **trace}, steps)
