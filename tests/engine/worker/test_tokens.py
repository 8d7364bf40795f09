"""Token ids: equal where contents are equal, the same in every run, and continued by what is sampled."""

from __future__ import annotations

import numpy as np
import pytest

from engine.core.content import BlockIdContent, PrivateContent, TokenContent
from engine.core.request import Request
from engine.worker.tokens import CONTENT_BLOCK, RequestTokens

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
    shared = count // CONTENT_BLOCK * CONTENT_BLOCK
    assert a[:shared] == b[:shared]
    assert a[shared:] != b[shared:]
    assert a[:128] == c[:128]
    assert a[128:] != c[128:]
    assert a == tokens_of("a", count, BlockIdContent([7, 8, 9], size, count))


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
