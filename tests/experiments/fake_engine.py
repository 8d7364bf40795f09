"""Stands in for `engine.worker.engine`: the same names, no model; step times that differ from run to run."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar, NamedTuple

from engine.core.batch import StepResult
from sim.cost import LinearModel
from sim.cost_executor import CostExecutor

MS_PS = 10**9


class FakeStep(NamedTuple):
    """As `engine.worker.step_clock.StepTime`."""

    duration_ps: int
    device_ps: int
    host_ps: int
    num_decodes: int
    num_chunk_tokens: int
    graph: bool
    num_kv_tokens: int
    num_attended_pairs: int
    longest_chunk_tokens: int

    @property
    def gap_ps(self) -> int:
        return self.duration_ps - self.device_ps


@dataclass(frozen=True, slots=True)
class FakeConfig:
    """As `EngineConfig`."""

    model: str
    device: str = "cpu"
    dtype: str = "auto"
    kv_cache_dtype: str = "auto"
    attention: str = "auto"
    layout: str | None = None
    weights_seed: int | None = 0
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    max_model_len: int | None = None
    tensor_parallel_size: int = 1
    graphs: bool = True
    shared_prefix_kernel: bool = True


class FakeEngineError(ValueError):
    """As `EngineError`."""


class FakeDeviceError(RuntimeError):
    """As `DeviceUnavailable`."""


class FakeExecutor:
    """Forced lengths; each step lasts a millisecond, something a token, and some nanoseconds of the clock."""

    def __init__(self) -> None:
        self.steps: list[FakeStep] = []
        self.outputs: dict[object, list[int]] = {}
        self._cost = CostExecutor(LinearModel(1, 0, 0, 0))

    def horizon(self, decodes: Any, until: int | None, end: int | None) -> int:
        return 1

    def submit(self, batch: Any) -> StepResult:
        stopped = self._cost.submit(batch).stopped
        chunks = sum(chunk.num_new_tokens for chunk in batch.chunks)
        decodes = len(batch.decodes.members)
        device = MS_PS + (chunks + decodes) * 10**6 + time.perf_counter_ns() % 1000
        attended = batch.num_context_tokens + batch.num_new_tokens, *batch.attended()
        self.steps.append(FakeStep(device + 7, device, 5, decodes, chunks, not chunks, *attended))
        return StepResult(1, device + 7, stopped, device + 7)


class FakeEngine:
    """Remembers what it was asked for."""

    made: ClassVar[list[FakeEngine]] = []
    largest = 10**9

    def __init__(self, config: FakeConfig) -> None:
        if config.dtype == "float16":
            raise FakeEngineError("float16: not here, take float32")
        self.config = config
        self.kernels: list[tuple[str, bool]] = []
        FakeEngine.made.append(self)

    def executor(self, allocator: Any, *, kernel: str = "paged", warm_up: bool = True) -> FakeExecutor:
        if allocator.num_blocks > self.largest:
            raise FakeEngineError(f"asked {allocator.num_blocks} blocks, {self.largest} fit")
        assert kernel == "paged" or allocator.contiguous
        self.kernels.append((kernel, warm_up))
        return FakeExecutor()

    def close(self) -> None:
        self.kernels.clear()

    @property
    def provenance(self) -> dict[str, Any]:
        return {
            "device": "Test card",
            "torch": "9.9",
            "triton": None,
            "dtype": "float32",
            "attention": "reference",
            "weights": {"source": self.config.model, "kind": "random", "seed": self.config.weights_seed},
        }


def module() -> ModuleType:
    """What `import engine.worker.engine` finds."""
    made = ModuleType("engine.worker.engine")
    made.Engine, made.EngineConfig = FakeEngine, FakeConfig  # type: ignore[attr-defined]
    made.EngineError, made.DeviceUnavailable = FakeEngineError, FakeDeviceError  # type: ignore[attr-defined]
    return made


def install(monkeypatch: Any) -> type[FakeEngine]:
    """In the engine's place until the test ends."""
    from experiments import backends

    monkeypatch.setitem(sys.modules, "engine.worker.engine", module())
    monkeypatch.setattr(FakeEngine, "made", [])
    monkeypatch.setattr(FakeEngine, "largest", 10**9)
    backends.engine_for.cache_clear()
    return FakeEngine
