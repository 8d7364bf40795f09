"""The memory map for a terminal: one character a bucket of adjacent blocks."""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from string import ascii_lowercase, ascii_uppercase

import numpy as np
import pandas as pd

from engine.core.allocator import CACHED, FREE, NULL, SHARED
from experiments.figures.memory import Blocks, owners_at, snapshots

MAX_LINES = 16
LETTERS = ascii_uppercase + ascii_lowercase
SIGNS = {FREE: ".", CACHED: ",", SHARED: "#", NULL: "0"}
COLOURS = (31, 32, 33, 34, 35, 36, 91, 92, 93, 94, 95, 96)
"""ANSI foregrounds; the letter says the same without them."""


def memory_map_text(
    map_frame: pd.DataFrame, at_s: float, num_blocks: int, width: int = 64, *, colour: bool = False
) -> str:
    """The last snapshot at or before `at_s`: lines of `width` characters, each after its first block id, and a legend.

    A character stands for the owner of most blocks of its bucket: a letter for a request, `.` free, `,` free with its
    content kept, `#` shared. Letters are given in order of address, and again after 52 requests."""
    if width < 1 or num_blocks < 1:
        raise ValueError(f"a map needs positive sizes, got width={width}, num_blocks={num_blocks}")
    taken = snapshots(map_frame)
    if not taken:
        raise ValueError("the run has no snapshots of its pool; record some to see its map")
    time, regions = next((item for item in reversed(taken) if item[0] <= at_s), taken[0])
    owner = owners_at(regions, num_blocks)
    bucket = -(-num_blocks // (width * MAX_LINES))
    shown = [_most(owner[start : start + bucket]) for start in range(0, num_blocks, bucket)]
    letters = _letters(owner)
    digits = len(str(num_blocks))
    lines = []
    for start in range(0, len(shown), width):
        lines.append(f"{1 + start * bucket:>{digits}} {_cells(shown[start : start + width], letters, colour)}")
    place = 1 + [when for when, _ in taken].index(time)
    asked = f"asked for t = {at_s:g} s: the nearest stored snapshot before it, {place} of {len(taken)}"
    return "\n".join([*lines, _legend(time, owner, bucket, len(letters)), asked])


def _most(owners: Blocks) -> int:
    """The owner of most of these blocks, the first of equals."""
    return int(Counter(owners.tolist()).most_common(1)[0][0])


def _letters(owner: Blocks) -> dict[int, str]:
    holders = dict.fromkeys(int(who) for who in owner if who >= 0)
    return {who: LETTERS[index % len(LETTERS)] for index, who in enumerate(holders)}


def _cells(shown: list[int], letters: dict[int, str], colour: bool) -> str:
    order = {who: place for place, who in enumerate(letters)}
    text = ""
    for who, same in groupby(shown):
        cells = (SIGNS[who] if who in SIGNS else letters[who]) * len(list(same))
        text += f"\x1b[{COLOURS[order[who] % len(COLOURS)]}m{cells}\x1b[0m" if colour and who in order else cells
    return text


def _legend(time: float, owner: Blocks, bucket: int, num_holders: int) -> str:
    each = "1 block" if bucket == 1 else f"{bucket} blocks"
    free = np.isin(owner, (FREE, CACHED)).mean()
    reused = f", letters used again after {len(LETTERS)}" if num_holders > len(LETTERS) else ""
    return (
        f"t = {time:.3f} s, {each} a character, {free:.1%} free: letters are {num_holders} requests{reused}; "
        ". free  , free, content kept  # shared"
    )
