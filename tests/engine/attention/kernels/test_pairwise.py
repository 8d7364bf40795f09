"""The rows of the GPU grid meet in every pair."""

import itertools

from tests.engine.attention.kernels import test_gpu_grid as grid
from tests.engine.attention.kernels.pairwise import pairwise

FACTORS = {"a": (1, 2, 3), "b": ("x", "y"), "c": (1, 2, 3, 4), "d": (True, False)}


def test_every_two_values_of_two_factors_meet():
    rows = pairwise(FACTORS)
    for one, two in itertools.combinations(FACTORS, 2):
        assert {(row[one], row[two]) for row in rows} == set(itertools.product(FACTORS[one], FACTORS[two]))


def test_the_rows_are_few():
    """No fewer than the two largest factors' product; the full product would be 48."""
    assert 12 <= len(pairwise(FACTORS)) <= 16


def test_every_pair_of_factors_is_in_the_gpu_grids():
    for rows in (grid.DECODE, grid.PREFILL):
        for one, two in itertools.combinations(grid.FACTORS, 2):
            met = {(row[one], row[two]) for row in rows}
            assert met == set(itertools.product(grid.FACTORS[one], grid.FACTORS[two]))
