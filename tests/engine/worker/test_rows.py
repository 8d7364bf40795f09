"""Rows of the batch: decodes in front without a gap, every request with its own blocks, whatever comes and goes."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="rows move block tables with them")

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.core.request import Request
from engine.worker.block_table import BlockTable
from engine.worker.rows import BatchRows

MAX_ROWS = 6


class Rows(RuleBasedStateMachine):
    """Requests join, decode, fall back, are brought forward and leave, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = BatchRows(BlockTable(MAX_ROWS, 4, 16))
        self.decoding: set[Request] = set()
        self.other: set[Request] = set()
        self.blocks: dict[Request, list[int]] = {}
        self.made = 0

    def pick(self, data: st.DataObject, among: set[Request]) -> Request:
        return data.draw(st.sampled_from(sorted(among, key=lambda request: request.request_id)))

    @precondition(lambda self: len(self.rows) < MAX_ROWS)
    @rule(blocks=st.lists(st.integers(1, 99), max_size=4))
    def join(self, blocks):
        self.made += 1
        request = Request(self.made, 1, 1)
        self.rows.join(request, blocks)
        self.other.add(request)
        self.blocks[request] = blocks
        with pytest.raises(ValueError, match="already"):
            self.rows.join(request, blocks)

    @precondition(lambda self: len(self.rows) == MAX_ROWS)
    @rule()
    def a_full_table_takes_nobody(self):
        with pytest.raises(ValueError, match="no row"):
            self.rows.join(Request("late", 1, 1), [])

    @precondition(lambda self: self.other)
    @rule(data=st.data())
    def promote(self, data):
        request = self.pick(data, self.other)
        self.rows.promote(request)
        self.other.remove(request)
        self.decoding.add(request)
        assert self.rows.changed

    @precondition(lambda self: self.decoding)
    @rule(data=st.data())
    def demote(self, data):
        request = self.pick(data, self.decoding)
        self.rows.demote(request)
        self.decoding.remove(request)
        self.other.add(request)

    @precondition(lambda self: self.other)
    @rule(data=st.data())
    def bring_forward(self, data):
        chosen = data.draw(st.permutations(sorted(self.other, key=lambda r: r.request_id)))
        chosen = chosen[: data.draw(st.integers(0, len(chosen)))]
        self.rows.bring_forward(chosen)
        first = self.rows.num_decodes
        assert self.rows.requests[first : first + len(chosen)] == list(chosen)

    @precondition(lambda self: self.blocks)
    @rule(data=st.data())
    def leave(self, data):
        request = self.pick(data, set(self.blocks))
        self.rows.leave(request)
        self.decoding.discard(request)
        self.other.discard(request)
        del self.blocks[request]

    @invariant()
    def everybody_has_a_row_and_their_blocks(self):
        rows = self.rows
        assert set(rows.requests) == set(self.blocks) == set(rows.row_of)
        assert set(rows.decodes()) == self.decoding
        for row, request in enumerate(rows.requests):
            assert rows.row_of[request] == row
            assert rows.table.cpu[row, : rows.table.num_blocks[row]].tolist() == self.blocks[request]
        assert (rows.table.num_blocks[len(rows) :] == 0).all()


TestRows = Rows.TestCase
TestRows.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
