"""The engine's block table against plain lists: rows, widths, what a commit sends and what it leaves alone."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="the block table has a copy on the device")

import numpy as np  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from engine.core.slots import slot_of  # noqa: E402
from engine.worker import block_table as module  # noqa: E402
from engine.worker.block_table import BlockTable  # noqa: E402

ROWS, WIDTH = 5, 7
ids = st.integers(1, 10_000)
rows = st.integers(0, ROWS - 1)
actions = st.lists(
    st.one_of(
        st.tuples(st.just("add"), rows, st.lists(ids, max_size=WIDTH + 2)),
        st.tuples(st.just("change"), rows, st.lists(st.integers(1, 3), max_size=WIDTH + 2)),
        st.tuples(st.just("append"), rows, st.lists(ids, max_size=3)),
        st.tuples(st.just("each"), st.sets(rows), ids),
        st.tuples(st.just("move"), rows, rows),
        st.tuples(st.just("swap"), rows, rows),
        st.tuples(st.just("clear"), rows),
        st.tuples(st.just("commit"), st.integers(0, ROWS)),
    ),
    max_size=40,
)


def act(table: BlockTable, model: list[list[int]], action: tuple) -> None:
    """One action on both; what does not fit raises and changes nothing."""
    name, *args = action
    match name:
        case "add" | "append" | "change":
            row, blocks = args
            wanted = model[row] + blocks if name == "append" else blocks
            change = {"add": table.add_row, "append": table.append_row, "change": table.change_row}[name]
            if len(wanted) > WIDTH:
                before = table.cpu.copy()
                with pytest.raises(ValueError, match=f"row {row}: {len(wanted)} blocks do not fit"):
                    change(row, blocks)
                assert (table.cpu == before).all()
            else:
                change(row, blocks)
                model[row] = wanted
        case "each":
            chosen = sorted(row for row in args[0] if len(model[row]) < WIDTH)
            table.append_one_each(chosen, [args[1] + row for row in chosen])
            for row in chosen:
                model[row] = [*model[row], args[1] + row]
        case "move":
            source, target = args
            table.move_row(source, target)
            if source != target:
                model[target], model[source] = model[source], []
        case "swap":
            first, second = args
            table.swap_rows(first, second)
            model[first], model[second] = model[second], model[first]
        case "clear":
            table.clear_row(args[0])
            model[args[0]] = []
        case "commit":
            table.commit(args[0])
            for row in range(args[0]):
                assert table.gpu[row, : len(model[row])].tolist() == model[row]


@settings(max_examples=150, deadline=None)
@given(actions)
def test_both_sides_hold_what_plain_lists_hold(steps):
    table = BlockTable(ROWS, WIDTH, 4)
    model: list[list[int]] = [[] for _ in range(ROWS)]
    for action in steps:
        act(table, model, action)
        assert [table.cpu[row, : table.num_blocks[row]].tolist() for row in range(ROWS)] == model
    table.commit(ROWS)
    for row, blocks in enumerate(model):
        assert table.gpu[row, : len(blocks)].tolist() == blocks


@settings(max_examples=60, deadline=None)
@given(actions, st.integers(1, ROWS))
def test_what_is_staged_arrives_as_what_is_committed(steps, num_rows):
    committed, staged = BlockTable(ROWS, WIDTH, 4), BlockTable(ROWS, WIDTH, 4)
    models: tuple[list[list[int]], ...] = tuple([[] for _ in range(ROWS)] for _ in range(2))
    for action in steps:
        act(committed, models[0], action)
        act(staged, models[1], action)
        sent = committed.commit(num_rows), staged.stage(num_rows)
        assert sent[0] == sent[1]
        staged.send_staged()
        staged.send_staged()  # replayed: nothing changes
        assert torch.equal(committed.gpu, staged.gpu)


@settings(max_examples=60, deadline=None)
@given(actions)
def test_a_table_that_takes_what_another_sends_has_the_same_on_its_device(steps):
    leading, following = BlockTable(ROWS, WIDTH, 4), BlockTable(ROWS, WIDTH, 4)
    model: list[list[int]] = [[] for _ in range(ROWS)]
    for action in [*steps, ("commit", ROWS)]:
        if action[0] != "commit":
            act(leading, model, action)
            continue
        num_rows = action[1]
        entries = leading.due(num_rows)
        assert len(leading.due(num_rows).indices) == 0
        following.take(entries)
        for table in (leading, following):
            table.stage_entries(entries)
            table.send_staged()
        assert torch.equal(leading.gpu, following.gpu)
        rows = np.repeat(np.arange(num_rows), [len(blocks) for blocks in model[:num_rows]])
        places = np.array([place for blocks in model[:num_rows] for place in range(len(blocks))], np.int64)
        slots = [table.slot_mapping(rows, 4 * places + 1).tolist() for table in (leading, following)]
        assert slots[0] == slots[1]


def test_more_than_a_graph_has_room_for_is_sent_at_once():
    table = BlockTable(2, 600, 4)
    for row in range(2):
        table.add_row(row, [row + 1] * 600)
    assert table.stage(2) == 1200
    assert table.gpu.tolist() == [[1] * 600, [2] * 600]
    table.gpu.fill_(0)
    table.send_staged()
    assert not table.gpu.any()


def test_rows_behind_the_commit_are_left_alone_on_the_device():
    table = BlockTable(4, 8, 4)
    for row in range(4):
        table.add_row(row, [row + 1] * 3)
    table.gpu.fill_(-7)
    assert table.commit(2) == 6
    assert table.gpu[:2, :3].tolist() == [[1] * 3, [2] * 3]
    assert (table.gpu[2:] == -7).all()
    assert (table.gpu[:2, 3:] == -7).all()
    assert table.commit(4) == 6


def test_a_second_commit_sends_nothing_and_growth_sends_the_growth():
    table = BlockTable(4, 64, 16)
    table.add_row(0, list(range(1, 40)))
    assert table.commit(4) == 39
    assert table.commit(4) == 0
    table.append_row(0, [77])
    assert table.commit(4) == 1
    assert table.gpu[0, 39] == 77


@pytest.mark.parametrize("width", [16, 4_096])
def test_what_a_commit_sends_does_not_depend_on_the_width(width):
    table = BlockTable(8, width, 16)
    sent = []
    for row in range(8):
        table.add_row(row, [row + 1] * 10)
    sent.append(table.commit(8))
    table.append_one_each(range(8), range(8))
    sent.append(table.commit(8))
    assert sent == [80, 8]


def test_a_row_that_changes_at_its_end_is_not_sent_again():
    table = BlockTable(2, 64, 16)
    table.add_row(0, range(1, 41))
    assert table.commit(1) == 40
    before = table.num_changes
    table.change_row(0, [*range(1, 40), 99, 100])
    assert table.commit(1) == 2
    assert table.num_changes == before + 1
    table.change_row(0, [*range(1, 40), 99, 100])
    assert table.num_changes == before + 1
    table.change_row(0, [*range(1, 31)])
    assert table.commit(1) == 0
    assert table.num_changes == before + 2
    assert table.gpu[0, :30].tolist() == list(range(1, 31))


def test_more_than_one_upload_holds_goes_in_rounds(monkeypatch):
    monkeypatch.setattr(module, "PAIRS_AT_ONCE", 5)
    table = BlockTable(3, 8, 4)
    for row in range(3):
        table.add_row(row, [10 * row + index for index in range(8)])
    assert table.commit(3) == 24
    assert table.gpu.tolist() == [[10 * row + index for index in range(8)] for row in range(3)]


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_slots_are_those_of_one_token_at_a_time(data):
    size = data.draw(st.sampled_from([1, 3, 16]))
    table = BlockTable(4, 6, size)
    for row in range(4):
        table.add_row(row, data.draw(st.lists(ids, min_size=6, max_size=6)))
    tokens = data.draw(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 6 * size - 1)), min_size=1, max_size=20))
    of_rows, positions = (np.array(x, np.int64) for x in zip(*tokens, strict=True))
    slots = table.slot_mapping(of_rows, positions)
    flat = table.cpu.reshape(-1)
    assert slots.dtype == np.int64
    assert slots.tolist() == [slot_of(table.cpu[row].tolist(), position, size) for row, position in tokens]
    assert slots.tolist() == [flat[row * 6 + pos // size] * size + pos % size for row, pos in tokens]


@pytest.mark.parametrize("sizes", [(0, 1, 1), (1, 0, 1), (1, 1, 0), (1 << 16, 1 << 15, 16)])
def test_impossible_sizes_are_refused(sizes):
    with pytest.raises(ValueError, match=r"need \w+ of at least 1|2\^31"):
        BlockTable(*sizes)
