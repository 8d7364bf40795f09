"""The engine's runs of Fig 18b: the same requests at every block size in equal memory, measured here or once before.

The paper's rates are an A100's. Here the rate is a share of what the engine sustains at block size 16 on the device at
hand, which is measured first.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from experiments.exits import UsageError
from experiments.paper.runs import Lab
from experiments.sustained import sustained_rate_per_s

if TYPE_CHECKING:
    from experiments.api import Result
    from experiments.settings import Config
    from workloads import Trace

SIZES: Final = (1, 8, 16, 32, 64, 128, 256)
QUICK_SIZES: Final = (1, 16, 64, 256)
BASE: Final = 16
KV_TOKENS: Final = 61 * 256
"""The paper's pool in whole blocks of every size."""
MAX_NUM_SEQS: Final = 256
LOAD: Final = 0.9
NUM_REQUESTS: Final = {"sharegpt": 150, "alpaca": 500}
QUICK_SHARE: Final = 3
BACKEND: Final = "gpu"
RUNS_FILE, ABOUT_FILE = "runs.csv", "about.json"
KEYS: Final = ("model", "lengths", "block_size", "asked_rate_per_s", "trace_sha256", "device")
WORDS: Final = {
    "model",
    "lengths",
    "trace_sha256",
    "device",
    "allocator",
    "backend",
    "kernel",
    "window_kind",
    "saturated",
}

Row = dict[str, Any]


class Curve(NamedTuple):
    """One set of lengths at every block size."""

    rate_per_s: float
    device: str
    by_size: dict[int, Row]
    """The summary of each run."""

    @property
    def latency_s(self) -> dict[int, float]:
        """Mean normalized latency."""
        return {size: float(row["mean_normalized_latency_s"]) for size, row in self.by_size.items()}


def curve_of(rows: Sequence[Row]) -> Curve:
    """Of runs of one model and one set of lengths."""
    by_size = {int(row["block_size"]): row for row in sorted(rows, key=lambda row: int(row["block_size"]))}
    return Curve(float(rows[0]["asked_rate_per_s"]), str(rows[0]["device"]), by_size)


# measured here --------------------------------------------------------------------------------------------------------


def measured(lab: Lab, model: str, lengths: str, count: int | None = None) -> Iterator[Row]:
    """A row a block size, the base's first; AssertionError where the equations of a run do not hold."""
    count = count or NUM_REQUESTS[lengths] // (QUICK_SHARE if lab.quick else 1)
    waiting = _trace(lab, lengths, count, None)
    rate = LOAD * sustained_rate_per_s(_run(model, waiting, BASE).steps, waiting)
    trace = _trace(lab, lengths, count, rate)
    sizes = QUICK_SIZES if lab.quick else SIZES
    for size in sorted(sizes, key=lambda size: size != BASE):
        row = _row(_run(model, trace, size))
        yield {"model": model, "lengths": lengths, "block_size": size, "asked_rate_per_s": rate, **row}


def _trace(lab: Lab, lengths: str, count: int, rate_per_s: float | None) -> Trace:
    """Poisson arrivals at the rate; None: all at once."""
    from workloads import synthetic_trace

    recipe = lab.lengths.get(lengths, lengths)
    arrival = "all-at-once" if rate_per_s is None else "poisson"
    return synthetic_trace(arrival, recipe, count, 0, rate_per_s=rate_per_s or 1.0, name=f"{lengths}-{count}")


def _run(model: str, trace: Trace, block_size: int) -> Result:
    from experiments.api import run

    result = run(config_for(model, block_size), trace)
    failed = result.outcome.failed_checks
    assert not failed, f"fig18b, block size {block_size}: {failed}"
    return result


def _row(result: Result) -> Row:
    summary, device = result.outcome.summary or {}, result.outcome.engine["device"]
    return {**summary, "device": device, "trace_sha256": result.plan.arriving.provenance["sha256"]}


def config_for(model: str, block_size: int) -> Config:
    """The artifact's rules on the real engine."""
    from experiments.settings import Config

    config: Config = Config.of(
        model={"name": model},
        max_model_len=2048,
        allocator="paged",
        block_size=block_size,
        kv_tokens=KV_TOKENS,
        preset="sosp23",
        max_num_seqs=MAX_NUM_SEQS,
        backend=BACKEND,
        weights_seed=0,
        too_long="truncate",
        map_frames=0,
    )
    return config


# measured before ------------------------------------------------------------------------------------------------------


def read(folder: Path) -> list[Row]:
    """What `experiments.paper.size_main` wrote. UsageError for anything else."""
    try:
        json.loads((folder / ABOUT_FILE).read_text("utf-8"))
        with (folder / RUNS_FILE).open(newline="", encoding="utf-8") as file:
            rows: list[Row] = [{name: _value(name, text) for name, text in row.items()} for row in csv.DictReader(file)]
    except (OSError, ValueError) as error:
        raise UsageError(f"{folder}: no runs of the engine by block size can be read here: {error}") from error
    lacking = [name for name in KEYS if not all(name in row for row in rows)]
    if lacking or not rows:
        raise UsageError(f"{folder / RUNS_FILE}: columns {', '.join(lacking) or 'and rows'} are missing")
    return rows


def _value(name: str, text: str) -> Any:
    if text == "":
        return None
    return text if name in WORDS else float(text)


# either ---------------------------------------------------------------------------------------------------------------


def lacking(lab: Lab, model: str, lengths: str) -> str:
    """Why there is no curve; empty where there is one."""
    if lab.block_sizes is not None:
        none = f"{lab.block_sizes} has no runs of {model} with {lengths} lengths at block size {BASE}"
        return "" if any(row["block_size"] == BASE for row in _stored(lab, model, lengths)) else none
    from experiments.bench.machine import why_no_device

    reason = why_no_device()
    return reason and f"no device: {reason}"


def curve(lab: Lab, model: str, lengths: str) -> Curve:
    """Every size at one rate; once in a lab's life."""

    def rows() -> list[Row]:
        return list(measured(lab, model, lengths)) if lab.block_sizes is None else _stored(lab, model, lengths)

    return lab.once(f"fig18b/{model}/{lengths}", lambda: curve_of(rows()))


def _stored(lab: Lab, model: str, lengths: str) -> list[Row]:
    folder = lab.block_sizes
    assert folder is not None
    rows = lab.once("fig18b/stored", lambda: read(folder))
    return [row for row in rows if (row["model"], row["lengths"]) == (model, lengths)]
