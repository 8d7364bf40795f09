"""Placements: how extents are chosen, split, joined and refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.placement import Buddy, Holes, make_placement

laws = settings(max_examples=60, deadline=None, derandomize=True, database=None)


def test_buddies_tile_a_pool_of_984_as_the_artifact_does():
    tiles = [units for _, units in Buddy(984, largest=128).holes()]
    assert tiles == [128] * 7 + [64, 16, 8]


def test_a_pool_smaller_than_the_largest_buddy_still_tiles():
    space = Buddy(5, largest=128)
    assert space.holes() == [(0, 4), (4, 1)]
    assert space.largest_ever() == 4


def test_buddies_round_up_to_powers_of_two():
    space = Buddy(64, largest=64)
    assert [space.round_up(units) for units in (1, 2, 3, 5, 25, 33)] == [1, 2, 4, 8, 32, 64]
    assert space.take(25) == (0, 32)
    assert space.num_free == 32


def test_buddies_of_one_size_are_served_last_in_first_out():
    space = Buddy(8, largest=1)
    assert [space.take(1) for _ in range(3)] == [(7, 1), (6, 1), (5, 1)]
    space.give(7, 1)
    space.give(5, 1)
    assert [space.take(1) for _ in range(2)] == [(5, 1), (7, 1)]


def test_a_split_buddy_joins_again_when_both_halves_are_free():
    space = Buddy(16, largest=16)
    parts = [space.take(4) for _ in range(4)]
    assert space.largest() == 0
    for start, granted in (parts[1], parts[2]):
        space.give(start, granted)
    assert space.largest() == 4, "neighbours that are not buddies do not join"
    for start, granted in (parts[0], parts[3]):
        space.give(start, granted)
    assert space.holes() == [(0, 16)]


def test_buddies_never_join_across_tiles():
    space = Buddy(24, largest=8)
    extents = [space.take(8) for _ in range(3)]
    for start, granted in extents:
        space.give(start, granted)
    assert space.holes() == [(0, 8), (8, 8), (16, 8)]


def test_a_buddy_grows_into_its_right_half_only():
    space = Buddy(16, largest=16)
    left, right = space.take(4), space.take(4)
    assert (left, right) == ((0, 4), (4, 4))
    assert space.grow(4, 4, 5) is None, "the buddy of the right half lies to its left"
    assert space.grow(0, 4, 5) is None, "the right half is taken"
    space.give(4, 4)
    assert space.grow(0, 4, 9) == 16
    space.give(0, 16)
    assert [space.take(4), space.take(4)] == [(0, 4), (4, 4)]
    space.give(0, 4)
    assert space.grow(4, 4, 5) is None, "free, but to its left"
    assert space.grow(4, 4, 4) == 4
    assert space.num_free == 12


def test_a_growth_that_does_not_suffice_is_undone():
    space = Buddy(16, largest=16)
    assert [space.take(4), space.take(8)] == [(0, 4), (8, 8)]
    before = space.holes()
    assert space.grow(0, 4, 16) is None
    assert space.holes() == before
    assert space.num_free == 4


def holes_of(best: bool) -> Holes:
    """Free: 5 units at 2, 3 units at 9, 8 units at 14; everything else of 22 taken."""
    space = Holes(22, best=best)
    space.take(22)
    for start, units in ((2, 5), (9, 3), (14, 8)):
        space.give(start, units)
    return space


def test_first_fit_takes_the_lowest_hole_and_best_fit_the_tightest():
    assert holes_of(best=False).take(3) == (2, 3)
    assert holes_of(best=True).take(3) == (9, 3)
    assert holes_of(best=True).take(4) == (2, 4)


def test_best_fit_takes_the_lowest_of_equal_holes():
    space = Holes(10, best=True)
    space.take(10)
    for start in (6, 1):
        space.give(start, 2)
    assert space.take(2) == (1, 2)


def test_a_returned_extent_joins_the_holes_on_both_sides():
    space = holes_of(best=False)
    space.give(7, 2)
    assert space.holes() == [(2, 10), (14, 8)]
    assert space.largest() == 10


def test_an_extent_grows_only_into_the_hole_behind_it():
    space = holes_of(best=False)
    assert space.grow(0, 2, 8) is None, "the hole behind is too short"
    assert space.grow(7, 2, 5) == 5
    assert space.grow(12, 2, 3) == 3
    assert space.holes() == [(2, 5), (15, 7)]


@pytest.mark.parametrize("units,slid,left", [(8, (2, 8), [(10, 2)]), (9, (2, 9), [(11, 1)]), (10, (2, 10), [])])
def test_an_extent_slides_to_the_low_end_of_the_free_space_around_it(units, slid, left):
    space = Holes(14, best=False)
    space.take(14)
    space.give(2, 5)
    space.give(9, 3)
    assert space.slide(7, 2, 11) is None, "too short with both holes"
    assert space.slide(0, 2, 3) is None, "no hole before it"
    assert space.slide(7, 2, units) == slid
    assert (space.holes(), space.num_free) == (left, sum(size for _, size in left))


def test_a_slide_may_leave_a_part_of_the_extent_to_its_owner():
    space = Holes(8, best=False)
    space.take(8)
    space.give(0, 3)
    assert space.slide(3, 3, 4) == (0, 4)
    assert space.holes() == []
    space.give(4, 2)
    assert space.holes() == [(4, 2)]


def test_buddies_slide_by_joining_on_both_sides():
    space = Buddy(16, largest=16)
    left, mover, *_ = (space.take(2) for _ in range(4))
    assert mover == (2, 2)
    assert space.slide(2, 2, 3) is None, "the left half is taken"
    space.give(*left)
    assert space.slide(2, 2, 5) is None, "the half after the next is taken"
    assert space.slide(2, 2, 3) == (0, 4)
    assert space.num_free == 8


def test_an_unknown_fit_is_named():
    with pytest.raises(ValueError, match="worst-fit"):
        make_placement("worst-fit", 8, largest=8)


@pytest.mark.parametrize("name", ["first-fit", "best-fit", "buddy"])
@given(data=st.data(), units=st.integers(1, 100), largest=st.integers(1, 64))
@laws
def test_extents_and_holes_tile_the_space_and_join_when_all_is_returned(name, data, units, largest):
    space = make_placement(name, units, largest=largest)
    new, held = space.holes(), []
    for _ in range(data.draw(st.integers(0, 30))):
        if held and data.draw(st.booleans()):
            space.give(*held.pop(data.draw(st.integers(0, len(held) - 1))))
        else:
            wanted = data.draw(st.integers(1, units))
            fits = space.round_up(wanted) <= space.largest()
            taken = space.take(wanted)
            assert (taken is not None) == fits
            if taken:
                assert taken[1] == space.round_up(wanted)
                held.append(taken)
        position = 0
        for start, size in sorted(held + space.holes()):
            assert start == position
            position += size
        assert position == units
        assert space.num_free == units - sum(size for _, size in held)
    for extent in held:
        space.give(*extent)
    assert space.holes() == new
