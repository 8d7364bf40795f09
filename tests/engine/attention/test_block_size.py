"""Defaults, minima and refusals of block sizes, each with its reason."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.attention import BACKENDS, AttentionInputError, get_backend, resolve_block_size


@pytest.mark.parametrize("name", sorted(BACKENDS))
def test_unset_means_sixteen_except_where_kernels_or_libraries_want_larger_blocks(name):
    value, reason = resolve_block_size(get_backend(name), None, 4096, 128)
    larger = {"reference-flash-mla": 64, "flash-mla": 64, "triton-mla": 64, "flash-attn-2": 256}
    assert value == larger.get(name, 16)
    assert reason == f"default of {name}"


@pytest.mark.parametrize(
    "max_model_len,max_num_seqs,expected",
    # 131072 // 256 = 512 entries a sequence, 131072 // 1000 = 131
    [(8192, 256, 16), (8193, 256, 32), (32768, 256, 64), (32769, 256, 128), (131072, 1, 16), (16384, 1000, 128)],
)
def test_pallas_raises_the_default_to_what_its_tables_allow(max_model_len, max_num_seqs, expected):
    value, reason = resolve_block_size(get_backend("reference-pallas"), None, max_model_len, max_num_seqs)
    assert value == expected
    if expected > 16:
        assert reason == (
            f"smallest that reference-pallas takes for max_model_len={max_model_len} and max_num_seqs={max_num_seqs}; "
            "its default is 16"
        )


@given(st.integers(1, 10**7), st.integers(1, 131_072))
def test_pallas_tables_of_all_sequences_fit_and_half_the_size_would_not(max_model_len, max_num_seqs):
    least = get_backend("reference-pallas").get_min_block_size(max_model_len, max_num_seqs)
    assert least & (least - 1) == 0

    def fits(size: int) -> bool:
        return max_num_seqs * -(-max_model_len // size) <= 131_072

    assert fits(least)
    assert least == 1 or not fits(least // 2)


def test_what_was_asked_for_is_taken():
    assert resolve_block_size(get_backend("triton"), 5, 4096, 8) == (5, "as requested")
    assert resolve_block_size(get_backend("reference-flash-attn"), 48, 4096, 8).value == 48


@pytest.mark.parametrize(
    "name,requested,message",
    [
        ("reference-flash-attn", 8, "reference-flash-attn: expected block_size a multiple of 16, got 8"),
        ("reference-flash-attn", 24, "a multiple of 16, got 24"),
        ("reference-flash-mla", 16, "reference-flash-mla: expected block_size 64, got 16"),
        ("triton", 0, "triton: expected block_size any size, got 0"),
        ("reference-pallas", 16, "expected block_size of at least 64 for max_model_len=32768 and max_num_seqs=256"),
    ],
)
def test_what_a_backend_does_not_take_is_refused(name, requested, message):
    with pytest.raises(AttentionInputError, match=message):
        resolve_block_size(get_backend(name), requested, 32768, 256)


def test_more_sequences_than_table_entries_are_refused():
    with pytest.raises(AttentionInputError, match="expected max_num_seqs up to 131072, got 131073"):
        resolve_block_size(get_backend("reference-pallas"), None, 4096, 131_073)
    with pytest.raises(AttentionInputError, match="max_num_seqs: expected a whole number of at least 1, got 0"):
        resolve_block_size(get_backend("reference"), None, 4096, 0)
