"""Where a contiguous allocation lies: free extents of adjacent units, and three ways to choose one.

Units are blocks, addresses start at 0 (block id - 1). First fit and best fit keep a sorted list of holes; buddy
follows the SOSP'23 artifact: the pool is tiled greedily with powers of two, requests round up to a power of two,
buddies are found by address XOR size.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Protocol


class Placement(Protocol):
    """Free space as extents. `num_free` counts units, `take` returns (start, granted units) or None."""

    num_free: int

    def take(self, units: int) -> tuple[int, int] | None:
        """At least `units` adjacent units, or None if no extent is large enough; a refusal changes nothing."""
        ...

    def grow(self, start: int, granted: int, units: int) -> int | None:
        """Enlarges an extent in place to at least `units`: the new granted size, or None without change."""
        ...

    def slide(self, start: int, granted: int, units: int) -> tuple[int, int] | None:
        """At least `units` adjacent units over this extent and the free space right beside it, beginning to its left:
        (start, granted units), or None without change. What the new extent does not cover of the old stays taken."""
        ...

    def give(self, start: int, granted: int) -> None:
        """Returns an extent that was handed out, or the part of one that a slide has left."""
        ...

    def round_up(self, units: int) -> int:
        """What `take(units)` would hand out."""
        ...

    def largest(self) -> int:
        """Units of the largest free extent."""
        ...

    def largest_ever(self) -> int:
        """Units of the largest extent of the empty pool: more can never be served."""
        ...

    def most_now(self, units: int) -> int:
        """How many extents of so many units could be taken now."""
        ...

    def most_ever(self, units: int) -> int:
        """How many could be taken from the empty pool."""
        ...

    def holes(self) -> list[tuple[int, int]]:
        """Free extents as (start, units), by address."""
        ...


class Holes:
    """A sorted list of free extents, coalesced on return: first fit, or best fit if `best`."""

    def __init__(self, units: int, *, best: bool) -> None:
        self.num_free = units
        self._units = units
        self._best = best
        self._starts = [0]
        self._sizes = [units]

    def take(self, units: int) -> tuple[int, int] | None:
        """First fit: the lowest hole that is large enough. Best fit: the smallest such hole, lowest on ties."""
        chosen = -1
        for index, size in enumerate(self._sizes):
            if size >= units and (chosen < 0 or size < self._sizes[chosen]):
                chosen = index
                if not self._best:
                    break
        if chosen < 0:
            return None
        start = self._starts[chosen]
        self._cut(chosen, units)
        return start, units

    def _cut(self, index: int, units: int) -> None:
        """Removes `units` from the low end of a hole."""
        self.num_free -= units
        if self._sizes[index] == units:
            del self._starts[index], self._sizes[index]
        else:
            self._starts[index] += units
            self._sizes[index] -= units

    def grow(self, start: int, granted: int, units: int) -> int | None:
        """Takes from the hole right behind the extent."""
        index = bisect_left(self._starts, start + granted)
        behind = index < len(self._starts) and self._starts[index] == start + granted
        if not behind or self._sizes[index] < units - granted:
            return None
        self._cut(index, units - granted)
        return units

    def slide(self, start: int, granted: int, units: int) -> tuple[int, int] | None:
        """To the low end of the hole before the extent; asked where no hole alone is large enough."""
        index = bisect_left(self._starts, start)
        if not index or self._starts[index - 1] + self._sizes[index - 1] != start:
            return None
        before, beyond = self._sizes[index - 1], units - granted - self._sizes[index - 1]
        if beyond > 0 and self.grow(start, granted, granted + beyond) is None:
            return None
        self._cut(index - 1, before)
        return start - before, units

    def give(self, start: int, granted: int) -> None:
        """Merges with the holes on either side."""
        self.num_free += granted
        index = bisect_left(self._starts, start)
        if index < len(self._starts) and self._starts[index] == start + granted:
            granted += self._sizes[index]
            del self._starts[index], self._sizes[index]
        if index and self._starts[index - 1] + self._sizes[index - 1] == start:
            self._sizes[index - 1] += granted
        else:
            self._starts.insert(index, start)
            self._sizes.insert(index, granted)

    def round_up(self, units: int) -> int:
        """No rounding."""
        return units

    def largest(self) -> int:
        """O(holes): at most one more than there are allocations."""
        return max(self._sizes, default=0)

    def largest_ever(self) -> int:
        """The whole pool."""
        return self._units

    def most_now(self, units: int) -> int:
        """Of each hole as often as it goes in."""
        return sum(size // units for size in self._sizes)

    def most_ever(self, units: int) -> int:
        """As often as it goes in."""
        return self._units // units

    def holes(self) -> list[tuple[int, int]]:
        """The list itself, as pairs."""
        return list(zip(self._starts, self._sizes, strict=True))


class Buddy:
    """Binary buddies of at most `largest` units; a pool that is no power of two is tiled, largest first."""

    def __init__(self, units: int, *, largest: int) -> None:
        self._order = (largest - 1).bit_length()
        # A pool smaller than the largest buddy still tiles: its largest tile is what can ever be served.
        self._order = min(self._order, units.bit_length() - 1)
        self.num_free = self._units = units
        self._free: list[dict[int, None]] = [{} for _ in range(self._order + 1)]
        start, order = 0, self._order
        while start < units:
            while (1 << order) > units - start:
                order -= 1
            self._free[order][start] = None
            start += 1 << order

    def round_up(self, units: int) -> int:
        """The next power of two."""
        return 1 << (units - 1).bit_length()

    def take(self, units: int) -> tuple[int, int] | None:
        """The smallest free buddy that is large enough, split down; the latest freed first within a size."""
        order = (units - 1).bit_length()
        found = next((o for o in range(order, self._order + 1) if self._free[o]), None)
        if found is None:
            return None
        start, _ = self._free[found].popitem()
        while found > order:
            found -= 1
            self._free[found][start + (1 << found)] = None
        self.num_free -= 1 << order
        return start, 1 << order

    def grow(self, start: int, granted: int, units: int) -> int | None:
        """Joins the right-hand buddies if all of them are free."""
        size = 1 << (units - 1).bit_length()
        if start & (size - 1):
            return None  # a buddy on the way lies to the left
        joined = self.slide(start, granted, units)
        return None if joined is None else joined[1]

    def slide(self, start: int, granted: int, units: int) -> tuple[int, int] | None:
        """Joins the buddies on both sides, up to the power of two, if all of them are free."""
        joined, size = [], granted
        while size < units:
            order, buddy = size.bit_length() - 1, start ^ size
            if order >= self._order or buddy not in self._free[order]:
                return None
            joined.append((order, buddy))
            start, size = min(start, buddy), 2 * size
        for order, buddy in joined:
            del self._free[order][buddy]
        self.num_free -= size - granted
        return start, size

    def give(self, start: int, granted: int) -> None:
        """Coalesces with the buddy at `start XOR size` as long as that is free."""
        self.num_free += granted
        order = granted.bit_length() - 1
        while order < self._order and (start ^ (1 << order)) in self._free[order]:
            buddy = start ^ (1 << order)
            del self._free[order][buddy]
            start = min(start, buddy)
            order += 1
        self._free[order][start] = None

    def largest(self) -> int:
        """The largest order that has a free buddy."""
        return next((1 << o for o in range(self._order, -1, -1) if self._free[o]), 0)

    def largest_ever(self) -> int:
        """The largest tile."""
        return 1 << self._order

    def most_now(self, units: int) -> int:
        """Every larger buddy splits into whole ones."""
        order = (units - 1).bit_length()
        return sum(len(self._free[o]) << (o - order) for o in range(order, self._order + 1))

    def most_ever(self, units: int) -> int:
        """Of each tile as often as it goes in."""
        order = (units - 1).bit_length()
        return self._units >> order if order <= self._order else 0

    def holes(self) -> list[tuple[int, int]]:
        """Free buddies; adjacent ones are not merged, as they cannot be served together."""
        return sorted((start, 1 << order) for order, starts in enumerate(self._free) for start in starts)


def make_placement(name: str, units: int, *, largest: int) -> Placement:
    """`first-fit`, `best-fit` or `buddy` (buddies up to the power of two at or above `largest` units)."""
    if name == "first-fit":
        return Holes(units, best=False)
    if name == "best-fit":
        return Holes(units, best=True)
    if name == "buddy":
        return Buddy(units, largest=largest)
    raise ValueError(f"unknown fit {name!r}: use first-fit, best-fit or buddy")
