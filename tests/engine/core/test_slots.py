"""Slot arithmetic: by hand, at the edges of a block, and the vector form against the scalar one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.slots import slot_mapping, slot_of


@pytest.mark.parametrize("position,slot", [(0, 112), (15, 127), (16, 48), (47, 207), (48, 400), (50, 402), (63, 415)])
def test_a_position_maps_to_its_slot(position, slot):
    assert slot_of([7, 3, 12, 25], position, 16) == slot


@pytest.mark.parametrize("position", [-1, 64])
def test_a_position_outside_the_table_is_refused(position):
    with pytest.raises(ValueError, match="outside"):
        slot_of([7, 3, 12, 25], position, 16)
    with pytest.raises(ValueError, match="outside"):
        slot_mapping(np.array([[7, 3, 12, 25]]), np.array([0]), np.array([position]), 16)


def test_a_block_needs_a_slot():
    with pytest.raises(ValueError, match="block_size"):
        slot_of([1], 0, 0)
    with pytest.raises(ValueError, match="block_size"):
        slot_mapping(np.array([[1]]), np.array([0]), np.array([0]), 0)


def test_no_tokens_have_no_slots():
    empty = np.zeros(0, np.int64)
    assert slot_mapping(np.ones((2, 3), np.int32), empty, empty, 16).shape == (0,)


@given(st.integers(1, 33), st.integers(1, 6), st.integers(1, 9), st.randoms(use_true_random=False))
def test_the_vector_form_equals_the_scalar_one(block_size, num_rows, width, rng):
    ids = rng.sample(range(1, 1000), num_rows * width)
    tables = np.array(ids, np.int32).reshape(num_rows, width)
    rows = np.array([rng.randrange(num_rows) for _ in range(40)], np.int32)
    positions = np.array([rng.randrange(width * block_size) for _ in range(40)], np.int32)

    slots = slot_mapping(tables, rows, positions, block_size)

    scalar = [slot_of(tables[r].tolist(), p, block_size) for r, p in zip(rows, positions.tolist(), strict=True)]
    assert slots.tolist() == scalar


@given(st.integers(1, 17), st.integers(1, 8), st.integers(1, 8), st.randoms(use_true_random=False))
def test_distinct_tokens_get_distinct_slots(block_size, num_rows, width, rng):
    tables = np.array(rng.sample(range(1, 1000), num_rows * width), np.int32).reshape(num_rows, width)
    rows, positions = (grid.ravel() for grid in np.mgrid[:num_rows, : width * block_size])

    slots = slot_mapping(tables, rows, positions, block_size)

    assert len(set(slots.tolist())) == len(slots)
