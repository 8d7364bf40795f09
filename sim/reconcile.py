"""Do the numbers agree with each other? Laws that every run is checked against, by default."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from sim import integrals as at

if TYPE_CHECKING:
    from sim.simulate import Run


class Check(NamedTuple):
    """One equation: both sides, and whether they agree."""

    name: str
    holds: bool
    left: Any
    right: Any


def _equal(name: str, left: Any, right: Any) -> Check:
    return Check(name, left == right, left, right)


def reconcile(run: Run, num_trace_rows: int) -> list[Check]:
    """All checks; integers are compared exactly."""
    rows = run.rows
    whole = [sum(column) for column in zip(*run.recorder.integrals.segments(), strict=True)]
    cut = run.spec.end_s is not None
    checks = [
        _equal("requests: every row of the trace has one row", [r.request_id for r in rows], list(range(num_trace_rows)))
        if len(rows) != num_trace_rows
        else _equal("requests: every row of the trace has one row", len({r.request_id for r in rows}), num_trace_rows),
        _equal("slots: never more held than there are", whole[at.USED] <= run.capacity_slots * whole[at.TIME], True),
        _equal("memory: reserved is never negative", min(_reserved(row) for row in run.recorder.integrals.segments()) < 0, False),
        _equal("waste: nothing is live beyond what is held", whole[at.TOKENS] - whole[at.EXTRA] <= whole[at.USED], True),
        _equal("causality: arrival <= scheduled <= first token <= finish", [r.request_id for r in rows if not _ordered(r)], []),
        _equal("rejected and failed requests hold nothing", sum(_away(r) for r in rows), 0),
    ]
    if not cut:
        checks += _drained(run, whole)
    return checks


def _reserved(row: list[int]) -> int:
    return row[at.USED] - (row[at.TOKENS] - row[at.EXTRA]) - row[at.INTERNAL]


def _drained(run: Run, whole: list[int]) -> list[Check]:
    """Laws of a run that was not cut."""
    rows, recorder = run.rows, run.recorder
    delivered = sum(r.num_output_tokens for r in rows)
    computed = sum(r.num_computed_tokens for r in rows)
    finishes = [r.finish for r in rows if r.finish >= 0]
    started = [t for t in recorder.wait_starts]
    arrivals = [r.arrival for r in rows if r.finish >= 0]
    preempted = sum(started) - sum(arrivals)
    running = sum(finishes) + preempted - sum(recorder.wait_ends)
    waited = sum(recorder.wait_ends) - sum(started)
    free = run.allocator.stats().num_free
    return [
        _equal("time: integrals cover the makespan", whole[at.TIME], run.makespan),
        _equal("tokens: emitted = delivered", whole[at.EMITTED], delivered),
        _equal("tokens: computed in steps = computed by requests", whole[at.COMPUTED], computed),
        _equal("Little: integral of running = sum of running times", whole[at.SEQS], running),
        _equal("Little: integral of waiting = sum of waiting times", run.backlog.until(run.makespan + 1), waited),
        _equal("pool: everything is free at the end", free, run.allocator.capacity_blocks),
        _equal("pool: the allocator's own check", _self_check(run), "passes"),
    ]


def _self_check(run: Run) -> str:
    try:
        run.allocator.check()
    except AssertionError as error:
        return str(error)
    return "passes"


def _ordered(row: Any) -> bool:
    if row.status in ("finished", "truncated"):
        return bool(row.arrival <= row.first_scheduled < row.first_token <= row.finish)
    return row.finish == -1


def _away(row: Any) -> int:
    return int(row.status in ("rejected", "failed") and row.num_computed_tokens + row.num_output_tokens)
