"""Do the numbers agree with each other? Laws that every run is checked against, by default."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sim import integrals as at
from sim.int_log import Packed, exact_sum
from sim.sharing_recorder import SharingRecorder

if TYPE_CHECKING:
    from sim.residency import Residency
    from sim.rows import RequestRow
    from sim.simulate import Run


class Check(NamedTuple):
    """One equation: both sides, and whether they agree."""

    name: str
    holds: bool
    left: Any
    right: Any


def _equal(name: str, left: Any, right: Any) -> Check:
    return Check(name, left == right, left, right)


def reconcile(run: Run, num_trace_rows: int, ids: Packed | None = None) -> list[Check]:
    """All checks; integers are compared exactly. `ids`: which rows of the trace came here, ascending; None: all."""
    rows = run.rows
    whole = [sum(column) for column in zip(*run.recorder.integrals.segments(), strict=True)]
    cut = run.spec.end_s is not None
    expected = np.arange(num_trace_rows) if ids is None else ids
    checks = [
        _equal("requests: every row of the trace has one row", _strays(rows.column("request_id"), expected), []),
        _equal("slots: never more held than there are", whole[at.USED] <= run.capacity_slots * whole[at.TIME], True),
        _equal("memory: reserved is never negative", min(map(_reserved, run.recorder.integrals.segments())) < 0, False),
        _equal(
            "waste: nothing is live beyond what is held", whole[at.TOKENS] - whole[at.EXTRA] <= whole[at.USED], True
        ),
        _equal(
            "causality: arrival <= scheduled < first token <= finish",
            [r.request_id for r in rows if not _ordered(r)],
            [],
        ),
        _equal("rejected and failed requests hold nothing", sum(_away(r) for r in rows), 0),
    ]
    if run.recorder.residency is not None:
        row = run.integrals_between(0, run.makespan) if cut else whole  # the last step of a cut run goes on beyond it
        checks += _lived(run, run.recorder.residency, row)
    if not cut:
        checks += _drained(run, whole)
    if isinstance(run.recorder, SharingRecorder):
        checks += _shared(run, run.recorder)
    return checks


def _shared(run: Run, recorder: SharingRecorder) -> list[Check]:
    """Blocks counted step by step against the integrals over the same steps."""
    steps = run.integrals_between(run.window.start, run.window.stop)[at.WIDTH :]
    size = run.allocator.block_size
    logical, physical = recorder.logical_blocks * size, recorder.physical_blocks * size
    return [
        _equal("sharing: physical blocks by step = slots held", physical, steps[at.USED]),
        _equal(
            "sharing: slots counted more than once <= those of shared blocks",
            logical - physical >= steps[at.EXTRA],
            True,
        ),
    ]


def _lived(run: Run, lived: Residency, row: list[int]) -> list[Check]:
    """Laws of the lives of cached blocks."""
    size, prefix = run.allocator.block_size, run.scheduler.prefix
    cached_free = run.capacity_slots * row[at.TIME] - row[at.USED] - row[at.SPARE]
    found = prefix.hits + prefix.preempted_hits
    return [
        _equal("residency: idle times add up to the cached-free slots", lived.idle_total * size, cached_free),
        _equal("residency: blocks found hold the tokens that were found", lived.num_hits * size, found),
    ]


def _strays(ids: Packed, expected: Packed) -> list[int]:
    """Ids that are there twice, missing, or nobody's."""
    if np.array_equal(ids, expected):
        return []
    counts, wanted = Counter(ids.tolist()), set(expected.tolist())
    return sorted(i for i in counts.keys() | wanted if counts[i] != 1 or i not in wanted)


def _reserved(row: list[int]) -> int:
    return row[at.USED] - (row[at.TOKENS] - row[at.EXTRA]) - row[at.INTERNAL]


def _drained(run: Run, whole: list[int]) -> list[Check]:
    """Laws of a run that was not cut."""
    rows, recorder, width = run.rows, run.recorder, run.spec.num_samples
    delivered = width * sum(rows.column("num_output_tokens").tolist())
    computed = sum(rows.column("num_computed_tokens").tolist())
    finishes, served = rows.column("finish"), rows.column("finish") >= 0
    started, ended = recorder.wait_starts.sum(), recorder.wait_ends.sum()
    preempted = started - exact_sum(rows.column("arrival")[served])
    running = width * (exact_sum(finishes[served]) + preempted - ended)
    waited = ended - started
    free = run.allocator.stats().num_free
    return [
        _equal("time: integrals cover the makespan", whole[at.TIME], run.makespan),
        _equal("tokens: emitted = delivered", whole[at.EMITTED], delivered),
        _equal("tokens: computed in steps = computed by requests", whole[at.COMPUTED], computed),
        _equal("Little: integral of running = sum of running times", whole[at.SEQS], running),
        _equal("Little: integral of waiting = sum of waiting times", run.backlog.until(run.makespan + 1), waited),
        _equal("pool: everything is free at the end", free, run.allocator.capacity_blocks),
        _equal("pool: the allocator's own check", _self_check(run), "passes"),
        *_token_by_token(run, whole[at.WIDTH :]),
    ]


def _token_by_token(run: Run, steps: list[int]) -> list[Check]:
    """Exact sums over steps, for runs in which each request ran for just as many steps as it has output tokens: one
    for the whole prompt and the first token, one for each further token. Its step i then holds p + i tokens. Nothing
    for runs with prompts in chunks, preemptions or steps that left a request out."""
    done = run.rows.column("finish") >= 0
    first, count = (run.rows.column(name)[done] for name in ("num_prompt_tokens", "num_output_tokens"))
    if run.spec.num_samples > 1 or run.rows.column("num_preemptions")[done].any() or int(count.sum()) != steps[at.SEQS]:
        return []
    last = first + count - 1
    final = last + run.spec.final_token_has_slot
    held = int((first * count + count * (count - 1) // 2).sum())
    checks = [_equal("step by step: tokens held = sum over requests", steps[at.TOKENS], held)]
    size = run.allocator.block_size
    if run.pages:
        blocks = int((_blocks_up_to(last, size) - _blocks_up_to(first - 1, size)).sum())
        tail = np.maximum(last - np.maximum(first - 1, final // size * size), 0) * (-final % size)
        checks += [
            _equal(
                "step by step: slots of block tables = sum over requests",
                steps[at.USED] + steps[at.EXTRA],
                blocks * size,
            ),
            _equal("step by step: slots never filled = those of last blocks", steps[at.INTERNAL], int(tail.sum())),
        ]
    elif run.allocator.growth_tokens == 0:
        filled = int((count * final).sum())
        checks.append(
            _equal("step by step: slots to be filled = final lengths", steps[at.USED] - steps[at.INTERNAL], filled)
        )
    return checks


def _blocks_up_to(tokens: Any, size: int) -> Any:
    """Blocks of 1 token + blocks of 2 tokens + ... + blocks of `tokens` tokens."""
    whole, rest = tokens // size, tokens % size
    return size * (whole * (whole + 1) // 2) + rest * (whole + 1)


def _self_check(run: Run) -> str:
    try:
        run.allocator.check()
    except AssertionError as error:
        return str(error)
    return "passes"


def _ordered(row: RequestRow) -> bool:
    if row.status in ("finished", "truncated"):
        return row.arrival <= row.first_scheduled < row.first_token <= row.finish
    return row.finish == -1


def _away(row: RequestRow) -> int:
    return row.num_computed_tokens + row.num_output_tokens if row.status in ("rejected", "failed") else 0
