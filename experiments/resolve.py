"""From a configuration with gaps to a plan without: every default filled in, the trace at hand, the cells listed."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments import defaults
from experiments.arriving import Arriving, Source, arrive
from experiments.backends import check_backend, is_real, kv_dtype_of, need_pin, notes_of, shape_of
from experiments.config_hash import config_sha256
from experiments.exits import UsageError
from experiments.fleet import with_fleet
from experiments.pages import PAGE_BYTES, VIRTUAL, page_notes, page_tokens, pairs_of
from experiments.pool import Pool, pool_of
from experiments.presets import PRESETS
from experiments.series import AttentionKernel
from experiments.settings import Config, Kernel, Memory, Scheduling, Workload
from experiments.sharing import arrive_as_samples, check_sharing, check_speeds, host_blocks, with_sharing
from experiments.stand_in import stand_in
from experiments.step_cost import step_model_of

if TYPE_CHECKING:
    from engine.core.limits import SchedulerConfig
    from engine.core.registry import PoolConfig
    from sim.cost import StepModel
    from sim.recorded_executor import Recording
    from workloads import Trace


OF_ANY_TRACE = ("num_samples", "beam_width", "samples_as", "max_concurrency")
"""Of the workload's keys, those that stay where a trace is handed over: the others say what arrives."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of the grid."""

    name: str
    """Folder name: allocator, block size, seed and six digits of the configuration's hash."""
    allocator: str
    block_size: int
    seed: int
    num_blocks: int
    map_frames: int
    kernel: AttentionKernel = "paged"
    """Attention kernel of a real run: with a block table, or `contiguous`, without."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that will be run, and why it is what it is."""

    config: Config
    """Without gaps; running it again makes the same plan."""
    arriving: Arriving
    pool: Pool
    step_model: StepModel | Recording | None
    """None where steps are run and timed."""
    limits: SchedulerConfig
    cells: tuple[Cell, ...]
    sha256: str
    """Of the resolved configuration, with files by content."""
    notes: list[str] = field(default_factory=list)

    @property
    def step_times(self) -> dict[str, Any]:
        """Where step times come from, for the manifest."""
        if self.step_model is None:
            return {"kind": "measured", "name": f"measured on the {self.config.measure.backend}"}
        return self.step_model.coefficients()

    def trace(self, cell: Cell) -> Trace:
        """What the cell replays."""
        return self.arriving.traces[cell.seed]


def filled(config: Config, *, verb: str = "compare", has_trace: bool = False) -> Config:
    """The configuration with its defaults; idempotent. `has_trace`: something else says what arrives."""
    check_backend(config)
    workload, kv = config.workload, config.kv
    if has_trace:
        workload = Workload(**{key: getattr(workload, key) for key in OF_ANY_TRACE})
    if workload.name is None and workload.trace is None and not has_trace:
        workload = workload.model_copy(update={"name": defaults.WORKLOAD})
    implied = defaults.OF_WORKLOAD.get(workload.name or "", defaults.OF_TRACE_FILES)
    update: dict[str, Any] = {"model": _gaps(config.model, name=implied.model)}
    grid = _grid(kv, sweep=verb == "compare" and workload.name == defaults.WORKLOAD, single=verb == "run")
    update["kv"] = _capacity(config, grid, implied)
    if update["kv"].capacity_rule is not None or not is_real(config):
        update["model"] = _gaps(update["model"], gpu=implied.gpu)
    model_len = implied.max_model_len or shape_of(config.model_copy(update=update)).max_model_len
    update["model"] = _gaps(update["model"], max_model_len=model_len)
    update["scheduler"] = _scheduling(config.scheduler, implied.preset)
    update["kv"] = update["kv"].model_copy(update={"kernel": _kernel(config, verb)})
    if is_real(config):
        update["engine"] = _gaps(config.engine, dtype="auto", attention="auto", graphs=True)
        if not Path(update["model"].name).exists():  # the catalogue has no weights; a folder has its own
            update["engine"] = _gaps(update["engine"], weights_seed=0)
    update["measure"] = _gaps(
        config.measure,
        step_model=None if is_real(config) else "roofline" if _differs(config, implied) else implied.step_model,
        window_s=defaults.window_of(workload) or "arrivals",
        end_s=implied.end_s or "none",
    )
    return with_fleet(with_sharing(config.model_copy(update={"workload": workload, **update})))


def _kernel(config: Config, verb: str) -> Kernel | None:
    """The attention kernels to run; nothing where none is."""
    if not is_real(config):
        return None
    return config.kv.kernel or ("both" if verb == "compare" else "paged")


def _capacity(config: Config, kv: Memory, implied: defaults.WorkloadDefaults) -> Memory:
    """With the rule by which the pool is sized, unless its size is given."""
    if kv.num_blocks is not None or kv.kv_tokens is not None or kv.kv_bytes is not None:
        return kv
    tuned = kv.gpu_memory_utilization is not None or kv.headroom_bytes is not None
    rule = "default" if tuned or _differs(config, implied) else implied.capacity_rule
    if kv.capacity_rule is None and rule == "default":
        need_pin(config)
    return _gaps(kv, capacity_rule=rule)  # type: ignore[no-any-return]


def _differs(config: Config, implied: defaults.WorkloadDefaults) -> bool:
    """Whether another model or GPU was asked for than the one the workload's rule and step times are about."""
    asked = (config.model.name or implied.model, config.model.gpu or implied.gpu)
    return asked != (implied.model, implied.gpu)


def _gaps(section: Any, **values: Any) -> Any:
    return section.model_copy(update={k: v for k, v in values.items() if getattr(section, k) is None})


def _grid(kv: Memory, *, sweep: bool, single: bool) -> Memory:
    unasked = kv.allocator is None and kv.block_size is None
    names = defaults.ALLOCATORS[:1] if single else defaults.ALLOCATORS
    extra = {"paged": defaults.SWEEP} if sweep and unasked and kv.num_blocks is None else {}
    filled = _gaps(kv, allocator=names, block_size=defaults.BLOCK_SIZES, sweep=extra)
    return _gaps(filled, page_bytes=PAGE_BYTES) if VIRTUAL in filled.allocator else filled  # type: ignore[no-any-return]


def _scheduling(section: Scheduling, preset: str) -> Scheduling:
    section = _gaps(section, preset=preset)
    rules = PRESETS[section.preset or preset]
    whole: Scheduling = _gaps(
        section,
        max_num_seqs=rules.max_num_seqs,
        max_num_batched_tokens=rules.max_num_batched_tokens,
        enable_chunked_prefill=rules.chunked_prefill,
        enable_prefix_caching=rules.enable_caching,
        full_sequence_gate=rules.full_sequence_gate,
        watermark=rules.watermark,
        freed_to=rules.freed_to,
        one_free_each=rules.one_free_each,
        final_token_has_slot=rules.final_token_has_slot,
    )
    return whole


def plan_of(
    config: Config, *, verb: str = "compare", writes: bool = True, trace: Trace | None = None, source: Source = arrive
) -> Plan:
    """A plan, with everything checked that can be checked before the first run; UsageError otherwise.

    `trace` replaces the configuration's workload. `source` finds what arrives; a sweep remembers what it has drawn.
    """
    try:
        return _plan(filled(config, verb=verb, has_trace=trace is not None), verb, writes, trace, source)
    except UsageError:
        raise
    except (ValueError, OSError) as error:
        raise UsageError(str(error)) from error


def _plan(config: Config, verb: str, writes: bool, trace: Trace | None, source: Source) -> Plan:
    shape = shape_of(config)
    pages = page_tokens(config, shape)
    asked = pairs_of(config.kv, tuple(pages))
    grid = list(dict.fromkeys(asked))
    if verb == "run" and len(grid) > 1:
        raise UsageError(f"run takes one allocator and one block size, got {len(grid)} pairs: use compare")
    pool = pool_of(config, shape, [size for _, size in grid], pages)
    step_model, limits = step_model_of(config, shape), scheduler_config(config)
    arriving = source(config.workload, config.seed, config.num_runs, trace)
    if not all(len(one) for one in arriving.traces.values()):
        raise UsageError(f"{arriving.provenance['name']}: the trace has no requests")
    arriving = arrive_as_samples(config, arriving)
    sha256 = config_sha256(config, arriving)
    cells = tuple(
        _cell(config, pool, sha256, name, size, seed, writes) for name, size in grid for seed in sorted(arriving.traces)
    )
    _check_allocators(config, cells)
    notes = [f"{len(asked) - len(grid)} duplicate cells are merged"] if len(asked) > len(grid) else []
    notes += defaults.window_notes(config.workload, config.measure.window_s)
    notes += page_notes(shape.kv_spec(kv_dtype_of(config), config.model.tp, config.model.pp), pool, pages)
    if is_real(config):
        cells = _with_kernels(config, cells)
        notes += notes_of(config, len(cells))
        if verb == "run" and len({cell.kernel for cell in cells}) > 1:
            raise UsageError("run takes one kernel, got both: use compare, or --kernel paged or contiguous")
    return Plan(config, arriving, pool, step_model, limits, cells, sha256, [*arriving.notes, *notes])


def _cell(config: Config, pool: Pool, sha: str, allocator: str, size: int, seed: int, writes: bool) -> Cell:
    blocks = pool.page_groups[size] if allocator == VIRTUAL else pool.blocks(size)
    frames = config.measure.map_frames
    if frames is None:
        frames = min(defaults.MAP_FRAMES, max(defaults.MAP_ROWS // blocks, 2)) if writes else 0
    digest = hashlib.sha256(f"{sha} {allocator} {size} {seed}".encode()).hexdigest()[:6]
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", allocator).strip(".-") or "allocator"
    return Cell(f"{plain[:80]}-bs{size}-seed{seed}-{digest}", allocator, size, seed, blocks, frames)


def pool_config(config: Config, cell: Cell) -> PoolConfig:
    """What the cell's allocator is made from."""
    from engine.core.registry import PoolConfig

    rules = config.scheduler
    return PoolConfig(
        capacity_blocks=cell.num_blocks,
        block_size=cell.block_size,
        max_model_len=config.model.max_model_len or 0,
        enable_caching=bool(rules.enable_prefix_caching),
        watermark=rules.watermark or 0.0,
        freed_to=rules.freed_to or "front",
        one_free_each=bool(rules.one_free_each),
        host_blocks=host_blocks(config, cell.block_size, cell.num_blocks),
    )


def scheduler_config(config: Config) -> SchedulerConfig:
    """The limits of a resolved configuration."""
    from engine.core.limits import SchedulerConfig

    rules = config.scheduler
    return SchedulerConfig(
        max_model_len=config.model.max_model_len or 0,
        max_num_seqs=rules.max_num_seqs or 0,
        max_num_batched_tokens=rules.max_num_batched_tokens or 0,
        chunked_prefill=bool(rules.enable_chunked_prefill),
        full_sequence_gate=bool(rules.full_sequence_gate),
        policy=rules.policy,
        batching=rules.batching,
        long_prefill_token_threshold=rules.long_prefill_token_threshold,
        preemption=rules.preemption or "recompute",
        victim=rules.victim,
    )


def _check_allocators(config: Config, cells: Sequence[Cell]) -> None:
    """Unknown names and impossible pools are said before anything runs."""
    from engine.core.registry import load_allocator
    from engine.core.request_level import make_scheduler

    limits = scheduler_config(config)
    for block_size in {cell.block_size for cell in cells}:
        check_speeds(config, block_size)
    for name in dict.fromkeys(cell.allocator for cell in cells):
        if ":" in name:
            see_own_modules()
            load_allocator(name)
        else:
            for size in {cell.block_size: cell for cell in cells if cell.allocator == name}.values():
                allocator = stand_in(name, pool_config(config, size))
                check_sharing(config, name, allocator)
                make_scheduler(limits, allocator)


def _with_kernels(config: Config, cells: Sequence[Cell]) -> tuple[Cell, ...]:
    """The cells with their attention kernels: allocators that page have one, contiguous ones those asked for."""
    from engine.core.registry import make_allocator

    asked = config.kv.kernel or "paged"
    found: list[Cell] = []
    for cell in cells:
        twin = replace(cell, name=f"{cell.name}-contiguous", kernel="contiguous")
        has_twin = asked != "paged" and getattr(
            make_allocator(cell.allocator, pool_config(config, cell)), "contiguous", False
        )
        found += [twin] if has_twin and asked == "contiguous" else [cell, twin] if has_twin else [cell]
    if asked == "contiguous" and not any(cell.kernel == asked for cell in found):
        names = ", ".join(dict.fromkeys(cell.allocator for cell in cells))
        raise UsageError(f"--kernel contiguous: blocks of {names} are not adjacent, only the paged kernel reads them")
    return tuple(found)


def see_own_modules() -> None:
    """A user's allocator may lie in the current folder, as with `python -m`."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
