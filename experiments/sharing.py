"""Requests with several sequences in a configuration: defaults, what cannot work, host memory, and what copies cost."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from experiments.backends import is_real, kv_dtype_of, shape_of
from experiments.exits import UsageError
from experiments.step_cost import BANDWIDTH_EFFICIENCY

if TYPE_CHECKING:
    from engine.core.allocator import KVAllocator
    from experiments.arriving import Arriving
    from experiments.settings import Config

PS: Final = 10**12
BEAM_SPREAD: Final = 8.0
"""Fitted to one number of the paper: see `experiments.paper.fig15`."""
PCIE4: Final = (25e9, 3e-6)
"""Bytes a second each way, and seconds a copy call. The call's cost is an assumption: with it, block size 1 takes as
long as the axis of the paper's Fig 19a is high (140 ms out and in)."""
PCIE5: Final = (55.3e9, 7.2e-6)
"""Measured on an H200: 1 GiB of pinned memory in 19.4 ms, a copy of 10 to 64 KiB in 7.2 to 8.2 us."""
LONGEST_COPY_S: Final = 3600.0
"""Of one block; a slower link is a slip of the keyboard."""
PCIE5_GPUS: Final = ("h100", "h200")


@dataclass(frozen=True, slots=True)
class Transfers:
    """What copying one block costs."""

    block_bytes: int
    """K and V of all layers, on one rank."""
    copies_per_block: int
    """K and V of each layer are separate tensors, so that a block is so many copies."""
    host_bytes_per_s: float
    host_copy_s: float
    copy_bytes_per_s: float

    @property
    def swap_block_ps(self) -> int:
        """To the host, or back: calls x overhead + bytes / bandwidth."""
        return round((self.copies_per_block * self.host_copy_s + self.block_bytes / self.host_bytes_per_s) * PS)

    @property
    def copy_block_ps(self) -> int:
        """On the device: read and written at `copy_bytes_per_s` each."""
        return round(self.block_bytes / self.copy_bytes_per_s * PS)

    def to_dict(self) -> dict[str, Any]:
        """For the manifest."""
        return {**asdict(self), "swap_block_ps": self.swap_block_ps, "copy_block_ps": self.copy_block_ps}


def width_of(config: Config) -> int:
    """Sequences of a request that are served as one group; 1 where each request is one sequence."""
    work = config.workload
    return work.beam_width or (work.num_samples if work.samples_as == "fork" else 1)


def has_groups(config: Config) -> bool:
    """Whether requests are groups: several sequences, or a search."""
    return width_of(config) > 1 or config.workload.beam_width is not None


def swaps(config: Config) -> bool:
    """Whether a victim may go to host memory."""
    rule = config.scheduler.preemption
    return rule == "swap" or (rule == "auto" and has_groups(config))


def shares(config: Config) -> bool:
    """Whether what is shared, copied and swapped is worth columns."""
    return has_groups(config) or config.workload.num_samples > 1 or swaps(config)


def counts_sharing(config: Config) -> bool:
    """Whether what is shared is counted step by step: where anything is copied, and where it is asked for."""
    return (shares(config) or config.measure.record_sharing) and not is_real(config)


def with_sharing(config: Config) -> Config:
    """A resolved configuration with the defaults of groups and swaps, where there are any; idempotent. UsageError for
    what cannot work whatever the allocator."""
    rules, work = config.scheduler, config.workload
    sosp = rules.preset == "sosp23"
    mode = rules.preemption or ("auto" if sosp and has_groups(config) else "recompute")
    config = config.model_copy(update={"scheduler": rules.model_copy(update={"preemption": mode})})
    kv, measure = config.kv, config.measure
    if swaps(config) and kv.host_bytes is None and kv.host_blocks is None and sosp and mode == "auto":
        config = config.model_copy(update={"kv": kv.model_copy(update={"host_bytes": "pool"})})
    _refuse(config)
    wanted: dict[str, Any] = {"beam_spread": BEAM_SPREAD} if work.beam_width is not None else {}
    if shares(config) and not is_real(config):
        wanted |= _default_speeds(config)
    gaps = {key: value for key, value in wanted.items() if getattr(measure, key) is None}
    return config.model_copy(update={"measure": measure.model_copy(update=gaps)}) if gaps else config


def _default_speeds(config: Config) -> dict[str, float]:
    """By GPU."""
    from engine.core.gpus import lookup_gpu

    assert config.model.gpu is not None
    gpu = lookup_gpu(config.model.gpu)
    bandwidth, call = PCIE5 if gpu.name.startswith(PCIE5_GPUS) else PCIE4
    on_device = BANDWIDTH_EFFICIENCY * gpu.bandwidth_bytes_per_s / 2
    return {"host_bytes_per_s": bandwidth, "host_copy_s": call, "copy_bytes_per_s": on_device}


def _refuse(config: Config) -> None:
    """UsageError, by flag name."""
    _refuse_samples(config)
    if (config.scheduler.watermark or 0.0) >= 1:
        raise UsageError(f"--watermark {config.scheduler.watermark:g}: a fraction of the pool from 0 to less than 1")
    if has_groups(config):
        _refuse_groups(config)
    _refuse_swaps(config)
    measure = config.measure
    if config.workload.beam_width is None and measure.beam_spread is not None:
        raise UsageError("--beam-spread is for a search: say --beam-width")
    speeds = ("host_bytes_per_s", "host_copy_s", "copy_bytes_per_s")
    if not shares(config) and (given := [key for key in speeds if getattr(measure, key) is not None]):
        flag = "--" + given[0].replace("_", "-")
        raise UsageError(f"{flag}: nothing is copied: say --num-samples, --beam-width or --preemption swap")


def _refuse_samples(config: Config) -> None:
    work = config.workload
    if work.samples_as != "requests":
        return
    if work.beam_width is not None:
        raise UsageError(
            f"--samples-as requests is about --num-samples: the beams of --beam-width {work.beam_width} are one group; "
            "leave one of them out"
        )
    if work.num_samples == 1:
        raise UsageError("--samples-as requests: there is one sample; say --num-samples, or leave it out")
    if not config.scheduler.enable_prefix_caching:
        raise UsageError(
            "--samples-as requests shares through the prefix cache, which is off: say --enable-prefix-caching, or "
            "--samples-as fork"
        )


def _refuse_groups(config: Config) -> None:
    work, measure = config.workload, config.measure
    who = f"--beam-width {work.beam_width}" if work.beam_width is not None else f"--num-samples {work.num_samples}"
    for key in ("max_num_seqs", "max_num_batched_tokens"):
        most, flag = getattr(config.scheduler, key), "--" + key.replace("_", "-")
        if most is not None and width_of(config) > most:
            raise UsageError(f"{who}: the sequences of a group run together, and {flag} is {most}: raise it")
    if is_real(config):
        raise UsageError(f"{who}: groups of run and compare are simulated; leave out --backend {measure.backend}")
    if config.scheduler.batching == "request":
        raise UsageError(f"{who}: --batching request runs single sequences; use --batching iteration")
    if measure.executor == "torch-cpu":
        raise UsageError(f"{who}: --executor torch-cpu runs single sequences; use cost or shadow")
    if (measure.step_model or "").startswith("recorded:"):
        raise UsageError(f"{who}: recorded steps are those of single sequences; use another --step-model")


def _refuse_swaps(config: Config) -> None:
    rule, kv = config.scheduler.preemption, config.kv
    hosts = kv.host_bytes is not None or kv.host_blocks is not None
    if swaps(config) and not hosts:
        raise UsageError(f"--preemption {rule} needs host memory: say --host-bytes or --host-blocks")
    if hosts and not swaps(config):
        raise UsageError(
            "--host-bytes and --host-blocks are for who is swapped out, and nobody is: say --preemption swap "
            "(auto: with --num-samples or --beam-width)"
        )
    if swaps(config) and is_real(config):
        raise UsageError(f"--preemption {rule}: swaps of run and compare are simulated; leave out --backend")
    if swaps(config) and config.measure.executor == "torch-cpu":
        raise UsageError(f"--preemption {rule}: --executor torch-cpu does not swap; use cost or shadow")
    if swaps(config) and config.scheduler.batching == "request":
        raise UsageError(f"--preemption {rule}: --batching request preempts nobody; leave it out")


def check_sharing(config: Config, name: str, allocator: KVAllocator) -> None:
    """UsageError for an allocator that cannot do what the configuration asks of it."""
    if has_groups(config):
        work = config.workload
        flag = "--beam-width" if work.beam_width is not None else "--num-samples"
        if not hasattr(allocator, "fork"):
            raise UsageError(f"--allocator {name} cannot fork, so it serves no groups: leave out {flag}")
        if getattr(allocator, "contiguous", False) and allocator.growth_tokens != 0:
            raise UsageError(
                f"--allocator {name}: reservations that grow cannot serve groups, as a fork must not be refused: leave "
                f"out {flag}, or use one that reserves everything at once"
            )
    if config.scheduler.preemption == "swap" and not hasattr(allocator, "swap_out"):
        raise UsageError(f"--allocator {name} cannot swap: use --preemption recompute (or auto), or --allocator paged")


def host_blocks(config: Config, block_size: int, num_blocks: int) -> int:
    """Host blocks beside a pool of `num_blocks`. UsageError where there is not room for one."""
    kv = config.kv
    if kv.host_blocks is not None:
        return kv.host_blocks
    if kv.host_bytes is None:
        return 0
    if kv.host_bytes == "pool":
        return num_blocks
    block_bytes = transfers_of(config, block_size).block_bytes if shares(config) else 1
    count = kv.host_bytes // block_bytes
    if not count:
        raise UsageError(f"--host-bytes {kv.host_bytes}: not one block of {block_size} tokens ({block_bytes:,} B) fits")
    return count


def transfers_of(config: Config, block_size: int) -> Transfers:
    """What copying a block costs in a resolved configuration that shares."""
    measure, model = config.measure, config.model
    spec = shape_of(config).kv_spec(kv_dtype_of(config), model.tp, model.pp)
    assert measure.host_bytes_per_s is not None
    assert measure.host_copy_s is not None
    assert measure.copy_bytes_per_s is not None
    return Transfers(
        spec.bytes_per_token * block_size,
        2 * spec.layers_per_rank,
        measure.host_bytes_per_s,
        measure.host_copy_s,
        measure.copy_bytes_per_s,
    )


def check_speeds(config: Config, block_size: int) -> None:
    """UsageError for speeds at which a single block takes longer than any run."""
    if not shares(config) or is_real(config):
        return
    measure, moved = config.measure, transfers_of(config, block_size)
    to_host = moved.block_bytes / moved.host_bytes_per_s, moved.copies_per_block * moved.host_copy_s
    on_device = moved.block_bytes / moved.copy_bytes_per_s
    for flag, value, seconds in (
        ("--host-bytes-per-s", measure.host_bytes_per_s, to_host[0]),
        ("--host-copy-s", measure.host_copy_s, to_host[1]),
        ("--copy-bytes-per-s", measure.copy_bytes_per_s, on_device),
    ):
        if not seconds <= LONGEST_COPY_S:
            raise UsageError(
                f"{flag} {value:g}: a block of {block_size} tokens would take {seconds:.3g} s, and may take "
                f"{LONGEST_COPY_S:g}"
            )


def arrive_as_samples(config: Config, arriving: Arriving) -> Arriving:
    """With every request as often as it has samples, where samples are requests of their own."""
    work = config.workload
    if work.samples_as != "requests":
        return arriving
    from workloads.samples import as_requests

    traces = {seed: as_requests(trace, work.num_samples) for seed, trace in arriving.traces.items()}
    first = next(iter(traces.values()))
    note = f"each request is {work.num_samples} requests of equal prompts, one after the other in the trace"
    provenance = {**arriving.provenance, "samples_of_each": work.num_samples, "num_requests": len(first)}
    return replace(arriving, traces=traces, provenance=provenance, notes=[*arriving.notes, note])
