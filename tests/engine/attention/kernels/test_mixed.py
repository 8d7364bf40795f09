"""Decodes and chunks in one call, in Triton's interpreter: the same numbers as chunks of any length."""

import pytest
import torch

from engine.attention.checks import AttentionInputError
from engine.attention.kernels.launch_mixed import mixed_attention
from engine.attention.kernels.tuning import DecodeConfig, MixedConfig, PrefillConfig
from tests.engine.attention.kernels.pools import Case, assert_close

CONFIG = MixedConfig(
    DecodeConfig(block_n=32, num_warps=2, num_stages=2, programs=3, min_piece_tokens=32),
    PrefillConfig(block_m=32, block_n=32, num_warps=4, num_stages=2, use_tma=False),
)


def run(case, num_decodes, config=CONFIG, **options):
    k_cache, v_cache, block_table = case.paged()
    return mixed_attention(
        case.q, k_cache, v_cache, block_table, case.query_start_loc, case.seq_lens, num_decodes=num_decodes,
        scale=case.scale, max_query_len=case.max_query_len, max_seq_len=case.max_seq_len, config=config, **options,
    )  # fmt: skip


@pytest.mark.parametrize(
    "lengths,query_lens,num_decodes",
    [
        ([50, 1, 40, 12], [1, 1, 9, 12], 2),
        ([50, 33], [1, 1], 2),
        ([50, 33], [5, 6], 0),
        ([40, 0, 30], [1, 1, 4], 2),  # a padded decode
        ([40, 7, 30], [1, 1, 4], 1),  # a query of one token among the chunks
    ],
)
def test_each_sequence_gets_its_own_attention(lengths, query_lens, num_decodes):
    case = Case(lengths, query_lens, dtype=torch.float16, layout="block_first")
    assert_close(run(case, num_decodes), case.expected())


def test_the_default_rules_answer():
    case = Case([50, 40], [1, 9])
    assert_close(run(case, 1, config=None, window=20, soft_cap=5.0), case.expected(20, 5.0))


@pytest.mark.parametrize("num_decodes", [-1, 3])
def test_more_decodes_than_sequences_are_refused(num_decodes):
    with pytest.raises(AttentionInputError, match=f"num_decodes: expected 0 to 2, got {num_decodes}"):
        run(Case([50, 40], [1, 9]), num_decodes)
