"""Shapes: what they move and compute, and which of them each case holds."""

from itertools import pairwise

import pytest

from experiments.bench.cases import BLOCK_SIZES, CASES, shapes_of
from experiments.bench.shapes import FP8, GQA, MHA, Shape, decode


@pytest.mark.parametrize("heads,token_bytes", [(GQA, 4096), (MHA, 20480)])
def test_a_decode_moves_the_k_and_v_of_its_tokens(heads, token_bytes):
    shape = decode("decode", heads, 8, 4096)

    assert shape.moved_bytes == 8 * 4096 * token_bytes
    assert shape.num_flops == 8 * 4096 * 4 * heads.num_heads * 128
    assert shape.cache_bytes == shape.moved_bytes
    assert shape.num_blocks == 8 * 256


def test_a_prompt_sees_half_of_the_square_and_its_diagonal():
    shape = Shape("prefill", "prefill", "x", GQA, (5, 7), (5, 2))
    pairs = sum(min(p + 1, 5) for p in range(5)) + 6 + 7

    assert shape.num_flops == 4 * 32 * 128 * pairs


def test_writes_and_copies_count_both_ways():
    write = Shape("write", "write", "x", GQA, (100,), (100,))
    copy = Shape("copy", "copy", "x", GQA, (16,) * 3, (16,) * 3)

    assert write.moved_bytes == 2 * 100 * 4096
    assert write.num_flops == 0
    assert copy.moved_bytes == 2 * 48 * 4096
    assert copy.num_blocks == 6


def test_an_fp8_cache_takes_half_of_the_bytes_and_its_queries_do_not():
    wide = decode("fp8", GQA, 8, 4096)
    narrow = wide.with_(dtype=FP8)

    assert (narrow.cache_bytes, narrow.moved_bytes) == (wide.cache_bytes // 2, wide.moved_bytes // 2)
    assert (narrow.query_bytes, narrow.query_dtype) == (wide.query_bytes, "bfloat16")
    write = Shape("fp8", "write", "x", GQA, (100,), (100,), dtype=FP8)
    assert write.moved_bytes == 100 * (4096 + 2048)
    labels = [(shape.label, shape.block_size) for shape in shapes_of("fp8") if shape.dtype == FP8]
    assert labels == [(shape.label, shape.block_size) for shape in shapes_of("fp8") if shape.dtype != FP8]
    assert ("gqa 64 x 4k", 16) in labels


@pytest.mark.parametrize("seq_lens,query_lens", [((), ()), ((4,), (5,)), ((4,), (0,)), ((4, 4), (1,))])
def test_lengths_that_cannot_be_are_refused(seq_lens, query_lens):
    with pytest.raises(ValueError, match=r"lengths|length, got"):
        Shape("decode", "decode", "x", GQA, seq_lens, query_lens)


@pytest.mark.parametrize("name", CASES)
def test_every_case_has_shapes_of_its_own_name_and_no_two_alike(name):
    shapes = shapes_of(name)

    keys = [(s.label, s.dtype, s.block_size, s.layout, s.table) for s in shapes]
    assert shapes
    assert {shape.case for shape in shapes} == {name}
    assert len(keys) == len(set(keys))
    assert set(shapes_of(name, quick=True)) <= set(shapes)
    assert {shape.dtype for shape in shapes_of(name, dtype="float16") if shape.dtype != FP8} == {"float16"}


def test_the_decode_ladder_is_the_one_the_peers_were_measured_on():
    labels = [shape.label for shape in shapes_of("decode")]

    assert [label for label in labels if label.startswith("gqa 1 ")] == [f"gqa 1 x {n}k" for n in (1, 4, 16, 64)]
    assert {"gqa 256 x 16k", "mha 64 x 16k"} <= set(labels)
    assert "mha 256 x 16k" not in labels  # 86 GB


def test_variants_stay_whole_when_quick():
    assert {shape.block_size for shape in shapes_of("block-size", quick=True)} == set(BLOCK_SIZES)
    assert {shape.layout for shape in shapes_of("layouts", quick=True)} == {"kv_first", "block_first", "interleaved"}
    assert {shape.table for shape in shapes_of("table-order", quick=True)} == {"shuffled", "identity"}


def test_a_seed_fixes_the_ragged_lengths():
    one, same, other = (shapes_of("ragged", seed=seed) for seed in (1, 1, 2))

    assert one == same
    assert one[0].seq_lens != other[0].seq_lens
    assert all(128 <= n <= 32768 for n in one[1].seq_lens)


def test_shared_tokens_are_kept_and_moved_once():
    shape = next(s for s in shapes_of("shared-prefix") if s.label == "gqa 64 x (8k + 512)")

    assert shape.kv_tokens == 64 * 8704
    assert shape.num_blocks == 512 + 64 * 32
    assert shape.moved_bytes == shape.cache_bytes == (8192 + 64 * 512) * 4096


@pytest.mark.parametrize("shared", [-16, 8, 32, 48])
def test_shared_tokens_that_cannot_be_are_refused(shared):
    with pytest.raises(ValueError, match=r"fill blocks of 16 and are fewer than 32, got"):
        Shape("x", "decode", "x", GQA, (32, 40), (1, 1), shared_tokens=shared)


def test_the_tables_of_sequences_start_with_the_shared_blocks_and_use_every_block_once():
    from experiments.bench.inputs import Arena, problem_of

    pytest.importorskip("torch")
    shape = Shape("x", "decode", "x", GQA, (40, 33, 64), (1, 1, 1), shared_tokens=32)
    table = problem_of(shape, Arena("cpu", 0)).block_table

    assert (table[:, :2] == table[0, :2]).all()
    used = [*table[0, :2].tolist(), *(b for row, n in zip(table, (3, 3, 4), strict=True) for b in row[2:n].tolist())]
    assert sorted(used) == list(range(shape.num_blocks))


def test_fig18a_is_the_papers_grid_in_half_precision():
    shapes = shapes_of("fig18a")

    assert [(s.num_seqs, s.seq_lens[0]) for s in shapes] == [(b, c) for b in (8, 32) for c in (64, 128, 256)]
    assert {(s.heads.num_heads, s.heads.num_kv_heads, s.heads.head_size, s.dtype) for s in shapes} == {
        (40, 40, 128, "float16")
    }


def test_mixed_steps_have_their_decodes_first():
    for shape in shapes_of("mixed"):
        assert all(a <= b for a, b in pairwise(shape.query_lens))


@pytest.mark.parametrize("options", [{"block_size": 0}, {"name": "decod"}])
def test_bad_requests_are_refused(options):
    with pytest.raises(ValueError, match=r"block size|unknown case"):
        shapes_of(options.pop("name", "decode"), **options)
