"""Fused sampling in Triton's interpreter: the specification's tokens, from the same random bits."""

import pytest
import torch

from engine.model.kernels import sample as kernels
from engine.model.kernels.sample import TILE, cut, sample_fused
from engine.model.sampling import gumbel, mask_filtered, sample, uniforms
from tests.engine.model.kernels.drawn import (
    drawn_by_triton,
    gumbel_by_triton,
    gumbel_in_float64,
    tokens_drawn,
    uniform_numbers,
)
from tests.engine.model.sampled import params

TEMPERATURES = [0.0, 1.0, 0.3, 5.0, 1e-5, 0.0]
SEEDS = [0, 1, -3, 2**62, -(2**63), 2**63 - 1]
POSITIONS = torch.tensor([0, 1, 77, 8191, 131_071, 2**31])


def logits_of(num_seqs, vocab_size, dtype, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(num_seqs, vocab_size, generator=generator) * 3).to(dtype)


def test_the_specification_draws_the_bits_that_triton_draws():
    four, one = drawn_by_triton(torch.tensor(SEEDS), POSITIONS, 37)
    specified = uniforms(torch.tensor(SEEDS), POSITIONS, 4 * 37)
    assert torch.equal(four.view(torch.int32), specified.view(torch.int32))
    assert torch.equal(one.view(torch.int32), specified[:, ::4].contiguous().view(torch.int32))


def test_noise_is_right_from_end_to_end_of_the_unit_interval():
    uniform = uniform_numbers(300)
    expected = gumbel_in_float64(uniform)
    assert expected.max() > 22
    assert expected.min() < -2.8
    for noise in (gumbel(uniform), gumbel_by_triton(uniform, approximate=False)):
        assert (noise - expected).abs().max() < 3e-6


def in_parts(monkeypatch, parts, num_seqs, tile):
    """Rows are cut into so many parts, as far as there are tiles."""
    monkeypatch.setattr(kernels, "TILE", tile)
    monkeypatch.setattr(kernels, "PROGRAMS_PER_SM", num_seqs)
    monkeypatch.setattr(kernels, "multiprocessors", lambda device: parts)


@pytest.mark.parametrize("parts", [1, 2, 8])
@pytest.mark.parametrize(
    "vocab_size,dtype,tile", [(1, "float32", 64), (5, "float16", 64), (257, "bfloat16", 64), (1000, "float32", 256)]
)
def test_tokens_are_the_specified_ones_however_a_row_is_cut(monkeypatch, vocab_size, dtype, tile, parts):
    in_parts(monkeypatch, parts, 6, tile)
    logits, rows = logits_of(6, vocab_size, getattr(torch, dtype)), params(TEMPERATURES, SEEDS)
    assert tokens_drawn(logits, rows, POSITIONS).tolist() == sample(logits, rows, POSITIONS).tolist()


def test_a_row_alone_gives_the_token_that_it_gives_in_a_batch():
    logits, rows = logits_of(3, TILE + 77, torch.bfloat16), params([0.0, 1.0, 0.6])
    together = tokens_drawn(logits, rows, POSITIONS[:3])
    for row in range(3):
        alone = params(rows.temperature[row : row + 1], rows.seeds[row : row + 1])
        assert tokens_drawn(logits[row : row + 1], alone, POSITIONS[row : row + 1]) == together[row]


def test_tokens_go_to_their_place_and_nothing_beside_them_is_written():
    logits, rows = logits_of(2, 600, torch.float32), params([0.0, 1.0])
    tokens = torch.full((5,), -7, dtype=torch.int32)
    sample_fused(logits, rows, POSITIONS[:2], tokens[1:3])
    assert tokens[1:3].tolist() == sample(logits, rows, POSITIONS[:2]).tolist()
    assert tokens[[0, 3, 4]].tolist() == [-7, -7, -7]


@pytest.mark.parametrize("temperature,parts", [(0.0, 1), (0.0, 3), (1.0, 1), (1.0, 3)])
def test_what_is_no_number_is_never_picked_and_a_row_without_any_gives_token_zero(monkeypatch, temperature, parts):
    in_parts(monkeypatch, parts, 6, 16)
    nan, inf = torch.nan, torch.inf
    logits = torch.full((6, 40), nan)
    logits[0, 33] = 2.0
    logits[2] = -inf
    logits[3, ::2] = -inf
    logits[4, [20, 39]] = inf
    logits[4, 3] = 1e30
    logits[5, 17] = -1e30
    rows = params([temperature] * 6)
    tokens = tokens_drawn(logits.bfloat16(), rows, torch.arange(6)).tolist()
    assert tokens == sample(logits.bfloat16(), rows, torch.arange(6)).tolist() == [33, 0, 0, 0, 20, 17]


@pytest.mark.parametrize("parts", [1, 2, 7])
def test_of_equal_logits_the_lowest_id_wins_across_tiles_and_parts(monkeypatch, parts):
    in_parts(monkeypatch, parts, 3, 16)
    logits = torch.zeros(3, 100)
    logits[0, [37, 38, 53, 90]] = 1.0
    logits[1, [99, 64]] = 1.0
    assert tokens_drawn(logits, params([0.0] * 3), torch.arange(3)).tolist() == [37, 64, 0]


def test_filtered_logits_are_sampled_as_the_specification_does():
    logits = logits_of(4, 90, torch.float32)
    rows = params([0.0, 1.0, 0.8, 1.5], top_k=[3, 4, 0, 2], top_p=[1.0, 0.9, 0.3, 1.0])
    fused = tokens_drawn(mask_filtered(logits, rows), rows, POSITIONS[:4])
    assert fused.tolist() == sample(logits, rows, POSITIONS[:4]).tolist()


@pytest.mark.parametrize("num_seqs", [1, 2, 31, 256, 512, 4096])
@pytest.mark.parametrize("vocab_size", [1, 1024, 1025, 50_257, 128_256, 262_144, 2**20])
def test_every_tile_is_in_one_part_and_parts_fit_the_reduction(num_seqs, vocab_size):
    tiles, parts = cut(num_seqs, vocab_size, 132)
    all_tiles = -(-vocab_size // TILE)
    assert 1 <= parts <= kernels.MAX_PARTS
    assert (parts - 1) * tiles < all_tiles <= parts * tiles
    assert parts == 1 or num_seqs * (parts - 1) < 8 * 132


def test_no_rows_launch_nothing():
    assert tokens_drawn(torch.zeros(0, 9), params([]), POSITIONS[:0]).shape == (0,)


@pytest.mark.parametrize(
    "change,message",
    [
        ({"logits": torch.zeros(2, 8, dtype=torch.float64)}, "logits: expected float16"),
        ({"logits": torch.zeros(2, 16)[:, ::2]}, "logits: expected contiguous float32"),
        ({"logits": torch.zeros(2, 0)}, "logits: expected a vocabulary of 1 to"),
        ({"params": params([1.0])}, r"temperature: expected contiguous float32 \[2\]"),
        ({"positions": torch.zeros(2, dtype=torch.int32)}, "positions: expected contiguous int64"),
        ({"out": torch.zeros(2, dtype=torch.int64)}, "out: expected contiguous int32"),
        ({"out": torch.zeros(1, dtype=torch.int32)}, r"out: expected contiguous int32 \[2\] on cpu, got int32 \[1\]"),
    ],
)
def test_wrong_arguments_are_refused(change, message):
    good = {"logits": torch.zeros(2, 8), "params": params([1.0, 0.0]), "positions": POSITIONS[:2]}
    good["out"] = torch.zeros(2, dtype=torch.int32)
    with pytest.raises(ValueError, match=message):
        sample_fused(**good | change)
