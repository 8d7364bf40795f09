"""The specification of sampling: its random numbers, its distribution, its filters, and what it does with bad rows."""

import itertools

import pytest
import torch

from engine.model.sampling import gumbel, mask_filtered, philox, sample, uniforms
from tests.engine.model.sampled import chi_square, params

DRAWS = 20_000
LOGITS = torch.tensor([1.0, -2.0, 0.5, 3.0, -torch.inf, 2.5, 0.0, 1.5])


def words(*values):
    return tuple(torch.tensor([value]) for value in values)


@pytest.mark.parametrize(
    "counter,key,expected",
    [
        ((0, 0, 0, 0), 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, -1, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            0x299F31D0A4093822,
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_words_that_its_authors_published(counter, key, expected):
    """Known answers of Random123's `kat_vectors`, philox4x32 10."""
    assert tuple(int(word) for word in philox(words(*counter), torch.tensor([key]))) == expected


def test_uniform_numbers_are_uniform_and_never_one():
    drawn = uniforms(torch.arange(50), torch.arange(50) * 7, 4001)
    assert drawn.shape == (50, 4001)
    assert drawn.min() >= 0
    assert drawn.max() < 1
    assert chi_square((drawn * 64).long().flatten(), torch.full((64,), 1 / 64)) < 1
    assert gumbel(torch.tensor([0.0, 1 - 2**-24])).isfinite().all()


def test_every_seed_and_position_has_its_own_numbers_and_their_place_in_the_batch_has_none():
    seeds = torch.tensor([0, 0, 1, 1, 2**63 - 1, -(2**63), 0])
    positions = torch.tensor([0, 1, 0, 1, 5, 5, 2**31])
    drawn = uniforms(seeds, positions, 40)
    for first, second in itertools.combinations(range(len(seeds)), 2):
        assert not (drawn[first] == drawn[second]).any()
    assert torch.equal(uniforms(seeds.flip(0), positions.flip(0), 40).flip(0), drawn)
    assert torch.equal(uniforms(seeds, positions, 13), drawn[:, :13])


@pytest.mark.parametrize("vary", ["seed", "position"])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_tokens_have_the_probabilities_of_the_softmax(temperature, vary):
    numbers, still = torch.arange(DRAWS), torch.full((DRAWS,), 11)
    seeds, positions = (numbers, still) if vary == "seed" else (still, numbers)
    rows = params(torch.full((DRAWS,), temperature), seeds)
    tokens = sample(LOGITS.expand(DRAWS, -1), rows, positions)
    assert chi_square(tokens, (LOGITS / temperature).softmax(0)) < 1
    assert chi_square(tokens, (LOGITS / (temperature * 1.1)).softmax(0)) > 1, "the test would not notice"


def test_successive_tokens_of_a_request_do_not_know_each_other():
    logits = torch.zeros(DRAWS, 4)
    tokens = sample(logits, params(torch.ones(DRAWS), torch.full((DRAWS,), 5)), torch.arange(DRAWS))
    for distance in (1, 2, 16):
        pairs = tokens[:-distance] * 4 + tokens[distance:]
        assert chi_square(pairs, torch.full((16,), 1 / 16)) < 1


def test_a_token_depends_on_its_row_alone():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(9, 101, generator=generator)
    rows = params([0.0, 1.0, 0.3] * 3, torch.arange(9) % 4, [0, 0, 5] * 3, [1.0, 0.9, 1.0] * 3)
    positions = torch.arange(9) * 3
    tokens = sample(logits, rows, positions)
    assert tokens.dtype == torch.int32
    for row in range(9):
        alone = params(rows.temperature[row : row + 1], rows.seeds[row : row + 1], rows.top_k[row : row + 1].tolist())
        alone = alone if rows.top_p[row] == 1 else params([1.0], rows.seeds[row : row + 1], 0, [0.9])
        assert sample(logits[row : row + 1], alone, positions[row : row + 1]) == tokens[row]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_temperature_zero_takes_the_largest_and_the_lowest_id_of_equals(dtype):
    logits = torch.tensor([[0.0, 5.0, 5.0, 1.0], [7.0, 7.0, 7.0, 7.0], [-1.0, -torch.inf, -3.0, -0.5]], dtype=dtype)
    assert sample(logits, params([0.0, 0.0, 9e-6]), torch.arange(3)).tolist() == [1, 0, 3]
    cold = params(torch.full((3,), 2e-5), top_k=2)
    assert sample(logits, cold, torch.arange(3)).tolist()[2] == 3


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_what_is_no_number_is_never_picked_and_a_row_without_any_gives_token_zero(temperature):
    nan, inf = torch.nan, torch.inf
    logits = torch.tensor(
        [
            [nan, -inf, 2.0, nan],
            [nan, nan, nan, nan],
            [-inf, -inf, -inf, -inf],
            [nan, -inf, -inf, nan],
            [1.0, inf, nan, inf],
            [nan, -1e30, nan, nan],
        ]
    )
    expected = [2, 0, 0, 0, 1, 1]
    for top_k, top_p in ((0, 1.0), (3, 1.0), (0, 0.5), (2, 0.9)):
        rows = params([temperature] * 6, top_k=top_k, top_p=top_p)
        for start in range(5):
            tokens = sample(logits, rows, start + torch.arange(6))
            assert tokens.tolist() == expected, (top_k, top_p)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_top_k_keeps_the_k_largest_and_all_where_it_is_off(dtype):
    logits = torch.randn(5, 300, generator=torch.Generator().manual_seed(1)).to(dtype)  # bfloat16: many equal ones
    top_k = [0, 1, 7, 299, 1000]
    masked = mask_filtered(logits, params([1.0, 0.0, 0.2, 5.0, 1.0], top_k=top_k))
    assert masked.dtype == dtype
    for row, count in enumerate(top_k):
        kept = masked[row] > -torch.inf
        assert kept.sum() == min(count or 300, 300)
        assert torch.equal(masked[row][kept], logits[row][kept])
        if not kept.all():
            least, most = logits[row][kept].min(), logits[row][~kept].max()
            assert least >= most
            equal = (logits[row] == least).nonzero()[:, 0]
            assert (kept[equal].int().diff() <= 0).all(), "of equal ones the lower ids"


@pytest.mark.parametrize("temperature", [0.7, 1.0, 2.0])
def test_top_p_keeps_the_fewest_tokens_that_reach_p(temperature):
    logits = torch.randn(6, 200, generator=torch.Generator().manual_seed(2)) * 2
    top_p = [1.0, 0.9, 0.5, 0.05, 1e-9, 0.999]
    kept = mask_filtered(logits, params([temperature] * 6, top_p=top_p)) > -torch.inf
    probabilities = (logits.double() / temperature).softmax(-1)
    assert kept[0].all()
    for row in range(1, 6):
        inside = probabilities[row][kept[row]]
        assert inside.sum() >= top_p[row] - 1e-6
        assert inside.sum() - inside.min() < top_p[row] + 1e-6
        assert inside.min() >= probabilities[row][~kept[row]].max()


def test_top_p_counts_what_top_k_leaves_and_tokens_follow_what_both_leave():
    rows = params(torch.full((DRAWS,), 0.8), top_k=4, top_p=0.85)
    tokens = sample(LOGITS.expand(DRAWS, -1), rows, torch.zeros(DRAWS, dtype=torch.int64))
    order = LOGITS.argsort(descending=True)[:4]
    of_four = (LOGITS[order] / 0.8).softmax(0)
    count = int((of_four.cumsum(0) < 0.85).sum()) + 1
    assert count < 4, "top-p has something to take away"
    expected = torch.zeros(8)
    expected[order[:count]] = of_four[:count] / of_four[:count].sum()
    assert chi_square(tokens, expected) < 1


def test_filters_that_are_off_change_nothing():
    logits = torch.randn(3, 50)
    rows = params([0.0, 1.0, 2.0])
    assert not rows.filtered
    assert torch.equal(mask_filtered(logits, rows), logits)
    assert params([1.0, 1.0], top_k=[0, 3]).filtered
    assert params([1.0, 1.0], top_p=[1.0, 0.5]).filtered
    first = params([1.0, 1.0], top_k=[0, 3]).rows(1)
    assert len(first.temperature) == 1
    assert not first.filtered
