"""The backends of a run: `sim` answers with a model's step times, `cpu` and `gpu` run the real engine and measure them.

What each refuses and needs in a configuration, and the one engine that a process keeps for its cells. Torch is imported
only where a real run is about to begin.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from experiments.exits import DeviceMissing, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from engine.core.allocator import KVAllocator
    from engine.core.model_shape import ModelShape
    from engine.worker.engine import Engine, EngineConfig
    from experiments.series import AttentionKernel
    from experiments.settings import Config

DEVICES: Final = {"cpu": "cpu", "gpu": "cuda"}
PINS: Final = "--kv-tokens, --kv-bytes, --num-blocks or --capacity-rule"
NOT_BIT_BY_BIT: Final = (
    "step times are measured and differ from run to run; decisions (batches, block tables, preemptions) do not, where "
    "all requests arrive at 0"
)
NO_RANKING: Final = (
    "on a CPU the model's own work hides what an allocator does to the step time: tokens/s and latencies that differ "
    "by a few per cent, or by less than repeats do (--num-runs 3), rank nothing; batches, preemptions and shares of "
    "memory do"
)


def is_real(config: Config) -> bool:
    """Whether steps are run and timed, not modelled."""
    return config.measure.backend != "sim"


def check_backend(config: Config) -> None:
    """UsageError for keys that mean nothing on the backend that was asked for."""
    if not is_real(config):
        _refuse(_only_real(config), "only the real engine reads it: say --backend cpu or gpu, or leave it out")
        return
    backend = config.measure.backend
    ranks = {f"model.{name}": size for name in ("tp", "pp") if (size := getattr(config.model, name)) > 1}
    _refuse(
        ranks,
        f"ranks are simulated here, and --backend {backend} runs the real engine on one device: leave it out; generate "
        "and bench engine run real ranks",
    )
    _refuse(_only_simulated(config), f"--backend {backend} runs the real engine and measures: leave it out")


def _only_real(config: Config) -> dict[str, Any]:
    kernel = {"kv.kernel": config.kv.kernel} if config.kv.kernel != "paged" else {}
    return kernel | {f"engine.{name}": value for name, value in config.engine.model_dump().items()}


def _only_simulated(config: Config) -> dict[str, Any]:
    model, measure = config.model, config.measure
    gpu = {} if config.kv.capacity_rule else {"model.gpu": model.gpu}
    executor = {} if measure.executor == "cost" else {"measure.executor": measure.executor}
    return {**gpu, **executor, "measure.step_model": measure.step_model}


def _refuse(given: dict[str, Any], why: str) -> None:
    from experiments.flags import flag_of

    for key, value in given.items():
        if value is not None:
            raise UsageError(f"{flag_of(key)}{key}={value}: {why}")


def need_pin(config: Config) -> None:
    """UsageError unless a real run's capacity is said: all allocators and kernels get the same tokens, and where an
    allocator takes all that a card has, nothing is ever short."""
    if is_real(config):
        raise UsageError(f"--backend {config.measure.backend} needs a pinned capacity: say {PINS}")


def notes_of(config: Config, num_cells: int) -> list[str]:
    """What whoever reads the results of a real run must know."""
    return [NOT_BIT_BY_BIT, *([NO_RANKING] if config.measure.backend == "cpu" and num_cells > 1 else [])]


def kv_dtype_of(config: Config) -> str | None:
    """Storage type of K and V, for the bytes of a token; None: the model's own."""
    if not is_real(config) or config.model.kv_cache_dtype not in (None, "auto"):
        return config.model.kv_cache_dtype
    if config.engine.dtype not in (None, "auto"):
        return config.engine.dtype
    return "float32" if config.measure.backend == "cpu" else None


def shape_of(config: Config) -> ModelShape:
    """Sizes of the configuration's model; ValueError if there is none of that name."""
    from engine.core.catalogue import lookup

    name = config.model.name
    assert name is not None
    if name.endswith(".gguf") and is_real(config):
        return _gguf_shape(Path(name))
    return lookup(name)


def _gguf_shape(path: Path) -> ModelShape:
    if not path.is_file():
        from engine.core.suggestion import unknown_model

        raise unknown_model(str(path), (), "a .gguf file")
    need_torch(f"the model {path.name}")
    from engine.core.model_shape import read_model_shape
    from engine.model.gguf_file import config_of
    from engine.model.gguf_header import read_header

    return read_model_shape(config_of(read_header(path)), path.stem)


def engine_config_of(config: Config) -> EngineConfig:
    """What the engine is made from. DeviceMissing where torch or the device is not there."""
    backend, wanted = config.measure.backend, config.engine
    need_device(backend)
    from engine.worker.engine import EngineConfig

    rules = config.scheduler
    return EngineConfig(
        model=_weights_of(config),
        device=DEVICES[backend],
        dtype="auto" if wanted.dtype is None else wanted.dtype,
        kv_cache_dtype=config.model.kv_cache_dtype or "auto",
        attention="auto" if wanted.attention is None else wanted.attention,
        layout=wanted.layout,
        weights_seed=wanted.weights_seed,
        max_num_seqs=rules.max_num_seqs or 0,
        max_num_batched_tokens=rules.max_num_batched_tokens or 0,
        max_model_len=config.model.max_model_len,
        graphs=wanted.graphs is not False,
        shared_prefix_kernel=wanted.shared_prefix_kernel is not False,
    )


def _weights_of(config: Config) -> str:
    """A folder or a file where there is one, else the catalogue's name."""
    from engine.core.catalogue import entry

    name = str(config.model.name)
    path = Path(name)
    if path.exists() and entry(name)[1] is None:
        return str(path.parent if path.suffix == ".json" else path)
    return shape_of(config).name


def need_device(backend: str) -> None:
    """DeviceMissing, with what to do, where a backend cannot run."""
    if backend == "cpu":
        need_torch("--backend cpu")
        return
    from experiments.bench.machine import why_no_device

    if missing := why_no_device():
        raise DeviceMissing(
            f"--backend gpu runs on a CUDA device, and {missing}; --backend cpu runs the same engine on the CPU, "
            "--backend sim models step times"
        )


def need_torch(who: str) -> None:
    """DeviceMissing, with what to install, where torch is not."""
    if find_spec("torch") is None:
        raise DeviceMissing(f"{who} needs torch, which is not installed: pip install -e '.[engine]'")


@lru_cache(maxsize=1)
def engine_for(config: EngineConfig) -> Engine:
    """The engine of this process: weights are loaded once and serve every cell. DeviceMissing; EngineError, which is a
    ValueError, for a model that cannot be loaded."""
    from engine.worker.engine import DeviceUnavailable, Engine

    try:
        return Engine(config)
    except (DeviceUnavailable, ModuleNotFoundError) as error:
        raise DeviceMissing(str(error)) from error


def try_out(config: EngineConfig, pools: Iterable[tuple[KVAllocator, AttentionKernel]]) -> None:
    """Loads the weights and makes room for the KV cache of every pool and kernel once: what does not fit is said before
    the first request. UsageError; DeviceMissing."""
    try:
        engine = engine_for(config)
        for allocator, kernel in pools:
            engine.executor(allocator, kernel=kernel, warm_up=False)
    except ValueError as error:
        raise UsageError(str(error)) from error
