"""Steps of sequences on an allocator, as its scheduler takes them: for tests of what sequences share."""

from __future__ import annotations

from collections import Counter

from engine.core.allocator import Grant
from engine.core.request import Request


def prompted(allocator, num_tokens, *, limit=100, name="r", row=0):
    """A request that has computed its prompt and sampled a token."""
    made = Request(name, num_tokens, limit)
    assert isinstance(allocator.admit(made, num_tokens), Grant)
    made.computed, made.known, made.row = num_tokens, num_tokens + 1, row
    return made


def forked(allocator, parent, count, num_tokens=None):
    """Children of the request, in rows behind it."""
    children = [Request(f"{parent.request_id}.{i}", parent.num_prompt_tokens, 100) for i in range(count)]
    grant = allocator.fork(parent, children, num_tokens)
    assert isinstance(grant, Grant)
    for row, child in enumerate(children, parent.row + 1):
        begin(parent, child, num_tokens, row)
    return children


def begin(parent, child, num_tokens=None, row=None):
    child.computed = parent.num_computed_tokens if num_tokens is None else num_tokens
    child.known, child.content = parent.known, parent.content.fork(child.computed)
    child.row = child.row if row is None else row


def compute(allocator, made, total):
    """Computes up to that token and samples another one; what that took."""
    made.known = max(made.known, total)
    grant = allocator.extend((made,), (total,))
    assert isinstance(grant, Grant), grant
    made.computed, made.known = total, total + 1
    allocator.settle(grant)
    return grant


def references(allocator):
    """How many blocks have so many references."""
    counts = Counter(allocator.pool.ref_cnts())
    del counts[0]
    return dict(counts)


def logical_and_physical(allocator):
    stats = allocator.stats()
    return stats.num_referenced + stats.num_extra_references, stats.num_referenced
