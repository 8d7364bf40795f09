"""Requests with known tokens, served by a paged allocator as a scheduler would: for the tests beside."""

from __future__ import annotations

from engine.core.allocator import Grant
from engine.core.content import TokenContent
from engine.core.paged import PagedAllocator
from engine.core.request import Request


def paged(capacity, size=4, **switches):
    return PagedAllocator(capacity, size, max_model_len=switches.pop("max_model_len", 10_000), **switches)


def request(tokens, limit=50, **options):
    tokens = list(tokens)
    made = Request(options.pop("name", "r"), len(tokens), limit, skips_cache_read=options.pop("skip", False))
    made.content = TokenContent(tokens, **options)
    return made


def admit(allocator, made, num_tokens=None, *, hit=None, whole=0, others_running=False):
    """Admission as the scheduler does it; on a grant the tokens are computed and, at the end, one is sampled."""
    hit = allocator.lookup(made) if hit is None else hit
    total = made.num_tokens if num_tokens is None else num_tokens
    answer = allocator.admit(made, total, hit, whole=whole, others_running=others_running)
    if isinstance(answer, Grant):
        made.computed = total
    return answer


def decode(allocator, made, *tokens):
    """Samples and computes tokens one at a time."""
    for token in tokens:
        made.content.tokens.append(token)
        made.known += 1
        assert isinstance(allocator.extend((made,), (made.known,)), Grant)
        made.computed = made.known


def served(allocator, *args, **options):
    """A request admitted whole and freed again: its full blocks stay cached."""
    made = request(*args, **options)
    assert isinstance(admit(allocator, made), Grant)
    allocator.free(made)
    return made
