"""Packed rows and integers: what comes out is what went in, exactly."""

from __future__ import annotations

import random

import numpy as np
import pytest

from sim.int_log import PACK, IntLog, exact_sum, packed
from sim.metrics import Backlog
from sim.row_store import PACK_ROWS, STATUSES, RowStore
from sim.rows import RequestRow

HUGE = 1 << 70
"""A picosecond that 64 bits do not hold."""


def rows_of(count: int, seed: int = 0, largest: int = 1 << 62) -> list[RequestRow]:
    rng = random.Random(seed)
    ids = rng.sample(range(count), count)
    return [
        RequestRow(index, rng.choice(STATUSES), *(rng.choice((-1, rng.randrange(largest))) for _ in range(13)))
        for index in ids
    ]


def stored(rows: list[RequestRow]) -> RowStore:
    store = RowStore()
    for row in rows:
        store.append(row)
    return store


@pytest.mark.parametrize("count", [0, 1, PACK_ROWS - 1, PACK_ROWS, PACK_ROWS + 1, 3 * PACK_ROWS + 7])
@pytest.mark.parametrize("largest", [1 << 20, 1 << 62, HUGE])
def test_a_store_is_the_list_of_its_rows(count, largest):
    rows = rows_of(count, largest=largest)
    store = stored(rows)

    assert len(store) == count
    assert list(store) == rows
    assert store == rows
    assert rows == store
    store.sort()
    assert store == sorted(rows)
    assert [type(value) for row in store[:1] for value in row] == [int, str, *[int] * 13][: 15 * min(count, 1)]
    for name in ("arrival", "finish", "num_recomputed_tokens"):
        assert store.column(name).tolist() == [getattr(row, name) for row in sorted(rows)]
    assert store.statuses().tolist() == [row.status for row in sorted(rows)]


def test_single_rows_and_slices_are_those_of_the_list():
    rows = rows_of(PACK_ROWS + 5)
    store = stored(rows)

    assert [store[index] for index in (0, 1, -1, PACK_ROWS, -PACK_ROWS)] == [
        rows[index] for index in (0, 1, -1, PACK_ROWS, -PACK_ROWS)
    ]
    assert store[3:9:2] == rows[3:9:2]
    with pytest.raises(IndexError):
        store[len(rows)]


def test_rows_that_differ_anywhere_are_not_equal():
    rows = rows_of(40)
    store = stored(rows)
    other = [*rows[:-1], rows[-1]._replace(finish=rows[-1].finish + 1)]

    assert store != other
    assert store != rows[:-1]
    assert store != [*rows[:-1], rows[-1]._replace(status=next(s for s in STATUSES if s != rows[-1].status))]


def test_rows_of_equal_id_keep_their_order():
    rows = rows_of(30)
    store = stored([*rows, rows[3]._replace(priority=99)])
    store.sort()
    same = [row for row in store if row.request_id == rows[3].request_id]

    assert same == [rows[3], rows[3]._replace(priority=99)]


@pytest.mark.parametrize("largest", [100, 1 << 62, HUGE])
@pytest.mark.parametrize("count", [0, 5, PACK, 2 * PACK + 100])
def test_integers_are_kept_and_summed_exactly(count, largest):
    rng = random.Random(count)
    values = [rng.randrange(largest) for _ in range(count)]
    log = IntLog()
    for value in values:
        log.append(value)

    assert (len(log), list(log), log.sum()) == (count, values, sum(values))
    assert log.sorted().tolist() == sorted(values)
    assert exact_sum(packed(values)) == sum(values)
    assert exact_sum(np.full(PACK, (1 << 63) - 1)) == PACK * ((1 << 63) - 1)


@pytest.mark.parametrize("scale", [1, 1 << 50, HUGE])
def test_a_backlog_is_the_sum_of_waits(scale):
    rng = random.Random(1)
    waits = [(start, start + rng.randrange(50)) for start in (rng.randrange(4_000) for _ in range(2_500))]
    starts, ends = IntLog(), IntLog()
    for start, end in waits:
        starts.append(scale * start)
        ends.append(scale * end)
    backlog = Backlog(starts, ends)

    for time in (0, 1, 777, 2_000, 3_999, 5_000):
        waited = sum(max(0, min(end, time) - start) for start, end in waits)
        assert backlog.until(scale * time) == scale * waited
        assert backlog.at(scale * time) == sum(start <= time < end for start, end in waits)
