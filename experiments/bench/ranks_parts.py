"""The parts of `ranks_main`: what several ranks give and cost, beside one rank where it has the memory."""

from __future__ import annotations

import faulthandler
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from experiments.bench.engine_rows import Row, full_decodes
from experiments.bench.engine_run import EngineWanted, engine_of, measured, run_batch

if TYPE_CHECKING:
    from engine.worker.engine import Engine

Emit = Callable[[Row], None]
SMALL: Final = {
    "model_type": "qwen3",
    "vocab_size": 32_001,
    "hidden_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "intermediate_size": 2816,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
"""A model that one rank has long loaded when a large one still draws; no number of ranks divides its vocabulary."""
TINY: Final = {**SMALL, "vocab_size": 101, "hidden_size": 64, "num_hidden_layers": 2, "head_dim": 8,
               "intermediate_size": 96, "torch_dtype": "float32"}  # fmt: skip
HUNG_S: Final = 75
"""After which a part says, every so often, where its threads are."""
CAPACITY_TOLERANCE: Final = 0.03
WITHOUT: Final = "decode step without collectives, median"


class Parts:
    """One part's means: the device, the number of ranks, and where rows go."""

    def __init__(self, device: str, ranks: int, folder: Path, emit: Emit, emit_profile: Emit) -> None:
        self.device, self.ranks, self.folder = device, ranks, folder
        self._emit, self._emit_profile = emit, emit_profile
        self.on_device = device == "cuda"

    def small(self) -> str:
        """Folder of the small model, or of a tiny one on a CPU."""
        (self.folder / "config.json").write_text(json.dumps(SMALL if self.on_device else TINY))
        return str(self.folder)

    def row(
        self,
        model: str,
        ranks: int,
        measure: str,
        value: Any,
        unit: str = "",
        must: str = "",
        holds: bool | None = None,
    ) -> None:
        """A measurement; `must`: what has to hold of it, in words, and whether it does."""
        name = Path(model).name if "/" not in model else "small"
        found = {"model": name, "ranks": ranks, "measure": measure, "value": value, "unit": unit}
        self._emit({**found, "must": must, "holds": holds})

    def profile(self, case: str, rows: Sequence[Row]) -> None:
        """Kernels by name."""
        for row in rows:
            self._emit_profile({"case": case, **row})


def run_part(name: str, device: str, ranks: int, emit: Emit, emit_profile: Emit) -> None:
    """One part, in this process."""
    from experiments.bench import ranks_checks

    faulthandler.dump_traceback_later(HUNG_S, repeat=True)
    with tempfile.TemporaryDirectory() as folder:
        parts = Parts(device, ranks, Path(folder), emit, emit_profile)
        known: dict[str, Callable[[Parts], None]] = {
            "equal": ranks_checks.equal,
            "kill": ranks_checks.kill,
            "scale": scale,
            "alone": alone,
            "large": large,
        }
        known[name](parts)
    faulthandler.cancel_dump_traceback_later()


def missing(ranks: int) -> str:
    """Which devices are not there; empty if all are."""
    try:
        from engine.worker.rank_group import devices_missing
    except ModuleNotFoundError as error:
        return f"this measures the engine, and {error.name} is not installed: pip install -e '.[engine]'"
    return devices_missing(ranks)


def _wanted(parts: Parts, model: str, ranks: int, **options: Any) -> EngineWanted:
    """256 requests of 512 -> 128 tokens, the batch of `bench engine`; on a CPU a tiny one."""
    if parts.on_device:
        return EngineWanted(model, tensor_parallel_size=ranks, **options)
    tiny = {"num_requests": 6, "input_len": 12, "output_len": 10, "max_num_seqs": 8, "max_num_batched_tokens": 64}
    return EngineWanted(
        parts.small(), device="cpu", tensor_parallel_size=ranks, **{**options, **tiny, "profile": False}
    )


def scale(parts: Parts) -> None:
    """An 8B shape over all ranks, with the profile of a step, and with its sums and gathers left out."""
    wanted = _wanted(parts, "llama-3-8b", parts.ranks, num_runs=2, profile=True)
    with closing(engine_of(wanted)) as engine:
        _batch(parts, wanted, engine)
        _without_collectives(parts, replace(wanted, num_runs=1, profile=False), engine)


def alone(parts: Parts) -> None:
    """The same on one rank: what `scale` is to be compared with."""
    wanted = _wanted(parts, "llama-3-8b", 1, num_runs=2)
    with closing(engine_of(wanted)) as engine:
        _batch(parts, wanted, engine)


def large(parts: Parts) -> None:
    """The chapter's exercise 4.8: a 70B shape, its blocks by measurement and by rule, and a batch that fills them."""
    from engine.core.capacity import default_capacity
    from engine.core.catalogue import lookup
    from engine.core.gpus import lookup_gpu

    model, size = "llama-3-70b", 16
    wanted = _wanted(parts, model, parts.ranks, num_runs=1, profile=True, max_num_batched_tokens=2048)
    with closing(engine_of(wanted)) as engine:
        made = _in_use(engine)
        budget = engine.budget(size)
        blocks = budget.num_blocks - 1
        parts.row(wanted.model, parts.ranks, "weights of rank 0", engine.model.weights.num_bytes, "B")
        parts.row(wanted.model, parts.ranks, "in use on rank 0, no step run yet", made, "B")
        parts.row(wanted.model, parts.ranks, "in use on rank 0, with buffers and graphs", budget.used_bytes, "B")
        spec = engine.kv_spec
        parts.row(wanted.model, parts.ranks, "K and V of a token on a rank", spec.bytes_per_token, "B")
        if parts.on_device:
            rule = default_capacity(lookup(model), lookup_gpu("h200"), tp=parts.ranks, block_size=size).num_blocks
            off = blocks / rule - 1
            must = f"within {CAPACITY_TOLERANCE:.0%} of the {rule:,} of `capacity --gpu h200 --tp {parts.ranks}`"
            parts.row(model, parts.ranks, "KV blocks measured", blocks, "", must, abs(off) <= CAPACITY_TOLERANCE)
            parts.row(model, parts.ranks, "measured over rule, less 1", off)
            wanted = replace(wanted, kv_tokens=blocks * size)
        _batch(parts, wanted, engine)
        _survey(parts, wanted, engine)


def _in_use(engine: Engine) -> int:
    from engine.worker.budget import memory_of

    free, total = memory_of(engine.device)
    return total - free


def _batch(parts: Parts, wanted: EngineWanted, engine: Engine) -> None:
    """Runs it and says what came out of the best run."""
    done = measured(wanted, engine, _say)
    best = next(row for row in done.rows if row["best"])
    model, ranks = wanted.model, wanted.tensor_parallel_size
    parts.row(model, ranks, "output", best["output_tok_per_s"], "tok/s")
    parts.row(model, ranks, "prompts", best["prefill_tok_per_s"], "tok/s")
    parts.row(model, ranks, f"decode step at {best['full_batch']}, median", best["decode_p50_s"], "s")
    parts.row(model, ranks, "of it the device waits for the host", best["host_gap_p50_s"], "s")
    parts.row(model, ranks, "wall clock of the batch", best["wall_s"], "s")
    parts.profile(f"{model}, {ranks} ranks", done.profile)
    for kind in dict.fromkeys(row["step"] for row in done.profile):
        rows = [row for row in done.profile if row["step"] == kind]
        busy = sum(row["time_s"] for row in rows if row["part"] != "host")
        shared = sum(row["time_s"] for row in rows if row["part"] == "collectives")
        parts.row(model, ranks, f"collectives in a {kind} step, by the profiler", shared, "s")
        parts.row(model, ranks, f"share of the device's time in a {kind} step", shared / busy if busy else 0.0)


def _without_collectives(parts: Parts, wanted: EngineWanted, engine: Engine) -> None:
    """The time of a decode step whose sums and gathers are left out of its graph: tokens are wrong, times are not."""
    from engine.core.registry import make_allocator
    from engine.worker.rank_engine import LeadingEngine

    if not isinstance(engine, LeadingEngine):
        return
    engine.mute(True)
    allocator = make_allocator(wanted.allocator, wanted.pool())
    executor = engine.executor(allocator)
    steps = full_decodes(run_batch(wanted, engine, allocator, executor, 0).steps)
    engine.mute(False)
    median = sorted(step.duration_s for step in steps)[len(steps) // 2]
    parts.row(wanted.model, parts.ranks, WITHOUT, median, "s")


def _survey(parts: Parts, wanted: EngineWanted, engine: Engine) -> None:
    """Block tables of all ranks, compared."""
    from engine.worker.rank_engine import LeadingEngine

    if isinstance(engine, LeadingEngine):
        tables = {survey.block_table for survey in engine.surveys()}
        parts.row(wanted.model, parts.ranks, "different block tables", len(tables), "", "1", len(tables) == 1)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
