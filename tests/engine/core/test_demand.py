"""A load against a pool, by hand."""

import pytest

from engine.core.demand import Demand


def test_the_chapters_exercise():
    load = Demand(800, 256, 32)
    fit = load.fit(2457, 16)

    assert (load.tokens_each, load.tokens()) == (1056, 33_792)
    assert (fit.blocks_each, fit.blocks_needed, fit.fits) == (66, 2112, True)
    assert fit.used_frac == pytest.approx(0.8596, abs=5e-5)


@pytest.mark.parametrize("num_blocks,size,each", [(2457, 16, 1056), (100, 1, 7.5), (64, 256, 257), (5, 16, 200)])
def test_the_largest_number_fits_and_one_more_does_not(num_blocks, size, each):
    most = Demand(each - 1, 1).fit(num_blocks, size).largest_concurrency

    assert most == 0 or Demand(each - 1, 1, most).fit(num_blocks, size).fits
    assert not Demand(each - 1, 1, most + 1).fit(num_blocks, size).fits


def test_half_of_an_output_is_there_on_average():
    load = Demand(800, 256, 32)
    mean = sum(800 + done for done in range(257)) / 257

    assert load.mean_tokens_each == mean
    assert load.fit(2457, 16, load.mean_tokens_each).largest_concurrency == 42


def test_without_a_concurrency_only_the_largest_is_known():
    load = Demand(161.31, 337.99)
    fit = load.fit(984, 16)

    assert load.tokens() is None
    assert (fit.blocks_needed, fit.fits, fit.used_frac, fit.largest_concurrency) == (None, None, None, 30)


@pytest.mark.parametrize("numbers", [(0, 5, 1), (5, -1, 1), (5, 5, 0), (float("nan"), 5, 1), (float("inf"), 5, 1)])
def test_a_load_of_nothing_is_refused(numbers):
    with pytest.raises(ValueError, match="at least 1, got"):
        Demand(*numbers)
