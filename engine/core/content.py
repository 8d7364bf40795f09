"""What a request's blocks hold, as keys: equal keys mean equal tokens at equal positions after equal prefixes.

The prefix cache asks for the key of the i-th full block and never looks at tokens. Three sources: token ids (the
engine), block ids of a trace (Mooncake's are chained, Bailian's name the content of one block alone), and nothing at
all, where no two requests share anything.
"""

from __future__ import annotations

import hashlib
import itertools
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Sequence
from typing import NamedTuple, Protocol

_private_ids = itertools.count(1)
BYTES_PER_TOKEN = 8


class Content(Protocol):
    """Keys of full blocks, chained: a key stands for the block and everything before it."""

    shares_prompt: bool
    """Whether blocks of the prompt can equal another request's blocks."""
    shares_outputs: bool
    """Whether blocks that hold output tokens can."""

    def keys(self, start: int, stop: int, block_size: int) -> Sequence[Hashable]:
        """Keys of the full blocks `start` to `stop - 1` for blocks of `block_size` tokens."""
        ...

    def fork(self, num_tokens: int) -> Content:
        """Content of a sequence that has these first `num_tokens` tokens and others after them."""
        ...


class Run(NamedTuple):
    """Tokens [start, stop) of a request: equal to those of any other that has the same text at the same start."""

    text: int
    start: int
    stop: int


class PrivateContent:
    """Content that equals nothing but itself: a preempted request finds its own blocks again, nobody else does."""

    __slots__ = ("_offset",)
    shares_prompt = False
    shares_outputs = False

    def __init__(self) -> None:
        # Ids only need to differ; 2**40 blocks a request cannot run into each other.
        self._offset = next(_private_ids) << 40

    def keys(self, start: int, stop: int, block_size: int) -> Sequence[Hashable]:
        """Consecutive integers that no other request has."""
        return range(self._offset + start, self._offset + stop)

    def fork(self, num_tokens: int) -> Content:
        """Private from there on, too."""
        return BranchContent(self, num_tokens)


class TokenContent:
    """Content given by token ids: a SHA-256 chain over blocks, as vLLM's (semantics of 0.33, other digests).

    `tokens` may grow as tokens are sampled; keys of blocks that are full never change. A LoRA name goes into every
    block, a cache salt into the first one only: chaining isolates the rest.
    """

    __slots__ = ("_block_size", "_chain", "lora", "salt", "tokens")
    shares_prompt = True
    shares_outputs = True

    def __init__(self, tokens: list[int], *, salt: str | None = None, lora: str | None = None) -> None:
        self.tokens = tokens
        self.salt = salt
        self.lora = lora
        self._block_size = 0
        self._chain: list[bytes] = []

    def keys(self, start: int, stop: int, block_size: int) -> Sequence[Hashable]:
        """Digests of the chain; ValueError where fewer tokens are known than the blocks hold."""
        if block_size != self._block_size:
            self._block_size, self._chain = block_size, []
        if stop * block_size > len(self.tokens):
            raise ValueError(f"block {stop - 1} of {block_size} tokens is not full: {len(self.tokens)} tokens known")
        if stop > len(self._chain):
            self._extend(stop)
        return self._chain[start:stop]

    def fork(self, num_tokens: int) -> Content:
        """The same tokens so far; those to come are appended to a list of its own."""
        twin = TokenContent(self.tokens[:num_tokens], salt=self.salt, lora=self.lora)
        twin._block_size = self._block_size
        twin._chain = self._chain[: num_tokens // self._block_size] if self._block_size else []
        return twin

    def _extend(self, stop: int) -> None:
        """Digests of the blocks that follow, up to `stop`."""
        chain, size = self._chain, self._block_size
        first = len(chain)
        tokens = array("q", self.tokens[first * size : stop * size]).tobytes()
        parent, width = chain[-1] if first else b"root", size * BYTES_PER_TOKEN
        lora = b"" if self.lora is None else repr(("lora", self.lora)).encode()
        for index, start in enumerate(range(0, len(tokens), width), first):
            extra = lora if index or self.salt is None else lora + repr(("salt", self.salt)).encode()
            parent = hashlib.sha256(parent + tokens[start : start + width] + extra).digest()
            chain.append(parent)


class BlockIdContent:
    """Content given by a trace's block ids: key = (chained id, index of the engine's block), as one integer.

    Only blocks that lie wholly inside the tokens the ids cover can be shared; later ones hold outputs, which a trace
    does not identify, and are private.
    """

    __slots__ = ("_ids", "_num_tokens", "_private", "_trace_block_size")
    shares_prompt = True
    shares_outputs = False

    def __init__(self, chained_ids: Sequence[int], trace_block_size: int, num_tokens: int) -> None:
        """`chained_ids` name prefixes (see `ChainedIds` for ids that name single blocks); they cover the first
        `num_tokens` tokens, the last id possibly a part of its block."""
        self._ids = chained_ids
        self._trace_block_size = trace_block_size
        self._num_tokens = min(num_tokens, len(chained_ids) * trace_block_size)
        self._private = PrivateContent()

    def keys(self, start: int, stop: int, block_size: int) -> Sequence[Hashable]:
        """Negative integers for shareable blocks, so that they never meet private keys."""
        shared = self._num_tokens // block_size
        ids, unit = self._ids, self._trace_block_size
        found: list[int] = [
            -((int(ids[((i + 1) * block_size - 1) // unit]) << 40) + i + 1) for i in range(start, min(stop, shared))
        ]
        if stop > shared:
            found.extend(self._private.keys(max(start, shared), stop, block_size))  # type: ignore[arg-type]
        return found

    def runs(self, num_tokens: int) -> list[Run]:
        """A run a trace block, as far as the ids go."""
        unit, stop = self._trace_block_size, min(num_tokens, self._num_tokens)
        starts = range(0, stop, unit)
        return [Run(int(self._ids[i]), start, min(start + unit, stop)) for i, start in enumerate(starts)]

    def fork(self, num_tokens: int) -> Content:
        """Private from there on: a trace does not tell samples apart."""
        return BranchContent(self, num_tokens)


class BranchContent:
    """Content that equals another's up to a token, and nobody's from there on: a sample, or a beam.

    A block belongs to the branch of its last token. Beams fork at every step, so lineages are kept flat.
    """

    __slots__ = ("_firsts", "_offsets", "_trunk", "shares_prompt")
    shares_outputs = False

    def __init__(self, parent: Content, num_tokens: int) -> None:
        """`num_tokens`: how many tokens come from `parent`."""
        private = next(_private_ids) << 40
        self._trunk: Content = parent
        self._firsts: list[int] = []
        self._offsets: list[int] = []
        if isinstance(parent, BranchContent):
            kept = bisect_left(parent._firsts, num_tokens)
            self._trunk, self._firsts, self._offsets = parent._trunk, parent._firsts[:kept], parent._offsets[:kept]
        self._firsts = [*self._firsts, num_tokens]
        self._offsets = [*self._offsets, private]
        self.shares_prompt = self._trunk.shares_prompt

    def keys(self, start: int, stop: int, block_size: int) -> Sequence[Hashable]:
        """The trunk's keys as far as it goes, then integers that no other branch has."""
        own = min(max(self._firsts[0] // block_size, start), stop)
        found: list[Hashable] = list(self._trunk.keys(start, own, block_size)) if own > start else []
        for index in range(own, stop):
            branch = bisect_right(self._firsts, (index + 1) * block_size - 1) - 1
            found.append(self._offsets[branch] + index)
        return found

    def fork(self, num_tokens: int) -> Content:
        """Another branch."""
        return BranchContent(self, num_tokens)


class ChainedIds:
    """Turns ids that name the content of one block into ids that name a whole prefix, across a trace's requests."""

    def __init__(self) -> None:
        self._interned: dict[tuple[int, int], int] = {}

    def chain(self, block_ids: Sequence[int]) -> list[int]:
        """One id a block; equal ids if and only if all ids up to that block are equal."""
        parent, chained = -1, []
        for block_id in block_ids:
            parent = self._interned.setdefault((parent, int(block_id)), len(self._interned))
            chained.append(parent)
        return chained
