"""A step's metadata: values, names of other backends, order, and what is refused."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.attention import AttentionInputError, AttentionMetadata, MetadataBuilder, MLAMetadata, PallasMetadata
from engine.attention import metadata as module
from engine.attention.builders import MLABuilder, PallasBuilder
from engine.attention.metadata import PAD_SLOT, decodes_first

# Two decodes and a chunk: blocks of 4, the chunk's tokens at positions 4 to 6 of 7.
QUERY, LENGTHS, TABLES = [1, 1, 3], [5, 1, 7], [[9, 3], [4], [7, 1]]
SLOTS = [3 * 4 + 0, 4 * 4 + 0, 1 * 4 + 0, 1 * 4 + 1, 1 * 4 + 2]


def ints(tensor: torch.Tensor) -> list:
    assert tensor.dtype == torch.int32
    return tensor.tolist()


def test_values_of_a_mixed_step():
    made = MetadataBuilder(4).build(QUERY, LENGTHS, TABLES)
    assert ints(made.query_start_loc) == [0, 1, 2, 5]
    assert ints(made.seq_lens) == LENGTHS
    assert ints(made.block_table) == [[9, 3], [4, 0], [7, 1]]
    assert made.slot_mapping.dtype == torch.int64
    assert made.slot_mapping.tolist() == SLOTS
    assert (made.max_query_len, made.max_seq_len) == (3, 7)
    assert (made.num_decodes, made.num_prefills, made.num_seqs, made.num_tokens) == (2, 1, 3, 5)


def test_values_under_the_names_of_pallas():
    made = PallasBuilder(4).build(QUERY, LENGTHS, TABLES)
    assert isinstance(made, PallasMetadata)
    assert ints(made.block_tables) == [[9, 3], [4, 0], [7, 1]]
    assert ints(made.context_lens) == LENGTHS  # in total, not before the step
    assert ints(made.query_start_loc) == [0, 1, 2, 5]
    assert made.slot_mapping.tolist() == SLOTS
    assert ints(made.num_seqs) == [3]


def test_values_split_for_mla():
    made = MLABuilder(4).build(QUERY, LENGTHS, TABLES)
    assert (made.num_decodes, made.num_prefills) == (2, 1)
    assert made.slot_mapping.tolist() == SLOTS
    assert made.decode is not None
    assert ints(made.decode.block_table) == [[9, 3], [4, 0]]
    assert ints(made.decode.seq_lens) == [5, 1]
    assert made.decode.max_seq_len == 7
    assert made.prefill is not None
    assert ints(made.prefill.block_table) == [[7, 1]]
    assert ints(made.prefill.seq_lens) == [7]
    assert ints(made.prefill.query_start_loc) == [0, 3]
    assert (made.prefill.max_query_len, made.prefill.max_seq_len) == (3, 7)


@pytest.mark.parametrize("query,decode,prefill", [([1, 1], True, False), ([2, 3], False, True)])
def test_an_mla_part_without_rows_is_none(query, decode, prefill):
    made = MLABuilder(4).build(query, [5, 3], TABLES[:2])
    assert (made.decode is not None, made.prefill is not None) == (decode, prefill)


def test_the_tables_names_are_fields_and_map_to_equal_values():
    """Every row of the table in the module's docstring, read and followed."""
    step = MetadataBuilder(4).build(QUERY, LENGTHS, TABLES)
    pallas, mla = PallasMetadata.of(step), MLAMetadata.of(step)
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in module.__doc__.splitlines()
        if line.startswith("| ")
    ]
    assert rows[0] == ["here", "Pallas", "MLA decode", "MLA prefill", "value"]
    names = [row[0] for row in rows[1:]]
    ours = {"num_decodes", "shared", "plans"}
    assert set(names) - {"S"} == {f.name for f in dataclasses.fields(AttentionMetadata)} - ours
    for here, in_pallas, in_decode, in_prefill, _ in rows[1:]:
        value = step.num_seqs if here == "S" else getattr(step, here)
        if in_pallas != "-":
            theirs = getattr(pallas, in_pallas.split()[0])
            assert theirs is value or theirs.tolist() == [value]
        if here == "S":
            assert getattr(mla, in_decode) + getattr(mla, in_prefill) == value
        elif here in ("seq_lens", "block_table"):
            together = torch.cat((getattr(mla.decode, in_decode), getattr(mla.prefill, in_prefill)))
            assert torch.equal(together, value)
        elif here.startswith("max"):
            assert getattr(mla.prefill, in_prefill) == value
    assert mla.slot_mapping is step.slot_mapping


def test_renaming_and_splitting_copy_no_table():
    step = MetadataBuilder(4).build(QUERY, LENGTHS, TABLES)
    pallas, mla = PallasMetadata.of(step), MLAMetadata.of(step)
    storage = step.block_table.untyped_storage().data_ptr()
    for table in (pallas.block_tables, mla.decode.block_table, mla.prefill.block_table):
        assert table.untyped_storage().data_ptr() == storage


def test_padded_rows_have_one_token_that_is_neither_written_nor_sees():
    made = MetadataBuilder(4).build([1], [5], [[9, 3]], num_padded_seqs=2)
    assert ints(made.query_start_loc) == [0, 1, 2, 3]
    assert ints(made.seq_lens) == [5, 0, 0]
    assert ints(made.block_table) == [[9, 3], [0, 0], [0, 0]]
    assert made.slot_mapping.tolist() == [12, PAD_SLOT, PAD_SLOT]
    assert made.num_decodes == 3


def test_a_step_of_padding_alone_can_be_built():
    made = MetadataBuilder(4).build([], [], [], num_padded_seqs=2)
    assert (ints(made.seq_lens), made.max_query_len, made.max_seq_len) == ([0, 0], 1, 0)
    assert made.slot_mapping.tolist() == [PAD_SLOT, PAD_SLOT]


@settings(deadline=None)  # the first call warms torch up
@given(st.lists(st.integers(1, 4)))
def test_decodes_come_first_and_nobody_is_lost_or_overtaken(query_lens):
    order = decodes_first(query_lens)
    assert sorted(order) == list(range(len(query_lens)))
    ordered = [query_lens[row] == 1 for row in order]
    assert ordered == sorted(ordered, reverse=True)
    for kind in (True, False):
        rows = [row for row in order if (query_lens[row] == 1) is kind]
        assert rows == sorted(rows)


@settings(deadline=None)  # the first call warms torch up
@given(st.integers(1, 5), st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=5))
def test_every_token_has_the_slot_of_its_position(block_size, rows):
    rows.sort(key=lambda row: row[0] != 1)
    lengths = [new + context for new, context in rows]
    count = -(-max(lengths) // block_size)
    tables = [list(range(100 * row + count, 100 * row, -1)) for row in range(len(rows))]
    made = MetadataBuilder(block_size).build([new for new, _ in rows], lengths, tables)
    expected = [
        tables[row][position // block_size] * block_size + position % block_size
        for row, (new, context) in enumerate(rows)
        for position in range(context, context + new)
    ]
    assert made.slot_mapping.tolist() == expected


@pytest.mark.parametrize(
    "query,lengths,tables,message",
    [
        (
            [2, 1],
            [2, 1],
            [[0], [1]],
            r"row 0: expected the 1 rows with one query token first .*got a query length of 2",
        ),
        ([0], [2], [[0]], r"row 0: expected 1 <= query length <= sequence length, got 0 and 2"),
        ([3], [2], [[0]], r"row 0: .* got 3 and 2"),
        ([1], [9], [[0, 1]], r"row 0: expected blocks of 4 for 9 tokens, got 2 blocks"),
        ([1], [1, 2], [[0]], r"as many query lengths, .*, got shapes \(1,\), \(2,\) and 1 tables"),
    ],
)
def test_steps_that_cannot_be_are_refused(query, lengths, tables, message):
    with pytest.raises(AttentionInputError, match=message):
        MetadataBuilder(4).build(query, lengths, tables)


def test_padding_goes_behind_decodes_only():
    with pytest.raises(AttentionInputError, match="num_padded_seqs: expected 0, or more where all rows are decodes"):
        MetadataBuilder(4).build([1, 2], [3, 3], [[0], [0]], num_padded_seqs=1)


@pytest.mark.parametrize(
    "change,message",
    [
        ({"seq_lens": torch.zeros(3, dtype=torch.int64)}, "seq_lens: expected int32, got int64"),
        ({"query_start_loc": torch.zeros(3, dtype=torch.int32)}, r"query_start_loc: expected shape \[4\], got \[3\]"),
        ({"block_table": torch.zeros(2, 5, dtype=torch.int32)}, r"block_table: expected shape \[3, max_blocks\], got"),
        ({"block_table": torch.zeros(5, 3, dtype=torch.int32).T}, r"block_table: expected stride 1"),
        ({"slot_mapping": torch.zeros(5, dtype=torch.int32)}, "slot_mapping: expected int64, got int32"),
        ({"num_decodes": 4}, "num_decodes: expected 0 to 3, got 4"),
        ({"seq_lens": torch.zeros(3, dtype=torch.int32, device="meta")}, "expected on meta as seq_lens, got cpu"),
    ],
)
def test_tensors_that_do_not_agree_are_refused(change, message):
    made = MetadataBuilder(4).build(QUERY, LENGTHS, TABLES)
    with pytest.raises(AttentionInputError, match=message):
        dataclasses.replace(made, **change)
