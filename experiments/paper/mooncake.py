"""Prefix hits against the size of the cache on a trace with block ids: FIFO, LRU, Belady's optimum, vLLM's rules.

Cache-only mode (`sim.cache_only`): no allocator, no time, no cap at all tokens but one for the first three. The outside
check is another simulator's numbers on the public Mooncake conversation trace.
"""

from __future__ import annotations

from typing import Final

from experiments.paper.cache_lab import SIZES, Found
from experiments.paper.claims import Claim, Result, exact, without_file
from experiments.paper.experiment import Cell, Experiment, Table
from experiments.paper.runs import Lab
from sim.cache_only import POLICIES

NAME: Final = "mooncake-hit-rate"
NEEDED: Final = "a trace with block ids (--trace FILE; `pagelab trace fetch mooncake-conversation` gets the public one)"
EXPECTED: Final = {
    "fifo": (5.2, 14.9, 35.6),
    "lru": (5.4, 16.4, 38.1),
    "optimal": (25.3, 39.0, 39.8),
    "vllm": (None, 17.19, None),
}
"""%, at `SIZES` blocks. The last row is vLLM 0.33's own, by its rules."""
TOLERANCE: Final = 0.1
SOURCES: Final = {"vllm": "vLLM 0.33's rules on the same trace, computed apart"}
OUTSIDE: Final = "kvcache-simulator 0.1.3 on the public conversation trace, last half"
MEANINGS: Final = {
    "fifo": "first in, first out",
    "lru": "least recently used",
    "optimal": "Belady's optimum",
    "vllm": "vLLM's rules",
}


def _claim(policy: str, size: int, why: str = "") -> Claim:
    expected = dict(zip(SIZES, EXPECTED[policy], strict=True)).get(size)
    return Claim(
        f"{NAME}/{policy}/{size}",
        f"prompt tokens found in a cache of {size:,} blocks, {MEANINGS[policy]}",
        None if why else expected,
        "%",
        TOLERANCE,
        SOURCES.get(policy, OUTSIDE),
        "R",
        why_reported=why,
    )


def judge(lab: Lab) -> list[Result]:
    """Every policy at every size; judged on the public trace, reported on any other."""
    cached = lab.cached
    cases = [(policy, size) for policy in POLICIES for size in cached.sizes]
    if cached.trace is None:
        return [without_file(_claim(policy, size), NEEDED) for policy, size in cases]
    found = cached.found(cases, lab.jobs)
    return [
        exact(_claim(*case, _unjudged(lab, *case)), one.hit_pct, _refused(one))
        for case, one in zip(cases, found, strict=True)
    ]


def _unjudged(lab: Lab, policy: str, size: int) -> str:
    if not lab.cached.is_public_conversation:
        return "not judged: another trace than the outside check's"
    known = dict(zip(SIZES, EXPECTED[policy], strict=True)).get(size) is not None
    return "" if known else "not judged: nobody else's number for this size is known"


def _refused(found: Found) -> str:
    return f"{found.num_refused:,} prompts larger than the pool, never admitted" if found.num_refused else ""


def tables(lab: Lab) -> list[Table]:
    """A line a size, and what a cache without a bound finds."""
    cached = lab.cached
    if cached.trace is None:
        return []
    prompts = cached.prompts
    rows: list[tuple[Cell, ...]] = []
    for size in (*sorted(cached.sizes), cached.unbounded):
        found = cached.found([(policy, size) for policy in POLICIES], lab.jobs)
        shown = "no bound" if size == cached.unbounded else f"{size:,}"
        rows.append((shown, *(one.hit_pct for one in found)))
    measured = len(prompts) - len(prompts) // 2
    return [
        Table(
            f"{NAME}/{cached.trace.name}",
            f"Prompt tokens found, %, last {measured:,} of {len(prompts):,} requests of {cached.trace.name}",
            (f"blocks of {prompts.block_size}", *(MEANINGS[policy] for policy in POLICIES)),
            tuple(rows),
            "vLLM's rules cap a hit at all tokens but one, cache full blocks alone, and take a prompt's hit out of "
            "reach before anything is given up.",
        )
    ]


MOONCAKE = Experiment(NAME, "Prefix hits by size of the cache", judge, tables=tables)
