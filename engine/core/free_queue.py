"""vLLM's free queue, id by id, with bulk operations.

One list that serves from the head. Blocks without content return to the front: a stack (top = head). Blocks that hold
cached content return to the back: a queue of segments, one a release, so that a request's blocks come and go with a
slice. A hit takes a block out of the middle: its segment remembers that it is gone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import IntEnum


class Held(IntEnum):
    """What the blocks of one segment hold."""

    NOTHING = 0
    """No content: only where freed blocks queue up at the back."""
    UNFINDABLE = 1
    """Content that nobody can ask for again: its request has finished and shares nothing."""
    FINDABLE = 2
    """Content under keys, at least in part."""


NOTHING = Held.NOTHING
FINDABLE = Held.FINDABLE
UNFINDABLE = Held.UNFINDABLE
MOST_GONE = 1_024
"""Places of blocks that are gone, beyond as many as are there, before they are cleared away."""


class Segment:
    """Blocks that one release put at the back; the last of the list is the next to be handed out."""

    __slots__ = ("blocks", "gone", "held")

    def __init__(self, blocks: list[int], held: Held) -> None:
        self.blocks = blocks
        self.held = held
        self.gone: set[int] | None = None
        """Blocks that a hit took out; they stay in the list until their turn comes. Most segments never lose any."""

    def queue(self) -> list[int]:
        """Blocks still queued, in the order in which they will be handed out."""
        return [b for b in reversed(self.blocks) if not self.gone or b not in self.gone]

    def lose(self, block_id: int) -> None:
        """A hit takes that block."""
        if self.gone is None:
            self.gone = set()
        self.gone.add(block_id)

    def loses_first(self, block_ids: list[int]) -> bool:
        """Whether these are the first blocks of the segment, as where a hit is the table that it held: then they are
        gone, and leave no places."""
        count, blocks = len(block_ids), self.blocks
        if self.gone or blocks[:count] != block_ids:
            return False
        del blocks[:count]
        return True


class FreeQueue:
    """Free blocks: a stack in front of a queue of segments."""

    __slots__ = ("_home", "_num_gone", "_segments", "num_at_back", "num_unfindable", "stack")

    def __init__(self, capacity: int) -> None:
        self.stack = list(range(capacity, 0, -1))
        """The front; the last is the head of the whole queue. Blocks without content, but for the first ones."""
        self.num_unfindable = 0
        """How many of the stack, its first ones, hold content that nobody can ask for: `refill` brought them."""
        self._segments: deque[Segment] = deque()
        self._home: list[Segment | None] = [None] * (capacity + 1)
        """Segment of each findable block in the queue, by id, for hits."""
        self.num_at_back = 0
        """Blocks of the segments that are still there."""
        self._num_gone = 0
        """Places of blocks that hits took out, in all segments; a segment that is empty since then is one, too."""

    def __len__(self) -> int:
        return len(self.stack) + self.num_at_back

    def order(self) -> list[int]:
        """All ids, head first; O(free), for tests."""
        return self.stack[::-1] + [b for segment in self._segments for b in segment.queue()]

    def back(self) -> list[Segment]:
        """The segments, next to go first."""
        return list(self._segments)

    def push_back(self, blocks: list[int], held: Held) -> None:
        """Blocks in the order of the table: as a group they become the tail, last block first."""
        segment = Segment(blocks, held)
        self._segments.append(segment)
        self.num_at_back += len(blocks)
        if held is FINDABLE:
            home = self._home
            for block_id in blocks:
                home[block_id] = segment

    def count_findable(self, block_ids: Sequence[int]) -> int:
        """How many of these cached blocks lie in the queue."""
        return len(block_ids) - list(map(self._home.__getitem__, block_ids)).count(None)

    def take_out(self, block_ids: list[int]) -> list[int]:
        """A hit takes the findable blocks from wherever they are; those that do not lie in the queue are returned."""
        home = self._home
        first = home[block_ids[0]] if block_ids else None
        if first is not None and first.loses_first(block_ids):
            for block_id in block_ids:
                home[block_id] = None
            self.num_at_back -= len(block_ids)
            self._num_gone += not first.blocks
            self._compact()
            return []
        elsewhere = []
        for block_id in block_ids:
            segment = home[block_id]
            if segment is None:
                elsewhere.append(block_id)
            else:
                home[block_id] = None
                segment.lose(block_id)
                self.num_at_back -= 1
                self._num_gone += 1
        self._compact()
        return elsewhere

    def _compact(self) -> None:
        """Forgets the places of blocks that are gone, where they are many: a prefix that is hit again and again leaves
        one each time."""
        if self._num_gone <= self.num_at_back + MOST_GONE:
            return
        for segment in self._segments:
            self._close_up(segment)
        self._segments = deque(segment for segment in self._segments if segment.blocks)
        self._num_gone = 0

    def refill(self, count: int) -> None:
        """Puts the next segments under the stack until it holds `count` blocks, as long as nobody can hit them: the
        order stays, and the blocks come and go with a slice."""
        stack, segments = self.stack, self._segments
        while len(stack) < count and segments and segments[0].held is UNFINDABLE:
            blocks = segments.popleft().blocks
            stack[:0] = blocks
            self.num_unfindable += len(blocks)
            self.num_at_back -= len(blocks)

    def pop_back(self, count: int) -> list[tuple[list[int], Held]]:
        """`count` blocks of the segments, grouped by what they held."""
        groups, segments, home = [], self._segments, self._home
        self.num_at_back -= count
        while count:
            segment = segments[0]
            blocks = segment.blocks
            if not blocks:
                self._num_gone -= 1
            elif segment.gone:
                self._close_up(segment)
            taken = blocks[: -count - 1 : -1]
            if len(taken) == len(blocks):
                segments.popleft()
            else:
                del blocks[-count:]
            if segment.held is FINDABLE:
                for block_id in taken:
                    home[block_id] = None
            count -= len(taken)
            groups.append((taken, segment.held))
        return groups

    def _close_up(self, segment: Segment) -> None:
        """Forgets the places of blocks that hits took out of this segment."""
        gone = segment.gone
        if gone:
            segment.blocks[:] = [block_id for block_id in segment.blocks if block_id not in gone]
            self._num_gone -= len(gone)
            gone.clear()

    def forget_content(self) -> list[int]:
        """All content is given up: the queue keeps its order, now as one stack. The blocks that held something."""
        held = [b for segment in self._segments for b in segment.queue()]
        self._segments.clear()
        self._home = [None] * len(self._home)
        self.num_at_back = self.num_unfindable = self._num_gone = 0
        self.stack[:0] = reversed(held)
        return held
