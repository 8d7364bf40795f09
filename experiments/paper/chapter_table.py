"""The chapter's block table (S19, S20) on the engine's own: what goes to the device, and where tokens are written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from experiments.paper.chapter_sizes import BLOCK, claim
from experiments.paper.claims import Result, exact
from experiments.paper.tensors import all_not_here, without_torch

if TYPE_CHECKING:
    from engine.worker.block_table import BlockTable

NAMED: Final = {"S19": "rows of the block table that are copied to the device"}
NUM_ROWS, NUM_USED, BLOCKS_HELD = 256, 192, 40
"""Rows of the table, the rows 0 to n - 1 that run, and blocks of each."""
LENGTHS: Final = (2_048, 131_072)
NUM_GROWING: Final = NUM_USED // BLOCK
"""Rows that take a block in a steady step: one in sixteen."""
NUM_TRIALS: Final = 2000
GARBAGE: Final = -7


def judge() -> list[Result]:
    """S19, S20; without torch S19 says so."""
    lacking = without_torch()
    if lacking:
        return all_not_here(NAMED, "chapter", "chapter", lacking)
    return [*_stale(), _uploaded(), _slots()]


def _table(max_model_len: int = LENGTHS[0]) -> BlockTable:
    """Rows 0 to n - 1 with distinct blocks, on the device; the rest are nobody's."""
    from engine.worker.block_table import BlockTable

    table = BlockTable(NUM_ROWS, max_model_len // BLOCK, BLOCK)
    for row in range(NUM_USED):
        table.add_row(row, range(1 + row * BLOCKS_HELD, 1 + (row + 1) * BLOCKS_HELD))
    table.commit(NUM_USED)
    return table


def _stale() -> list[Result]:
    """S19: rows from n on hold garbage on the CPU: the device must not see it, and rows 0 to n - 1 be what they are."""
    table = _table()
    before = table.gpu[NUM_USED:].clone()
    for row in range(NUM_USED, NUM_ROWS):
        table.append_row(row, [GARBAGE] * BLOCKS_HELD)
    table.append_row(0, [9_999])
    table.commit(NUM_USED)
    behind = int((table.gpu[NUM_USED:] != before).sum())
    held = [int(count) for count in table.num_blocks[:NUM_USED]]
    differing = sum(
        int((table.gpu[row, :count].numpy() != table.cpu[row, :count]).sum()) for row, count in enumerate(held)
    )
    note = f"{NUM_USED} of {NUM_ROWS} rows are committed, one of them with a new block"
    return [
        exact(claim("S19/behind", "entries from row n on that a commit of n rows sends", 0, "entries"), behind, note),
        exact(claim("S19/inside", "entries of rows 0 to n - 1 not as on the CPU", 0, "entries"), differing, note),
    ]


def _uploaded() -> Result:
    """S19: what a steady step uploads, at the shortest and the longest model."""
    sent = [_steady_upload(length) for length in LENGTHS]
    made = claim(
        *(
            "S19/upload",
            f"entries a steady step uploads, max_model_len {LENGTHS[1]:,} less {LENGTHS[0]:,}",
            0,
            "entries",
        ),
        "deltas",
        confidence="R",
    )
    whole = [4 * NUM_USED * length // BLOCK for length in LENGTHS]
    note = (
        f"{sent[0]} and {sent[1]} entries of 8 bytes at {NUM_USED} requests; whole rows would be {whole[0]:,} and "
        f"{whole[1]:,} bytes"
    )
    return exact(made, sent[1] - sent[0], note)


def _steady_upload(max_model_len: int) -> int:
    """Entries that the device is sent when one request in sixteen takes a block."""
    table = _table(max_model_len)
    table.append_one_each(range(NUM_GROWING), range(10_000, 10_000 + NUM_GROWING))
    before = table.num_uploaded
    table.commit(NUM_USED)
    assert bool((table.gpu[:NUM_GROWING, BLOCKS_HELD].numpy() == range(10_000, 10_000 + NUM_GROWING)).all())
    return table.num_uploaded - before


def _slots() -> Result:
    """S20: the engine's slot mapping of a step against the arithmetic, token by token."""
    import numpy as np

    rng = np.random.default_rng(0)
    table = _table()
    rows = rng.integers(0, NUM_USED, NUM_TRIALS)
    positions = rng.integers(0, BLOCKS_HELD * BLOCK, NUM_TRIALS)
    flat, width = table.cpu.reshape(-1).tolist(), table.max_blocks
    pairs = list(zip(rows.tolist(), positions.tolist(), strict=True))
    scalar = [flat[row * width + pos // BLOCK] * BLOCK + pos % BLOCK for row, pos in pairs]
    ours = table.slot_mapping(rows, positions).tolist()
    return exact(
        claim("S20/worker_differences", "slots of the engine's table that differ from scalar ones", 0, "tokens"),
        sum(a != b for a, b in zip(ours, scalar, strict=True)),
        f"{NUM_TRIALS:,} random tokens of {NUM_USED} rows",
    )
