"""Inputs of decode steps made on the device: kernel in Triton's interpreter and torch alike, by hand and by law."""

import pytest
import torch

from engine.core.slots import slot_mapping
from engine.worker.kernels.launch import launch_prepare, launch_scatter
from engine.worker.kernels.prepare import prepare_decode
from engine.worker.kernels.scatter import scatter_int32, scatter_reference

WAYS = [launch_prepare, prepare_decode]
GARBAGE = (2**31 - 1, -7, 2**30 + 5)
ROWS, WIDTH, CANARY = 200, 7, -99


def record(block_size, num_rows, seed=0):
    """A record of ROWS rows of which num_rows are in use; the rest is garbage that no address survives."""
    generator = torch.Generator().manual_seed(seed)
    table = torch.randint(0, 2**31 - 1, (ROWS, WIDTH), generator=generator, dtype=torch.int32)
    tokens = torch.randint(0, 150_000, (ROWS,), generator=generator, dtype=torch.int32)
    lens = torch.randint(0, WIDTH * block_size, (ROWS,), generator=generator, dtype=torch.int32)
    edges = torch.tensor([0, block_size - 1, block_size, WIDTH * block_size - 1], dtype=torch.int32)
    lens[:4] = edges
    for tensor in (table, tokens, lens):
        behind = tensor[num_rows:]
        behind.copy_(torch.tensor(GARBAGE, dtype=torch.int32).repeat(behind.numel())[: behind.numel()].view_as(behind))
    return {
        "last_tokens": tokens,
        "seq_lens": lens,
        "block_table": table,
        "num_rows": torch.tensor([num_rows, 5])[:1].int(),
    }


def outputs(batch):
    """Views of [batch] of longer buffers, whose other entries are canaries."""
    kinds = {"ids": torch.int64, "positions": torch.int64, "slots": torch.int64, "step_lens": torch.int32}
    buffers = {name: torch.full((batch + 3,), CANARY, dtype=dtype) for name, dtype in kinds.items()}
    return buffers, {name: buffer[:batch] for name, buffer in buffers.items()}


def run(way, rows, batch, block_size):
    buffers, views = outputs(batch)
    way(**rows, **views, block_size=block_size)
    for buffer in buffers.values():
        assert (buffer[batch:] == CANARY).all()
    return views


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "block_size,num_rows,batch", [(1, 5, 8), (16, 130, 136), (24, 5, 5), (256, 0, 3), (16, 4, 200), (24, 9, 4)]
)
def test_every_row_in_use_feeds_its_last_token_and_padding_goes_nowhere(way, block_size, num_rows, batch):
    rows, before = record(block_size, num_rows), record(block_size, num_rows)
    made = run(way, rows, batch, block_size)
    used = min(num_rows, batch)
    lens = before["seq_lens"].long()
    assert torch.equal(made["ids"][:used], before["last_tokens"][:used].long())
    assert torch.equal(made["positions"][:used], lens[:used])
    by_host = slot_mapping(before["block_table"].numpy(), torch.arange(used).numpy(), lens[:used].numpy(), block_size)
    assert made["slots"][:used].tolist() == by_host.tolist()
    assert torch.equal(made["step_lens"][:used].long(), lens[:used] + 1)
    for name, padding in (("ids", 0), ("positions", 0), ("slots", -1), ("step_lens", 0)):
        assert (made[name][used:] == padding).all(), name
    lens[:used] += 1
    assert torch.equal(rows["seq_lens"].long(), lens)
    for name in ("last_tokens", "block_table", "num_rows"):
        assert torch.equal(rows[name], before[name]), name


@pytest.mark.parametrize("way", WAYS)
def test_steps_walk_through_every_slot_of_a_row_in_order(way):
    rows = record(3, 2)
    rows["seq_lens"][:2] = 0
    seen = torch.stack([run(way, rows, 2, 3)["slots"].clone() for _ in range(3 * WIDTH)], 1)
    expected = rows["block_table"][:2].long()[:, :, None] * 3 + torch.arange(3)
    assert torch.equal(seen, expected.flatten(1))


def test_a_step_of_no_rows_changes_nothing():
    rows = record(16, 5)
    run(prepare_decode, rows, 0, 16)
    assert torch.equal(rows["seq_lens"], record(16, 5)["seq_lens"])


@pytest.mark.parametrize(
    "change,message",
    [
        ({"ids": torch.zeros(8, dtype=torch.int32)}, "ids: expected contiguous int64"),
        ({"slots": torch.zeros(7, dtype=torch.int64)}, r"slots: expected contiguous int64 \[8\]"),
        ({"step_lens": torch.zeros(8, dtype=torch.int64)}, "step_lens: expected contiguous int32"),
        ({"positions": torch.zeros(16, dtype=torch.int64)[::2]}, "positions: expected contiguous int64"),
        ({"num_rows": torch.zeros(0, dtype=torch.int32)}, r"num_rows: expected contiguous int32 \[1\]"),
        ({"seq_lens": torch.zeros(3, dtype=torch.int32)}, r"seq_lens: expected contiguous int32 \[200\]"),
        ({"block_table": torch.zeros(200, 14, dtype=torch.int32)[:, ::2]}, "block_table: expected contiguous"),
        ({"block_table": torch.zeros(4, 7, dtype=torch.int32)}, "ids: expected at most the 200 rows .* the 4 of"),
        ({"block_size": 0}, "block_size: expected at least 1, got 0"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_written(change, message):
    rows, (_, made) = record(16, 5), outputs(8)
    given = {**rows, **made, "block_size": 16} | change
    with pytest.raises(ValueError, match=message):
        prepare_decode(**given)
    assert torch.equal(rows["seq_lens"], record(16, 5)["seq_lens"])
    assert (made["positions"] == CANARY).all()


@pytest.mark.parametrize("way", [launch_scatter, scatter_reference, scatter_int32])
@pytest.mark.parametrize("size,room,count", [(40, 9, 9), (3000, 2100, 1500), (5, 8, 3)])
def test_pairs_land_where_they_say_and_nothing_else_changes(way, size, room, count):
    generator = torch.Generator().manual_seed(size)
    target = torch.randint(0, 1000, (size,), generator=generator, dtype=torch.int32)
    pairs = torch.stack((torch.randperm(size, generator=generator).repeat(2)[:room], torch.arange(room) - 7)).int()
    expected = target.tolist()
    for index, value in zip(*pairs[:, :count].tolist(), strict=True):
        expected[index] = value
    way(target, pairs, count)
    assert target.tolist() == expected


def test_no_pairs_change_nothing():
    target = torch.arange(4, dtype=torch.int32)
    scatter_int32(target, torch.zeros(2, 0, dtype=torch.int32), 0)
    assert target.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "change,message",
    [
        ({"target_flat": torch.empty(2**31, dtype=torch.int32, device="meta")}, "fewer than 2\\^31 elements"),
        ({"target_flat": torch.zeros(4, dtype=torch.int64)}, "target_flat: expected contiguous int32"),
        ({"target_flat": torch.zeros(2, 2, dtype=torch.int32)}, r"target_flat: expected contiguous int32 \[4\]"),
        ({"pairs": torch.zeros(3, 2, dtype=torch.int32)}, r"pairs: expected \[2, M\]"),
        ({"count": 3}, "M of at least count=3, got int32"),
        ({"count": -1}, "M of at least count=-1"),
        ({"pairs": torch.zeros(2, 2)}, "pairs: expected contiguous int32"),
        ({"pairs": torch.zeros(2, 4, dtype=torch.int32)[:, ::2]}, "pairs: expected contiguous int32"),
    ],
)
def test_impossible_pairs_are_refused(change, message):
    good = {"target_flat": torch.zeros(4, dtype=torch.int32), "pairs": torch.zeros(2, 2, dtype=torch.int32), "count": 2}
    with pytest.raises(ValueError, match=message):
        scatter_int32(**good | change)
