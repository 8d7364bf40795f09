"""Content keys: equal exactly where tokens, positions and prefixes are equal."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.content import BlockIdContent, ChainedIds, PrivateContent, TokenContent

laws = settings(max_examples=100, deadline=None, derandomize=True, database=None)
TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=24)


def common(left, right):
    """Length of the common prefix."""
    return next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


@given(a=TOKENS, b=TOKENS, size=st.integers(1, 5))
@laws
def test_token_keys_are_equal_exactly_for_equal_prefixes(a, b, size):
    keys = [TokenContent(tokens).keys(0, len(tokens) // size, size) for tokens in (a, b)]
    assert common(*keys) == common(a, b) // size
    assert not set(keys[0][common(*keys) :]) & set(keys[1][common(*keys) :]), "keys do not meet again"


@given(tokens=TOKENS, size=st.integers(1, 5), data=st.data())
@laws
def test_keys_do_not_depend_on_when_or_in_which_pieces_they_are_asked_for(tokens, size, data):
    full = len(tokens) // size
    whole = list(TokenContent(tokens).keys(0, full, size))
    known = data.draw(st.integers(0, len(tokens)))
    growing = TokenContent(tokens[:known])
    growing.keys(0, known // size, size)
    growing.tokens.extend(tokens[known:])
    start = data.draw(st.integers(0, full))
    assert list(growing.keys(start, full, size)) == whole[start:]


def test_a_block_that_is_not_full_has_no_key():
    with pytest.raises(ValueError, match="not full: 7 tokens"):
        TokenContent(list(range(7))).keys(0, 2, 4)


def test_a_salt_isolates_the_whole_chain():
    plain, salted, same, other = (TokenContent([0] * 8, salt=salt).keys(0, 2, 4) for salt in (None, "x", "x", "y"))
    assert salted == same
    assert len({*plain, *salted, *other}) == 6


def test_a_lora_isolates_every_block_and_never_meets_a_salt_of_its_name():
    plain = TokenContent([0] * 8).keys(0, 2, 4)
    lora = TokenContent([0] * 8, lora="x").keys(0, 2, 4)
    salt = TokenContent([0] * 8, salt="x").keys(0, 2, 4)
    both = TokenContent([0] * 8, lora="x", salt="x").keys(0, 2, 4)
    assert len({*plain, *lora, *salt, *both}) == 8


def test_keys_of_another_block_size_are_other_keys():
    content = TokenContent([0] * 8)
    first = list(content.keys(0, 2, 4))
    assert not set(first) & set(content.keys(0, 4, 2))
    assert list(content.keys(0, 2, 4)) == first


IDS = st.lists(st.integers(0, 1), min_size=1, max_size=6)


@given(a=IDS, b=IDS, unit=st.integers(1, 9), size=st.integers(1, 9), cut=st.integers(0, 8))
@laws
def test_block_ids_share_what_lies_in_equal_trace_blocks_at_any_block_size(a, b, unit, size, cut):
    chains = ChainedIds()
    lengths = [max(len(ids) * unit - min(cut, unit - 1), 1) for ids in (a, b)]
    contents = [BlockIdContent(chains.chain(ids), unit, length) for ids, length in zip((a, b), lengths, strict=True)]
    keys = [content.keys(0, 20, size) for content in contents]
    shared_tokens = min(common(a, b) * unit, *lengths)
    assert common(*keys) == shared_tokens // size
    assert not set(keys[0][common(*keys) :]) & set(keys[1])


def test_output_blocks_of_a_trace_are_private_but_keep_their_keys():
    first, second = (BlockIdContent([0, 1], 4, 8) for _ in range(2))
    assert first.keys(0, 2, 4) == second.keys(0, 2, 4)
    assert not set(first.keys(2, 5, 4)) & set(second.keys(2, 5, 4))
    assert list(first.keys(0, 5, 4))[2:] == list(first.keys(2, 5, 4))
    assert not first.shares_outputs


def test_ids_that_cover_less_than_the_prompt_share_only_what_they_cover():
    first, second = (BlockIdContent([7], 4, 100) for _ in range(2))
    assert common(first.keys(0, 10, 2), second.keys(0, 10, 2)) == 2


@given(a=IDS, b=IDS)
@laws
def test_chained_ids_are_equal_exactly_for_equal_prefixes(a, b):
    chains = ChainedIds()
    chained = chains.chain(a), chains.chain(b)
    assert common(*chained) == common(a, b)
    assert not set(chained[0][common(a, b) :]) & set(chained[1][common(a, b) :])


def test_private_content_equals_itself_only():
    first, second = PrivateContent(), PrivateContent()
    assert list(first.keys(2, 5, 16)) == list(first.keys(0, 5, 16))[2:]
    assert not set(first.keys(0, 100, 16)) & set(second.keys(0, 100, 16))
    assert not first.shares_outputs
