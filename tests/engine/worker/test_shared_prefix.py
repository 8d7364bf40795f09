"""Rows that share blocks are found in their tables, and a decode that takes them once computes the same."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the executor computes on torch tensors")

from engine.attention.shared_prefix import Group  # noqa: E402
from engine.core.content import TokenContent  # noqa: E402
from engine.core.request import Request  # noqa: E402
from engine.core.step import step  # noqa: E402
from engine.worker import decode_step  # noqa: E402
from engine.worker.block_table import BlockTable  # noqa: E402
from engine.worker.shared_prefix import SharedRows, SharingRule, best_groups  # noqa: E402
from engine.worker.staging import RowState  # noqa: E402
from tests.engine.worker import tiny  # noqa: E402

ALWAYS = {"least_bytes": 0, "row_bytes": 0}


pytestmark = pytest.mark.usefixtures("one_thread")


def tables(rows, width=8):
    """[n, width] filled with garbage behind the rows' own blocks, and their numbers."""
    table = np.full((len(rows), width), 99, np.int32)
    for index, row in enumerate(rows):
        table[index, : len(row)] = row
    return table, np.array([len(row) for row in rows], np.int64)


def sets(savings):
    return {(frozenset(one.group.rows), one.group.num_blocks) for one in savings}


@pytest.mark.parametrize(
    "rows,row_tokens,expected",
    [
        ([[1, 2, 3], [1, 2, 4], [5, 6]], 0, {((0, 1), 2)}),
        ([[1, 2], [3, 4]], 0, set()),
        ([[], [], [7]], 0, set()),
        ([[1], [1], []], 0, {((0, 1), 1)}),
        ([[1, 2, 3, 4], [1, 2, 3, 4], [1, 9], [1, 2, 3, 4]], 0, {((0, 1, 3), 4)}),  # eight blocks, not three
        ([[1, 2, 3], [1, 2, 3], [1, 5, 6], [1, 5, 6]], 0, {((0, 1), 3), ((2, 3), 3)}),  # six, not three
        ([[1, 2, 3], [1, 2, 4], [1, 5, 6], [1, 5, 7]], 0, {((0, 1), 2), ((2, 3), 2)}),
        ([[1, 2, 3, 8], [1, 2, 3, 9], [1, 2, 3, 7], [1, 2, 5, 6]], 0, {((0, 1, 2), 3)}),
        ([[1, 2, 3], [1, 2, 4]], 16, set()),  # 32 tokens saved, two rows to merge
        ([[1, 2, 3], [1, 2, 4]], 15, {((0, 1), 2)}),
        ([[1, 2, 1], [2, 2, 1]], 0, set()),  # alike, but not from the first on
    ],
)
def test_groups_by_hand(rows, row_tokens, expected):
    found = best_groups(*tables(rows), 16, row_tokens)
    assert sets(found) == {(frozenset(group), blocks) for group, blocks in expected}


def best_by_brute_force(rows, block_size, row_tokens):
    """The largest net saving of disjoint nodes of the prefix tree, by recursion from the root."""

    def best(members, depth):
        width = min(len(rows[row]) for row in members)
        while depth < width and len({rows[row][depth] for row in members}) == 1:
            depth += 1
        own = (len(members) - 1) * depth * block_size - row_tokens * len(members)
        children = {}
        for row in members:
            if len(rows[row]) > depth:
                children.setdefault(rows[row][depth], []).append(row)
        return max(0, own, sum(best(child, depth) for child in children.values() if len(child) > 1))

    return best(list(range(len(rows))), 0) if rows else 0


@pytest.mark.parametrize("seed", range(60))
def test_no_grouping_by_common_prefix_saves_more(seed):
    rng = Random(seed)
    rows = [[rng.randint(1, 2) for _ in range(rng.randint(0, 6))] for _ in range(rng.randint(0, 9))]
    row_tokens = rng.choice([0, 3, 20])
    found = best_groups(*tables(rows), 4, row_tokens)
    assert sum(one.net_tokens for one in found) == best_by_brute_force(rows, 4, row_tokens)
    used = [row for one in found for row in one.group.rows]
    assert len(used) == len(set(used))
    for one in found:
        assert len({tuple(rows[row][: one.group.num_blocks]) for row in one.group.rows}) == 1
        assert all(len(rows[row]) >= one.group.num_blocks for row in one.group.rows)
        assert one.saved_tokens == (len(one.group.rows) - 1) * one.group.num_blocks * 4


@pytest.mark.parametrize("num_rows,no_more,pays", [(4, 512, 4096), (16, 512, 2048), (64, 256, 1024), (256, 256, 1024)])
def test_sharing_must_pay(num_rows, no_more, pays):
    """Shared tokens of Llama-3-8B's heads at which the plain kernel was faster, and the shared ones, on an H200."""
    rule = SharingRule(16, 4096)
    for tokens, expected in ((no_more, []), (pays, [Group(tuple(range(num_rows)), pays // 16)])):
        table = np.tile(np.arange(tokens // 16, dtype=np.int32), (num_rows, 1))
        assert rule.groups(table, np.full(num_rows, tokens // 16), most=16) == expected


def test_savings_are_counted_less_what_each_row_costs():
    rows = np.tile(np.arange(64, dtype=np.int32), (2, 1)), np.full(2, 64)
    saved = 1024 * 4096 - 2 * 8192
    assert SharingRule(16, 4096, saved, 8192).groups(*rows, most=16) == [Group((0, 1), 64)]
    assert SharingRule(16, 4096, saved + 1, 8192).groups(*rows, most=16) == []
    assert SharingRule(16, 4096, 0, 512 * 4096).groups(*rows, most=16) == []


def test_of_too_many_groups_those_that_save_most_are_taken():
    rows = [[n] * (1 + n) for n in range(5) for _ in range(2)]
    found = SharingRule(16, 1, **ALWAYS).groups(*tables(rows), most=2)
    assert [group.num_blocks for group in found] == [5, 4]


def looking(num_rows=4):
    table = BlockTable(num_rows, 8, 16)
    state = RowState(num_rows, table.device)
    return table, state, SharedRows(SharingRule(16, 1, **ALWAYS), table, state)


def test_rows_are_looked_at_when_they_change_and_only_full_blocks_count():
    table, state, shared = looking()
    table.add_row(0, [3, 4, 5])
    table.add_row(1, [3, 4, 6])
    state.cpu["seq_lens"][:2] = 33, 31  # the second row still writes into its second block
    shared.look(2)
    assert shared.groups == [Group((0, 1), 1)]
    assert state.cpu["members"].tolist() == [0, 1, 2, 3]
    assert state.cpu["groups"][:3].tolist() == [0, 2, 16]
    state.cpu["seq_lens"][:2] = 60, 58
    table.append_row(1, [7])
    shared.look(2)
    assert shared.groups == [Group((0, 1), 1)], "the rows are the same ones"
    table.swap_rows(0, 1)
    shared.look(2)
    assert shared.groups == [Group((0, 1), 2)]
    table.clear_row(1)
    shared.look(1)
    assert not shared


def test_without_a_rule_nothing_is_looked_at():
    table, state, _ = looking()
    shared = SharedRows(None, table, state)
    table.add_row(0, [3])
    table.add_row(1, [3])
    state.cpu["seq_lens"][:2] = 17
    shared.look(2)
    assert not shared
    assert not shared.can_pay(4)


def test_ready_for_what_can_pay():
    table, state, _ = looking()
    assert [SharedRows(SharingRule(16, 1, 300, 10), table, state).can_pay(n) for n in (1, 2, 3, 4)] == [0, 0, 0, 1]
    assert not SharedRows(SharingRule(16, 1, 0, 0, expected=False), table, state).can_pay(4)


# the executor -------------------------------------------------------------------------------------------------------


def alike(count=7, *, seed=11):
    """Prompts that start alike, two texts of 24 tokens between them; some are one text and no more."""
    rng = Random(seed)
    texts = [[rng.randrange(tiny.VOCAB) for _ in range(24)] for _ in range(2)]
    made = []
    for index in range(count):
        prompt = texts[index % 3 == 0] + [rng.randrange(tiny.VOCAB) for _ in range(rng.choice([0, 1, 4, 9]))]
        output = rng.randint(3, 24)
        content = TokenContent(prompt)
        made.append(Request(index, len(prompt), output + 3, oracle_output_tokens=output, content=content))
    return made


@pytest.fixture(scope="module")
def expected():
    """(greedy tokens, logits) of every request, recomputed."""
    return {r.request_id: tiny.recomputed(tiny.prompt_of(r), r.num_stop_tokens) for r in alike()}


class Logits:
    """Keeps what the executor shows."""

    def __init__(self):
        self.rows = {}

    def __call__(self, requests, logits):
        for request, row in zip(requests, logits, strict=True):
            self.rows.setdefault(request.request_id, []).append(row.clone())


def served(sharing, monkeypatch, *, block_size=4, slots=128, seqs=16):
    """The executor, the logits, the groups of each decode step, preemptions; waves, so that later prompts hit."""
    scheduler = tiny.scheduler_over("paged", slots, block_size, max_num_seqs=seqs, full_sequence_gate=False)
    logits, steps = Logits(), []
    executor = tiny.executor_over(scheduler.allocator, max_num_seqs=seqs, watch=logits, sharing=sharing)
    made = decode_step.AttentionMetadata

    def metadata(*args):
        steps.append(None if args[7] is None else list(executor.sharing.groups))
        return made(*args)

    monkeypatch.setattr(decode_step, "AttentionMetadata", metadata)
    requests, preemptions = alike(), 0
    for request in requests[:2]:
        scheduler.add(request)
    for request in [*requests[2:], *[None] * 400]:
        if request is not None:
            scheduler.add(request)
        if scheduler.running or scheduler.waiting:
            preemptions += len(step(scheduler, executor).batch.preempted)
    assert not scheduler.running
    return executor, logits, steps, preemptions


@pytest.mark.parametrize("block_size,slots,seqs", [(4, 512, 16), (1, 96, 16), (4, 80, 5), (16, 160, 16)])
def test_outputs_are_those_without_sharing(block_size, slots, seqs, expected, monkeypatch):
    rule = SharingRule(block_size, 1, **ALWAYS)
    executor, logits, steps, _ = served(rule, monkeypatch, block_size=block_size, slots=slots, seqs=seqs)
    assert any(steps), "no step shared anything"
    for name, (tokens, rows) in expected.items():
        assert executor.outputs[name] == tokens
        torch.testing.assert_close(torch.stack(logits.rows[name]), rows, rtol=1e-4, atol=1e-4)


def test_preempted_rows_leave_their_groups(expected, monkeypatch):
    executor, _, steps, preemptions = served(SharingRule(4, 1, **ALWAYS), monkeypatch, slots=72)
    assert preemptions > 0
    assert any(steps)
    assert {name: tokens for name, (tokens, _) in expected.items()} == executor.outputs


@pytest.mark.parametrize("sharing", [None, SharingRule(4, 1)], ids=["off", "does-not-pay"])
def test_where_it_is_off_or_does_not_pay_steps_are_plain(sharing, expected, monkeypatch):
    executor, _, steps, _ = served(sharing, monkeypatch)
    assert steps
    assert not any(steps)
    assert {name: tokens for name, (tokens, _) in expected.items()} == executor.outputs


@pytest.mark.skipif(tiny.ON_DEVICE, reason="kernels trust their tables")
def test_groups_that_are_wrong_are_seen(monkeypatch):
    """A planted fault: one block more than the rows have in common."""
    found = SharingRule.groups

    def one_more(self, table, num_blocks, most):
        return [Group(group.rows, group.num_blocks + 1) for group in found(self, table, num_blocks, most)]

    monkeypatch.setattr(SharingRule, "groups", one_more)
    with pytest.raises(ValueError, match="shared tokens in the first blocks of row"):  # the reference looks
        served(SharingRule(4, 1, **ALWAYS), monkeypatch)
