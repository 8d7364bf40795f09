"""Token ids: equal where contents are equal, the same in every run, and continued by what is sampled."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.content import BlockIdContent, ChainedIds, PrivateContent, TokenContent
from engine.core.request import Request
from engine.core.text_runs import RunContent
from engine.worker.tokens import RequestTokens

VOCAB = 1_000


def tokens_of(name, count, content=None):
    return RequestTokens(Request(name, count, 10, content=content), VOCAB).prompt.tolist()


def test_private_content_depends_on_the_request_alone():
    first = tokens_of("a", 100, PrivateContent())
    assert first == tokens_of("a", 100, PrivateContent())
    assert first[:50] == tokens_of("a", 50)
    assert first != tokens_of("b", 100)
    assert 0 <= min(first) <= max(first) < VOCAB


def test_equal_block_ids_give_equal_tokens_and_others_differ():
    size, count = 64, 150
    one, same = (BlockIdContent([7, 8, 9], size, count) for _ in range(2))
    other = BlockIdContent([7, 8, 11], size, count)
    a, b, c = tokens_of("a", count, one), tokens_of("b", count, same), tokens_of("c", count, other)
    assert a == b
    assert a[:128] == c[:128]
    assert a[128:] != c[128:]
    assert a == tokens_of("a", count, BlockIdContent([7, 8, 9], size, count))
    floored = [tokens_of(name, count, BlockIdContent([7, 8], size, count)) for name in "ab"]
    assert floored[0][:128] == floored[1][:128] == a[:128]
    assert floored[0][128:] != floored[1][128:]


def test_given_tokens_are_taken_and_go_on_with_the_sampled_ones():
    content = TokenContent([1, 2, 3])
    own = RequestTokens(Request("a", 3, 5, content=content), VOCAB)
    assert [own.append(7), own.append(8)] == [7, 8]
    assert content.tokens == [1, 2, 3, 7, 8]
    whole = [1, 2, 3, 7, 8]
    for start in range(6):
        for stop in range(start, 6):
            assert own.between(start, stop).tolist() == whole[start:stop]
    assert own.between(0, 5).dtype == np.int64


def test_content_that_names_outputs_forces_them():
    content = TokenContent([1, 2, 3, 50, 60])
    own = RequestTokens(Request("a", 3, 5, content=content), VOCAB)
    assert [own.append(7), own.append(8), own.append(9)] == [50, 60, 9]
    assert content.tokens == [1, 2, 3, 50, 60, 9]
    assert own.outputs == [50, 60, 9]


@pytest.mark.parametrize(
    "tokens, complaint",
    [
        ([1, 2, 3, VOCAB], "token 1000 at position 3"),
        ([1, 2], "2 tokens are given for a prompt of 3"),
        ([1, VOCAB, 2], "token 1000 at position 1"),
        ([0, 1, -1], "-1"),
    ],
)
def test_impossible_tokens_are_refused(tokens, complaint):
    with pytest.raises(ValueError, match=complaint):
        RequestTokens(Request("a", 3, 5, content=TokenContent(tokens)), VOCAB)


PREFIXES = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9)), min_size=1, max_size=3)


@given(one=PREFIXES, other=PREFIXES, size=st.sampled_from([1, 2, 3, 4, 16]))
@settings(max_examples=150, deadline=None, derandomize=True)
def test_equal_keys_of_runs_are_equal_tokens_answers_included(one, other, size):
    chains, outputs, found = ChainedIds(), 12, []
    for name, pairs in (("a", one), ("b", other)):
        count = sum(tokens for _, tokens in pairs)
        content = RunContent([value for pair in pairs for value in pair], chains, shares_outputs=True)
        own = RequestTokens(Request(name, count, outputs, content=content), VOCAB)
        for _ in range(outputs):
            own.append(VOCAB - 1)
        whole = own.between(0, count + outputs).tolist()
        blocks = len(whole) // size
        found.append([(key, whole[: (i + 1) * size]) for i, key in enumerate(content.keys(0, blocks, size))])
        assert list(content.keys(1, blocks, size)) == [key for key, _ in found[-1][1:]]
    for (key, tokens), (same, others) in zip(*found, strict=False):
        assert (key == same) == (tokens == others), (key, same)
