"""Figs 3, 6 and 7 of the paper, walked through: the requests of the drawings, really allocated, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final

from engine.core.allocator import Grant
from engine.core.contiguous import ContiguousAllocator
from engine.core.paged import PagedAllocator
from engine.core.request import Request
from engine.core.slots import slot_of
from experiments.paper.claims import Claim, Result, exact
from experiments.paper.experiment import Cell, Experiment, Table
from experiments.paper.runs import Lab

BLOCK: Final = 4
NUM_BLOCKS: Final = 8
DRAWN_ORDER: Final = (7, 1, 3, 5, 2)
"""Order in which the drawings' physical blocks are taken: the ids are the free queue's, nothing else's."""
PROMPT_A: Final = 7
"""Four score and seven years ago our"""
PROMPT_B: Final = 6
"""It was the best of times"""


class Walk:
    """A paged pool of blocks of 4 tokens, whose free queue stands as drawn, and what happens to it."""

    def __init__(self) -> None:
        self.allocator = pool_in_order(DRAWN_ORDER)
        self.rows: list[tuple[Cell, ...]] = []
        self._held: dict[str, int] = {}

    def admit(self, name: str, num_prompt_tokens: int) -> Request:
        """Prefill of the whole prompt."""
        request = Request(name, num_prompt_tokens, BLOCK * NUM_BLOCKS - num_prompt_tokens)
        assert isinstance(self.allocator.admit(request, num_prompt_tokens), Grant)
        self._note(request, "prefill", num_prompt_tokens)
        return request

    def decode(self, request: Request) -> None:
        """One more token is written."""
        assert isinstance(self.allocator.extend((request,), (request.computed + 1,)), Grant)
        self._note(request, "decode", 1)

    def filled(self, request: Request) -> list[int]:
        """Tokens in each block of the table."""
        table = self.allocator.block_table(request)
        return [min(BLOCK, request.computed - BLOCK * index) for index in range(len(table))]

    def _note(self, request: Request, what: str, count: int) -> None:
        before = self._held.get(request.request_id, 0)
        table = list(self.allocator.block_table(request))
        self._held[request.request_id] = len(table)
        slots = [slot_of(table, position, BLOCK) for position in range(request.computed, request.computed + count)]
        request.computed += count
        request.known = request.computed + 1
        filled, taken = self.filled(request), table[before:]
        words = (str(request.request_id), what, _list(table), _list(filled), _list(taken), _list(slots))
        self.rows.append((str(len(self.rows) + 1), *words))


def _list(values: Sequence[int]) -> str:
    return ", ".join(map(str, values)) or "–"


def pool_in_order(first: Sequence[int], num_blocks: int = NUM_BLOCKS) -> PagedAllocator:
    """A pool that hands out these blocks first: all were taken once and freed in that order."""
    allocator = PagedAllocator(
        num_blocks, BLOCK, max_model_len=BLOCK * num_blocks, enable_caching=False, freed_to="back"
    )
    holders = {}
    for index in range(num_blocks):
        request = Request(index, 1, 1)
        assert isinstance(allocator.admit(request, 1), Grant)
        holders[allocator.block_table(request)[0]] = request
    for block_id in (*first, *(block_id for block_id in holders if block_id not in first)):
        allocator.free(holders[block_id])
    return allocator


def _claim(name: str, metric: str, expected: float, unit: str, figure: str) -> Claim:
    return Claim(name, metric, expected, unit, 0.0, figure, "A")


def _differing(found: Sequence[int], drawn: Sequence[int]) -> int:
    """Entries that differ; one that only one of them has does."""
    pairs = sum(a != b for a, b in zip(found, drawn, strict=False))
    return pairs + abs(len(found) - len(drawn))


def same(name: str, what: str, figure: str, found: Sequence[int], drawn: Sequence[int]) -> Result:
    """How many entries of a table differ from the drawing's: none."""
    claim = _claim(name, f"entries of {what} that are not as drawn", 0, "entries", figure)
    claim = replace(claim, deviations=("drawn-order",))
    return exact(claim, _differing(found, drawn), f"drawn {list(drawn)}, ours {list(found)}")


# Fig 6 ----------------------------------------------------------------------------------------------------------------


def walk6() -> tuple[Walk, list[Result]]:
    """One request: prefill, a token into the open block, a token into a new one."""
    walk = Walk()
    request = walk.admit("A", PROMPT_A)
    results = []
    steps: list[tuple[str, tuple[int, ...], tuple[int, ...], int]] = [
        ("prefill", (7, 1), (4, 3), 2),
        ("decode-1", (7, 1), (4, 4), 0),
        ("decode-2", (7, 1, 3), (4, 4, 1), 1),
    ]
    held = 0
    for name, table, filled, num_new in steps:
        if name != "prefill":
            walk.decode(request)
        found = list(walk.allocator.block_table(request))
        results += [
            same(f"fig6/{name}/table", "the block table", "Fig 6", found, table),
            same(f"fig6/{name}/filled", "the filled slots by block", "Fig 6", walk.filled(request), filled),
            exact(_claim(f"fig6/{name}/new", "blocks taken", num_new, "blocks", "Fig 6"), len(found) - held),
        ]
        held = len(found)
    return walk, results


# Fig 7 ----------------------------------------------------------------------------------------------------------------


def walk7() -> tuple[Walk, list[Result]]:
    """Two requests in one pool, neither contiguous."""
    walk = Walk()
    first = walk.admit("A", PROMPT_A)
    walk.decode(first)
    walk.decode(first)
    second = walk.admit("B", PROMPT_B)
    tables = [list(walk.allocator.block_table(request)) for request in (first, second)]
    shared = len(set(tables[0]) & set(tables[1]))
    adjacent = sum(b == a + 1 for table in tables for a, b in pairwise(table))
    walk.allocator.check()
    return walk, [
        same("fig7/a/table", "A's block table", "Fig 7", tables[0], (7, 1, 3)),
        same("fig7/b/table", "B's block table", "Fig 7", tables[1], (5, 2)),
        exact(_claim("fig7/shared", "blocks in both tables", 0, "blocks", "Fig 7"), shared),
        exact(_claim("fig7/adjacent", "neighbours in a table that are neighbours in memory", 0, "", "Fig 7"), adjacent),
    ]


def _walk_table(name: str, title: str, walk: Walk) -> Table:
    heads = ("step", "request", "does", "block table", "filled", "new blocks", "slots written")
    note = "Blocks of 4 tokens; slot = block id x 4 + offset. The ids are those that the free queue gave out."
    return Table(name, title, heads, tuple(walk.rows), note)


# Fig 3 ----------------------------------------------------------------------------------------------------------------

DRAWN3: Final = {"a": (7, 1, 2, 2038), "b": (3, 1, 1, 507)}
"""Slots: prompt, generated so far, to be generated, never used."""
KINDS: Final = ("prompt", "generated", "future", "never")


def walk3() -> list[tuple[str, str, str, int, int, int, int]]:
    """Two contiguous reservations to the request's limit: kinds of slots after the prefill and after one token."""
    slots = sum(map(sum, DRAWN3.values()))
    allocator = ContiguousAllocator(slots, 1, max_model_len=2048, reserve="limit")
    rows = []
    for name, (prompt, generated, future, never) in DRAWN3.items():
        output = generated + future
        request = Request(name, prompt, output + never, oracle_output_tokens=output)
        assert isinstance(allocator.admit(request, prompt), Grant)
        rows.append(_kinds(allocator, request, "prefill", prompt))
        assert isinstance(allocator.extend((request,), (prompt + generated,)), Grant)
        rows.append(_kinds(allocator, request, "decode", prompt + generated))
    allocator.check()
    return rows


def _kinds(
    allocator: ContiguousAllocator, request: Request, step: str, computed: int
) -> tuple[str, str, str, int, int, int, int]:
    """Counted from what is held: the extent, the tokens in it, and how many there will be."""
    held = allocator.block_table(request)
    final = request.num_prompt_tokens + request.num_stop_tokens
    prompt = min(computed, request.num_prompt_tokens)
    extent = f"{held[0]} to {held[-1]}"
    return (str(request.request_id), step, extent, prompt, computed - prompt, final - computed, len(held) - final)


def judge3(lab: Lab) -> list[Result]:
    """Each kind of slot, and their sum."""
    results = []
    for name, drawn in DRAWN3.items():
        found = next(row for row in walk3() if row[:2] == (name, "decode"))[3:]
        for kind, expected, got in zip(KINDS, drawn, found, strict=True):
            results.append(exact(_claim(f"fig3/{name}/{kind}", f"slots, {kind}", expected, "slots", "Fig 3"), got))
        total = _claim(f"fig3/{name}/reserved", "slots reserved in one extent", sum(drawn), "slots", "Fig 3")
        results.append(exact(total, sum(found)))
    return results


def _tables3(lab: Lab) -> list[Table]:
    heads = ("request", "step", "slots held", *KINDS)
    title = "Fig 3: slots of two contiguous reservations, adjacent in one pool"
    return [Table("fig3/slots", title, heads, tuple(walk3()), "A's limit is 2,048 tokens, B's 512.")]


FIG3: Final = Experiment("fig3", "Fig 3: reserved and wasted slots of two requests", judge3, tables=_tables3)
FIG6: Final = Experiment(
    "fig6",
    "Fig 6: a block table over two decoded tokens",
    lambda lab: walk6()[1],
    tables=lambda lab: [_walk_table("fig6/steps", "Fig 6, step by step", walk6()[0])],
)
FIG7: Final = Experiment(
    "fig7",
    "Fig 7: two requests in one pool",
    lambda lab: walk7()[1],
    tables=lambda lab: [_walk_table("fig7/steps", "Fig 7, step by step", walk7()[0])],
)
