"""Random small replays: pools that run dry, arrivals that meet step boundaries, content that meets itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from random import Random
from typing import Any
from unittest import mock

from engine.core.allocator import FREE
from engine.core.content import TokenContent
from engine.core.limits import SchedulerConfig
from engine.core.registry import PoolConfig
from engine.core.request import Request
from engine.core.step import Cut, never_skip
from sim import simulate as simulate_module
from sim.ancestry import Ancestry
from sim.cost import LinearModel, RooflineModel, StepModel, TableModel
from sim.cost_executor import CostExecutor
from sim.simulate import Run, RunSpec, simulate
from workloads import Trace

US = 10**6
"""Picoseconds of a microsecond, the unit of all times here."""
CONTIGUOUS = ("orca-max", "orca-pow2", "orca-oracle")
FITS = ("first-fit", "best-fit", "buddy")


@dataclass
class Case:
    """One replay, and what is needed to build it again."""

    seed: int
    spec: RunSpec
    trace: Trace
    model: StepModel
    tokens: list[list[int]] | None
    """Token ids of prompt and output, by request; None where content is the trace's."""
    copy_block_ps: int = 0
    swap_block_ps: int = 0


@dataclass
class Watched:
    """What a replay left behind, comparable."""

    run: Run
    freed: list[tuple[int, int, tuple[int, ...]]]
    """(request, computed tokens, block table) at every release, in order."""
    seen: dict[str, Any]


def random_model(rng: Random) -> StepModel:
    """Round numbers more often than not, so that boundaries and arrivals coincide."""
    kind = rng.randrange(6)
    if kind < 3:
        return LinearModel(US, 0, 0, 0)
    if kind == 3:
        return LinearModel(US // 2, US // 8, rng.choice((0, 1, US // 16)), US // 4, rng.choice((None, 2)))
    if kind == 4:
        return RooflineModel(
            1, US, rng.choice((7, US // 8)), rng.choice((1, US // 4)), 10**12, 10**12, rng.choice((0, 333))
        )
    return TableModel((0, 4, 1 << 20), (US // 2, US, US << 10), (rng.choice((0, US // 16)), 3, 3))


def random_limits(rng: Random, max_model_len: int) -> SchedulerConfig:
    chunked = rng.random() < 0.7
    budget = rng.choice((1, 2, 3, 8, 16, 64)) if chunked else max_model_len + rng.choice((0, 16))
    return SchedulerConfig(
        max_model_len=max_model_len,
        max_num_seqs=rng.choice((1, 2, 3, 4, 128, 128)),
        max_num_batched_tokens=budget,
        chunked_prefill=chunked,
        full_sequence_gate=rng.random() < 0.5,
        policy=rng.choice(("fcfs", "priority")),
        long_prefill_token_threshold=rng.choice((0, 0, 1, 3, 9)),
    )


def random_pool(rng: Random, allocator: str | None) -> tuple[str, PoolConfig]:
    size, capacity = rng.choice((1, 2, 3, 4, 8, 16)), rng.choice((2, 3, 4, 5, 6, 8, 10, 12, 16, 24))
    slots = size * capacity
    pool = PoolConfig(
        capacity,
        size,
        max_model_len=max(4, min(slots * rng.choice((1, 2, 2, 3)) // 2, 64)),
        enable_caching=rng.random() < 0.6,
        watermark=rng.choice((0.0, 0.0, 0.1, 0.3)),
        freed_to=rng.choice(("front", "front", "back")),
        one_free_each=rng.random() < 0.15,
    )
    if allocator is None:
        reserve = rng.choice(("limit", "max", "oracle", f"chunk({size * rng.choice((1, 2, 3))})"))
        derived = f"contiguous-{reserve}-{rng.choice(FITS)}"
        allocator = rng.choice(("paged", "paged", "paged", *CONTIGUOUS[rng.randrange(3) :][:1], derived))
    return allocator, pool


def random_trace(rng: Random, max_model_len: int, content: str, most: int = 12) -> tuple[Trace, list[list[int]] | None]:
    """Ties, all at once, or spread; outputs long enough for runs, limits below and above them. At most `most` rows."""
    count = rng.randint(1, most)
    gap = rng.choice((0, 1, 2, 4, 12))
    stamps = sorted(rng.randint(0, gap * count) for _ in range(count))
    longest = max(max_model_len - 1, 1)
    prompts = [min(rng.choice((1, 2, rng.randint(1, 12), rng.randint(1, longest))), longest) for _ in stamps]
    outputs = [rng.choice((1, 2, rng.randint(1, 30), rng.randint(1, longest), longest)) for _ in stamps]
    outputs = [min(n, max_model_len - p) if rng.random() < 0.95 else n for n, p in zip(outputs, prompts, strict=True)]
    outputs = [n if rng.random() < 0.97 else 0 for n in outputs]
    limits = [rng.choice((-1, -1, n + 1, max(n - 2, 1), n or 1)) for n in outputs]
    extra: dict[str, Any] = {}
    tokens = None
    if content == "blocks":
        unit = rng.choice((1, 2, 4, 5))
        ids = [[rng.randrange(2) for _ in range(-(-p // unit))] for p in prompts]
        offsets = [0]
        for row in ids:
            offsets.append(offsets[-1] + len(row))
        extra = {
            "block_ids": [i for row in ids for i in row],
            "block_offsets": offsets,
            "block_size": unit,
            "block_scope": "content",
            "block_partial": "ceil",
        }
    elif content == "runs":
        extra = {"block_size": 1, "block_scope": "runs", "block_partial": "floor", **random_runs(rng, prompts)}
    elif content == "tokens":
        streams = [[rng.randrange(2) for _ in range(4 * max_model_len + 64)] for _ in range(rng.choice((1, 1, 2)))]
        tokens = [list(rng.choice(streams)[: p + max(n, 1)]) for p, n in zip(prompts, outputs, strict=True)]
    trace = Trace.build(
        [stamp * 1_000 for stamp in stamps],
        prompts,
        outputs,
        limit_tokens=limits,
        priority=[rng.randrange(3) for _ in stamps],
        **extra,
        **(random_turns(rng, outputs) if rng.random() < 0.3 else {}),
    )
    return trace, tokens


def random_turns(rng: Random, outputs: list[int]) -> dict[str, list[int]]:
    """Rows that come after an earlier one's end: at once, after a step's time, or later; several after one, too."""
    parent = [rng.choice((-1, *range(row)[-4:])) for row in range(len(outputs))]
    after = [p >= 0 and outputs[p] > 0 and rng.random() < 0.8 for p in parent]
    return {"parent": parent, "delay_ns": [rng.choice((0, 0, 1, 1_000, 4_000, 30_500)) if a else -1 for a in after]}


def random_runs(rng: Random, prompts: list[int]) -> dict[str, list[int]]:
    """Prompts of one to three of a few texts, so that beginnings are equal, answers among them."""
    runs, offsets = list[int](), [0]
    for left in prompts:
        while left:
            count = left if offsets[-1] + 4 <= len(runs) else rng.choice((min(left, 4), left))
            runs += [rng.randrange(2), count]
            left -= count
        offsets.append(len(runs))
    return {"block_ids": runs, "block_offsets": offsets}


def random_case(seed: int, allocator: str | None = None) -> Case:
    """Everything from the seed; `allocator` pins one by name."""
    rng = Random(seed)
    name, pool = random_pool(rng, allocator)
    limits = random_limits(rng, pool.max_model_len)
    trace, tokens = random_trace(rng, pool.max_model_len, rng.choice(("none", "blocks", "tokens", "runs")))
    end = rng.choice((None, None, None, rng.randint(1, 60)))
    window = rng.choice((None, None, sorted((rng.randint(0, 20), rng.randint(21, 60)))))
    spec = RunSpec(
        allocator=name,
        pool=pool,
        limits=limits,
        too_long=rng.choice(("reject", "truncate")),
        final_token_has_slot=rng.random() < 0.2,
        window_s=None if window is None else (window[0] * 1e-6, window[1] * 1e-6),
        end_s=None if end is None else end * 1e-6,
        max_concurrency=rng.choice((*[None] * 6, 1, 2, 5)),
    )
    return Case(seed, spec, trace, random_model(rng), tokens, rng.choice((0, 1, US // 4)))


def random_shared_case(seed: int, allocator: str | None = None, *, single: bool = False) -> Case:
    """A random case whose requests are groups (unless `single`), or whose victims are swapped out and chosen by other
    rules. Half of them have pools so tight and outputs so long that somebody has to give way."""
    rng = Random(f"shared {seed}")
    case = random_case(seed, allocator)
    pages = case.spec.allocator == "paged"
    host_blocks = rng.choice((0, 1, 3, 8, 8, 64, 64)) if pages else 0
    limits = replace(
        case.spec.limits,
        preemption=rng.choice(("recompute", "swap", "swap", "auto", "auto")) if host_blocks else "recompute",
        victim=rng.choice((None, None, "last", "least-computed", "priority")),
    )
    width = 1 if single else rng.choice((1, 2, 2, 3, 4, 6))
    if width > 1 and rng.random() < 0.4:  # prompts that are found in the cache, and samples behind them that are not
        trace, _ = random_trace(rng, case.spec.pool.max_model_len, "blocks")
        case = replace(case, trace=trace, tokens=None)
    capacity = case.spec.pool.capacity_blocks * (1 if rng.random() < 0.3 else -(-width // 2) if pages else width)
    limits = replace(limits, max_num_batched_tokens=limits.max_num_batched_tokens + width)
    if limits.max_num_seqs < width and rng.random() < 0.8:
        limits = replace(limits, max_num_seqs=width + rng.randrange(4))
    if pages and rng.random() < 0.6:
        capacity = crowded(rng, case, width)
        limits = replace(limits, max_num_seqs=64, full_sequence_gate=rng.random() < 0.3)
    spec = replace(
        case.spec,
        pool=replace(case.spec.pool, host_blocks=host_blocks, capacity_blocks=capacity),
        limits=limits,
        num_samples=width,
        beam_search=rng.random() < 0.35 and not single,
    )
    tokens = case.tokens if width == 1 and not spec.beam_search else None
    return replace(case, spec=spec, tokens=tokens, swap_block_ps=rng.choice((0, 1, US // 8)))


def crowded(rng: Random, case: Case, width: int) -> int:
    """Blocks that the largest group of the trace needs, and few more."""
    size, trace = case.spec.pool.block_size, case.trace
    longest = case.spec.pool.max_model_len
    needed = [1]
    for prompt, output in zip(trace.num_prompt_tokens.tolist(), trace.num_output_tokens.tolist(), strict=True):
        if prompt + output <= longest:
            shared = prompt // size
            needed.append(shared + width * (-(-(prompt + output) // size) - shared))
    return max(needed) + rng.randrange(4)


@contextmanager
def prepared(case: Case) -> Iterator[None]:
    """Few bins, so that runs meet both their closed form and their edges; requests get their token content here, as
    a trace names prompts only and no output could be shared."""
    original, tokens = simulate_module.requests_of, case.tokens

    def with_tokens(*args: Any) -> Iterator[Request]:
        for request in original(*args):
            if tokens is not None:
                request.content = TokenContent(list(tokens[request.request_id]))
            yield request

    bins = {"TARGET_BINS": 8, "MAX_BINS": 16}
    with mock.patch.multiple(simulate_module, requests_of=with_tokens, **bins):
        yield


def play(case: Case, cut: Cut | None = None, executor: Callable[..., Any] | None = None) -> Watched:
    """Replays the case. `executor(allocator, model, copy_block_ps=...)` replaces the cost model's."""
    freed: list[tuple[int, int, tuple[int, ...]]] = []

    def make(allocator: Any) -> Any:
        free = allocator.free

        def watched_free(request: Request) -> None:
            freed.append((request.request_id, request.num_computed_tokens, tuple(allocator.block_table(request))))
            free(request)

        allocator.free = watched_free
        costs: dict[str, Any] = {"copy_block_ps": case.copy_block_ps}
        if case.swap_block_ps:
            costs["swap_block_ps"] = case.swap_block_ps
        if case.spec.beam_search:
            costs["ancestry"] = Ancestry(case.seed)
        return CostExecutor(case.model, **costs) if executor is None else executor(allocator, case.model, **costs)

    with prepared(case):
        run = simulate(case.spec, case.trace, make, cut=cut)
    return Watched(run, freed, seen_of(run, freed))


def free_queue(allocator: Any) -> list[int]:
    """Order in which a paged pool hands its blocks out; the holes of others."""
    pool = getattr(allocator, "pool", None)
    if pool is not None:
        return pool.free_queue()
    starts, lengths, owners = (column.tolist() for column in allocator.regions())
    return [b for s, n, o in zip(starts, lengths, owners, strict=True) if o == FREE for b in range(s, s + n)]


def seen_of(run: Run, freed: list[Any]) -> dict[str, Any]:
    """Everything that must not depend on how steps were grouped."""
    recorder = run.recorder
    return {
        "rows": list(recorder.rows),
        "segments": recorder.integrals.segments(),
        "waits": (sorted(recorder.wait_starts), sorted(recorder.wait_ends)),
        "blocked": recorder.blocked,
        "pictures": [(s.time, *(column.tolist() for column in s.regions)) for s in recorder.snapshots],
        "freed": freed,
        "tables": [(r.request_id, tuple(r.blocks or ())) for r in run.scheduler.running],
        "free queue": free_queue(run.allocator),
        "stats": run.allocator.stats(),
        "prefix": run.scheduler.prefix,
        "makespan": run.makespan,
        "copies": run.recorder.num_copied_blocks,
        "swaps": (run.recorder.num_swapped_out, run.recorder.num_swapped_in, run.scheduler.num_swaps_refused),
    }


def random_cuts(rng: Random) -> Cut:
    """Cuts runs wherever it likes."""
    return lambda longest: rng.randint(1, longest)


def differences(left: dict[str, Any], right: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """What differs, with both sides."""
    return {name: (left[name], right[name]) for name in left if name in right and left[name] != right[name]}


STEP: Cut = never_skip
