"""Attention over latents in Triton's interpreter against the reference in float64; what nobody should read is NaN."""

from dataclasses import replace

import pytest
import torch

from engine.attention.checks import AttentionInputError
from engine.attention.kernels import launch_mla, launch_mla_hopper, mla
from engine.attention.kernels.launch import mla_decode, mla_prefill, mla_write, plan_mla
from engine.attention.kernels.launch_mla import chosen_decode, mla_shape_of
from engine.attention.kernels.tuning import DecodeConfig
from engine.attention.kernels.tuning_mla import MLADecodeConfig, MLAPrefillConfig, mla_decode_config, mla_prefill_config
from tests.engine.attention.kernels.latents import LatentCase
from tests.engine.attention.kernels.pools import assert_close

WHOLE = MLADecodeConfig(16, DecodeConfig(32, 2, 2, programs=1, min_piece_tokens=32))
SPLIT = MLADecodeConfig(16, DecodeConfig(32, 2, 2, programs=4, min_piece_tokens=32))
CUTS = pytest.mark.parametrize("config", [WHOLE, SPLIT], ids=["whole", "split"])
CHUNKS = MLAPrefillConfig(16, 32, num_warps=2, num_stages=2)


def decode(case, config, **options):
    cache, table = case.pool()
    options = {"rank": case.rank, "scale": case.scale, "max_seq_len": case.max_seq_len, "config": config} | options
    return mla_decode(case.q, cache, table, case.seq_lens, **options)


def prefill(case, config=CHUNKS, **options):
    cache, table = case.pool()
    bounds = {"max_query_len": case.max_query_len, "max_seq_len": case.max_seq_len}
    options = {"rank": case.rank, "scale": case.scale, "config": config} | bounds | options
    return mla_prefill(case.q, cache, table, case.query_start_loc, case.seq_lens, **options)


@pytest.mark.parametrize("block_size", [1, 24, 64])
@CUTS
def test_any_block_size_gives_the_same_attention(block_size, config):
    case = LatentCase([1, block_size + 9], block_size=block_size)
    assert_close(decode(case, config), case.expected())


@pytest.mark.parametrize(
    "num_heads,rank,rotary,dtype,config",
    [
        (1, 32, 16, torch.float16, WHOLE),
        (3, 24, 8, torch.bfloat16, SPLIT),
        (16, 64, 24, torch.float16, replace(SPLIT, use_tma=True)),
        (17, 32, 32, torch.float32, SPLIT),
        (40, 40, 64, torch.float32, replace(WHOLE, block_m=32)),
        (4, 16, 16, torch.bfloat16, WHOLE),
    ],
)
def test_heads_sizes_and_types(num_heads, rank, rotary, dtype, config):
    case = LatentCase([33, 70], (), num_heads, rank, rotary, 16, dtype)
    assert_close(decode(case, config), case.expected())


@pytest.mark.parametrize("block_size", [32, 64])
@pytest.mark.parametrize("lengths", [[32, 64], [1, 97]])
def test_tiles_by_descriptor_end_where_slots_may_be_stale(block_size, lengths):
    case = LatentCase(lengths, block_size=block_size)
    assert_close(decode(case, replace(SPLIT, use_tma=True)), case.expected())


def test_sizes_of_deepseek_by_the_rule():
    case = LatentCase([65, 3], (), 16, 512, 64, 64, torch.float16)
    assert_close(decode(case, None), case.expected())


@CUTS
def test_rows_of_length_zero_give_zeros(config):
    case = LatentCase([0, 70, 0, 3])
    out = decode(case, config, out=torch.full((4, 4, 32), torch.nan))
    assert not out[[0, 2]].any()
    assert_close(out, case.expected())


def test_strides_are_taken_from_the_tensors_and_nothing_beside_the_output_is_written():
    case = LatentCase([40, 70], gap=8)
    wide = torch.full((2, 6, 48), torch.nan)
    out = decode(case, SPLIT, out=wide[:, 1:5, :32])
    assert_close(out, case.expected())
    assert wide[:, [0, 5]].isnan().all()
    assert wide[:, :, 32:].isnan().all()


def test_a_plan_is_made_once_for_all_layers_and_lengths_may_change_before_it():
    case = LatentCase([130, 1, 0, 64])
    cache, table = case.pool()
    plan = plan_mla(case.seq_lens, mla_shape_of(case.q, 32, 200, 16), SPLIT)
    options = {"rank": 32, "scale": case.scale, "max_seq_len": 200, "plan": plan}
    with pytest.raises(AttentionInputError, match="block_table: expected rows for max_seq_len=200"):
        mla_decode(case.q, cache, table, case.seq_lens, **options)
    table = torch.cat((table, table[:, :4]), 1)
    for _ in range(2):
        assert_close(mla_decode(case.q, cache, table, case.seq_lens, **options), case.expected())
    with pytest.raises(AttentionInputError, match="plan: expected one for"):
        mla_decode(case.q, cache, table, case.seq_lens, **options | {"max_seq_len": 150})


@pytest.mark.parametrize("num_heads,block_size", [(3, 16), (16, 24), (20, 32)])
def test_chunks_are_causal(num_heads, block_size):
    case = LatentCase([33, 6], [3, 6], num_heads, block_size=block_size)
    assert_close(prefill(case), case.expected())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_chunks_of_one_token_of_none_and_in_narrow_types(dtype):
    case = LatentCase([20, 12, 9], [1, 0, 3], 4, dtype=dtype)
    assert_close(prefill(case, None), case.expected())


def test_a_chunk_gives_the_numbers_of_a_decode():
    chunk = LatentCase([35], [3])
    last = replace(chunk, query_lens=[1])
    last.q, last.latents = chunk.q[-1:], chunk.latents
    assert_close(decode(last, WHOLE), prefill(chunk)[-1:].double())


@pytest.mark.parametrize("block_size", [16, 24, 64])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_write_fills_its_slots_bit_for_bit_and_no_others(block_size, dtype):
    cache = torch.full((5, block_size, 48), torch.nan, dtype=dtype)
    held = cache.clone()
    tokens = torch.randn(4, 2, 60).to(dtype)
    c, rotary = tokens[:, :1, :32], tokens[:, 1:, :16]
    slots = torch.tensor([block_size * 4 + 3, -1, 0, block_size - 1])
    for token, slot in enumerate(slots.tolist()):
        if slot >= 0:
            held[slot // block_size, slot % block_size] = torch.cat((c[token, 0], rotary[token, 0]))
    mla_write(c, rotary, cache, slots)
    assert torch.equal(cache.nan_to_num(7e3), held.nan_to_num(7e3))
    mla_write(c[:0], rotary[:0], cache, slots[:0])


def test_a_kernel_that_reads_past_the_length_is_caught(monkeypatch):
    case = LatentCase([33, 50])
    real = mla.weigh

    def unmasked(scores, v, m, n, acc, visible, scale, cap, masked, capped):
        return real(scores, v, m, n, acc, visible, scale, cap, False, capped)

    monkeypatch.setattr(mla, "weigh", unmasked)
    with pytest.raises(AssertionError, match="differs"):
        assert_close(decode(case, SPLIT), case.expected())


GOOD = LatentCase([20, 40])


@pytest.mark.parametrize(
    "change,message",
    [
        ({"q": GOOD.q[:1]}, "one query token for each of the 2 sequences, got 1"),
        ({"q": GOOD.q[..., :40]}, r"q: expected shape \[T, H, 48\]"),
        ({"q": GOOD.q.half()}, "q: expected float32, got float16"),
        ({"kv_cache": torch.zeros(4, 16, 1, 48)}, "kv_cache: expected 3 axes"),
        ({"kv_cache": torch.zeros(4, 16, 48).double()}, "expected float16 or bfloat16 or float32, got float64"),
        ({"rank": 48}, "got 48 and 0 of 48 elements"),
        ({"rank": 30}, "got 30 and 18 of 48 elements"),
        ({"seq_lens": GOOD.seq_lens.long()}, "seq_lens: expected int32"),
        ({"block_table": torch.zeros(2, 2, dtype=torch.int32)}, "expected rows for max_seq_len=40"),
        ({"out": torch.zeros(2, 4, 48)}, r"out: expected shape \[2, 4, 32\]"),
        ({"scale": 0.0}, "scale"),
        ({"config": CHUNKS}, "config: expected a MLADecodeConfig"),
        ({"plan": SPLIT}, "plan: expected a MLAPlan"),
        ({"workspace": torch.zeros(4)}, "workspace: expected at least"),
        ({"config": MLADecodeConfig(64, DecodeConfig(64, 4, 2, 4, 64), kernel="pair")}, "hopper MLA: expected"),
    ],
)
def test_wrong_arguments_are_refused_before_a_launch(monkeypatch, change, message):
    launched = []
    monkeypatch.setattr(launch_mla, "mla_decode_kernel", launched)
    cache, table = GOOD.pool()
    good = {"q": GOOD.q, "kv_cache": cache, "block_table": table, "seq_lens": GOOD.seq_lens, "rank": 32}
    good |= {"scale": 1.0, "max_seq_len": 40, "config": SPLIT}
    with pytest.raises(AttentionInputError, match=message):
        mla_decode(**good | change)


@pytest.mark.parametrize(
    "make,message",
    [
        (lambda: MLADecodeConfig(24, SPLIT.cut), "block_m: expected a power of two"),
        (lambda: MLADecodeConfig(64, SPLIT.cut, kernel="warp"), "kernel: expected portable or pair"),
        (lambda: MLADecodeConfig(64, SPLIT.cut, kernel="pair"), "pair: expected block_m=64, block_n=64"),
        (lambda: MLAPrefillConfig(16, 24, 4, 2), "block_n: expected a power of two"),
    ],
)
def test_configurations_that_cannot_be(make, message):
    with pytest.raises(AttentionInputError, match=message):
        make()


@pytest.mark.parametrize("num_heads", [1, 16, 17, 128])
@pytest.mark.parametrize("architecture", [80, 90])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_rules_answer_for_any_shape(num_heads, architecture, dtype):
    shape = replace(mla_shape_of(torch.zeros(3, num_heads, 576, dtype=dtype), 512, 4096, 64), capability=architecture)
    config = mla_decode_config(shape, hopper=architecture == 90 and dtype == torch.bfloat16)
    assert (config.kernel != "portable") <= (architecture == 90 and dtype == torch.bfloat16)
    assert mla_prefill_config(shape).block_m >= 16


@pytest.mark.parametrize("block_size,tma", [(16, False), (24, False), (32, True), (48, False), (64, True), (96, True)])
def test_few_heads_load_by_descriptor_where_tiles_lie_within_blocks(block_size, tma):
    shape = replace(mla_shape_of(torch.zeros(3, 16, 576).bfloat16(), 512, 4096, block_size), capability=90)
    config = mla_decode_config(shape, hopper=True)
    assert (config.kernel, config.block_m, config.use_tma) == ("portable", 16, tma)
    assert config.cut.programs == 2 * shape.num_sms
    assert mla_decode_config(replace(shape, group=17), hopper=True).kernel == "pair"


def test_hopper_takes_whole_vectors_of_deepseeks_latent_and_nothing_else():
    q, cache = torch.zeros(2, 128, 576, dtype=torch.bfloat16), torch.zeros(3, 64, 576, dtype=torch.bfloat16)
    assert launch_mla_hopper.takes(q, cache, 512)
    assert launch_mla_hopper.takes(q[:, :16], cache[:, ::8], 512)
    assert launch_mla_hopper.takes(q, torch.zeros(3, 24, 576, dtype=torch.bfloat16), 512)
    assert not launch_mla_hopper.takes(q, cache[:, :4], 512)
    assert not launch_mla_hopper.takes(q, cache, 448)
    assert not launch_mla_hopper.takes(q.float(), cache.float(), 512)
    assert not launch_mla_hopper.takes(q, torch.zeros(3, 64, 580, dtype=torch.bfloat16)[..., :576], 512)
    assert chosen_decode(q, cache, 512, 128).kernel == "portable", "on a CPU"


def test_a_launch_on_hopper_has_an_argument_for_every_parameter(monkeypatch):
    """Its kernel cannot be interpreted: that they compute what they should is tested on a device."""
    seen = {}

    class Recorder:
        def __getitem__(self, grid):
            return lambda *arguments, **options: seen.update(grid=grid, arguments=arguments, options=options)

    real = launch_mla_hopper.mla_pair_kernel
    monkeypatch.setattr(launch_mla_hopper, "mla_pair_kernel", Recorder())
    case = LatentCase([100, 7], (), 128, 512, 64, 24, torch.bfloat16)
    decode(case, MLADecodeConfig(64, DecodeConfig(64, 4, 2, programs=1, min_piece_tokens=64), kernel="pair"))
    names = list(real.arg_names)
    given = dict(zip(names, seen["arguments"], strict=False)) | seen["options"]
    assert set(names) | {"num_warps"} == set(given)
    assert seen["grid"] == (2, 2)
    assert (given["BOX"], given["PAGES"], given["rows_b"], given["block_size"]) == (8, "blocks", 24, 24)
    assert given["KV_DESC"].block_shape == [8, 64]
    assert given["Q_DESC"].block_shape == [1, 64, 64]
