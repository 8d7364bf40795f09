"""Figs 8 and 9 of the paper, walked through: a fork with copy-on-write, and a search whose beams die, on the allocator.

Block 0 is nobody's here, so Fig 9's ids are the drawing's plus one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from engine.core.allocator import Grant
from engine.core.paged import PagedAllocator
from engine.core.request import Request
from experiments.paper.claims import Claim, Result, exact
from experiments.paper.experiment import Cell, Experiment, Table
from experiments.paper.walks import BLOCK, DRAWN_ORDER, PROMPT_A, pool_in_order, same

POOL_9: Final = 16
BEFORE_9: Final = ((0, 1, 3, 5), (0, 1, 3, 6), (0, 1, 3, 7), (0, 2, 4, 8))
"""Blocks of candidates 0 to 3, as drawn."""
SURVIVORS_9: Final = (1, 1, 2, 2)
"""From which candidate each of the next four comes."""
FREED_9: Final = (2, 4, 5, 8)
TAKEN_9: Final = (9, 10, 11, 12)


class Sharers:
    """Sequences over one pool of blocks of 4 tokens, and what happens to them."""

    def __init__(self, allocator: PagedAllocator) -> None:
        self.allocator = allocator
        self.rows: list[tuple[Cell, ...]] = []

    def admit(self, name: str, num_tokens: int) -> Request:
        """A prompt is computed."""
        request = Request(name, num_tokens, BLOCK * POOL_9 - num_tokens)
        assert isinstance(self.allocator.admit(request, num_tokens), Grant)
        self._note(f"{name}: prompt of {num_tokens} tokens", (request,), num_tokens)
        return request

    def fork(self, parent: Request, *names: str) -> list[Request]:
        """New sequences with the parent's tokens."""
        children = [Request(name, parent.num_prompt_tokens, parent.max_tokens) for name in names]
        self.replace(parent, children)
        return children

    def replace(self, parent: Request, children: Sequence[Request]) -> None:
        """These sequences, old or new, go on with the parent's tokens."""
        assert isinstance(self.allocator.fork(parent, children), Grant)
        for child in children:
            child.computed, child.known = parent.computed, parent.known
        self._note(f"{', '.join(str(c.request_id) for c in children)}: from {parent.request_id}", children, 0)

    def write(self, request: Request, count: int = 1) -> Grant:
        """So many more tokens; the grant, with the copies that come before the writing."""
        grant = self.allocator.extend((request,), (request.computed + count,))
        assert isinstance(grant, Grant)
        self.allocator.settle(grant)
        copied = "".join(f", copies {source} to {target}" for source, target in grant.copies)
        self._note(f"{request.request_id}: writes {count}{copied}", (request,), count)
        return grant

    def table(self, request: Request) -> list[int]:
        """Physical blocks by logical block."""
        return list(self.allocator.block_table(request))

    def ref_cnt(self, block_id: int) -> int:
        """Block tables that hold the block."""
        return self.allocator.pool.ref_cnts()[block_id]

    def _note(self, what: str, requests: Sequence[Request], count: int) -> None:
        for request in requests:
            request.computed += count
            request.known = request.computed + 1
        tables = "; ".join(f"{r.request_id}: {', '.join(map(str, self.table(r)))}" for r in requests)
        stats = self.allocator.stats()
        entries = stats.num_referenced + stats.num_extra_references
        self.rows.append((str(len(self.rows) + 1), what, tables, stats.num_referenced, entries))


def _counted(name: str, metric: str, expected: float, unit: str, got: float) -> Result:
    return exact(Claim(name, metric, expected, unit, 0.0, name.split("/")[0].replace("fig", "Fig "), "A"), got)


# Fig 8 ----------------------------------------------------------------------------------------------------------------


def walk8() -> tuple[Sharers, list[Result]]:
    """Two samples of one prompt, whose last block is partly filled: the first writer copies it, the second does not."""
    walk = Sharers(pool_in_order(DRAWN_ORDER))
    first = walk.admit("A1", PROMPT_A)
    (second,) = walk.fork(first, "A2")
    shared = [walk.ref_cnt(block_id) for block_id in walk.table(first)]
    results = [same("fig8/forked/references", "references of the prompt's blocks", "Fig 8", shared, (2, 2))]
    copies = walk.write(first).copies
    left = walk.ref_cnt(1)
    results += [
        same("fig8/a1/copy", "the copy (source, destination)", "Fig 8", [*copies[0]], (1, 3)),
        same("fig8/a1/table", "A1's block table", "Fig 8", walk.table(first), (7, 3)),
        _counted("fig8/a1/copies", "blocks copied as A1 writes", 1, "blocks", len(copies)),
        _counted("fig8/a1/references", "references of block 1 after A1's copy", 1, "references", left),
    ]
    copies = walk.write(second).copies
    walk.allocator.check()
    results += [
        _counted("fig8/a2/copies", "blocks copied as A2 writes in place", 0, "blocks", len(copies)),
        same("fig8/a2/table", "A2's block table", "Fig 8", walk.table(second), (7, 1)),
        _counted("fig8/shared", "references of block 7, the full one", 2, "references", walk.ref_cnt(7)),
    ]
    return walk, results


# Fig 9 ----------------------------------------------------------------------------------------------------------------


def _grown9() -> tuple[Sharers, list[Request]]:
    """Four candidates as drawn: 0 to 2 with three blocks in common, 3 with one."""
    walk = Sharers(pool_in_order(range(1, POOL_9), POOL_9))
    one = walk.admit("beam 1", BLOCK)
    (three,) = walk.fork(one, "beam 3")
    for request in (one, three, one, three):
        walk.write(request, BLOCK)
    zero, two = walk.fork(one, "beam 0", "beam 2")
    beams = [zero, one, two, three]
    for request in beams:
        walk.write(request, BLOCK)
    return walk, beams


def walk9() -> tuple[Sharers, list[Result]]:
    """Candidates 0 and 3 die, 1 and 2 go on twice each."""
    walk, beams = _grown9()
    drawn = [[block_id + 1 for block_id in table] for table in BEFORE_9]
    results = [
        same(f"fig9/before/beam-{i}", f"candidate {i}'s block table", "Fig 9", walk.table(beam), table)
        for i, (beam, table) in enumerate(zip(beams, drawn, strict=True))
    ]
    before = _held(walk.allocator)
    walk.replace(beams[1], [beams[0]])
    walk.replace(beams[2], [beams[3]])
    freed = sorted(before - _held(walk.allocator))
    copies = [pair for beam in beams for pair in walk.write(beam).copies]
    walk.allocator.check()
    taken = sorted(_held(walk.allocator) - before | set(freed) & _held(walk.allocator))
    results += [
        same("fig9/freed", "the blocks freed", "Fig 9", freed, [b + 1 for b in FREED_9]),
        same("fig9/taken", "the blocks taken", "Fig 9", taken, [b + 1 for b in TAKEN_9]),
        exact(
            Claim("fig9/copies", "blocks copied, at most", 1, "blocks", 0.0, "Fig 9", "A", at_most=True), len(copies)
        ),
    ]
    for block_id, count in ((0, 4), (1, 4), (3, 4), (6, 2), (7, 2)):
        name, what = f"fig9/after/block-{block_id}", f"candidates that share block {block_id} of the drawing"
        results.append(_counted(name, what, count, "references", walk.ref_cnt(block_id + 1)))
    return walk, results


def _held(allocator: PagedAllocator) -> set[int]:
    """Blocks with an owner."""
    return {block_id for block_id, count in enumerate(allocator.pool.ref_cnts()) if count and block_id}


def _table(name: str, title: str, walk: Sharers) -> Table:
    heads = ("step", "what", "block tables", "physical blocks", "logical blocks")
    return Table(name, title, heads, tuple(walk.rows), "Blocks of 4 tokens. Logical: entries of all block tables.")


FIG8: Final = Experiment(
    "fig8",
    "Fig 8: two samples of one prompt, copy-on-write",
    lambda lab: walk8()[1],
    tables=lambda lab: [_table("fig8/steps", "Fig 8, step by step", walk8()[0])],
)
FIG9: Final = Experiment(
    "fig9",
    "Fig 9: beams that die, and what they share",
    lambda lab: walk9()[1],
    tables=lambda lab: [_table("fig9/steps", "Fig 9, step by step (drawn ids plus one)", walk9()[0])],
)
