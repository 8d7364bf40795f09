"""Points that come to the same run: planned once, and what is said of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from experiments.pages import VIRTUAL, nothing_to

NOTHING_TO: Final = {
    "kv.block_size": f"{VIRTUAL}, whose blocks are its pages (kv.page_bytes)",
    "kv.page_bytes": "allocators that map no pages",
}
"""Axes that are nothing to some allocators: which."""
MOST_TOLD: Final = 3


def told(point: Mapping[str, Any]) -> str:
    """`kv.block_size=8 kv.allocator=null`."""
    return " ".join(f"{key}={'null' if value is None else value}" for key, value in point.items())


@dataclass(frozen=True, slots=True)
class Merged:
    """A point that has no run of its own."""

    point: Mapping[str, Any]
    into: Mapping[str, Any]
    """The point whose run is also its: the first of the kind."""
    allocator: str

    def __str__(self) -> str:
        return f"{told(self.point)} " + ("twice" if self.point == self.into else f"is {told(self.into)}")

    @property
    def ignored(self) -> list[str]:
        """Axes in which the two differ, where all of these are nothing to its allocator; [] for any other reason."""
        keys = [key for key, value in self.point.items() if value != self.into[key]]
        return keys if keys == [nothing_to(self.allocator)] else []


def merging_notes(merged: Sequence[Merged]) -> list[str]:
    """How many there are and why, and where their values are shown."""
    if not merged:
        return []
    ignored = [key for one in merged for key in one.ignored]
    notes = [
        f"{key} changes nothing for {NOTHING_TO[key]}: {ignored.count(key)} points are the runs of others"
        for key in dict.fromkeys(ignored)
    ]
    more = f", and {len(merged) - MOST_TOLD} more" if len(merged) > MOST_TOLD else ""
    shown = ""
    if any(one.point != one.into for one in merged):
        shown = "; report, plot and compare show the run at each of its points, summary.csv has it once"
    notes.append(
        f"{len(merged)} duplicate points are merged, by the hash of what they resolve to: "
        f"{'; '.join(map(str, merged[:MOST_TOLD]))}{more}{shown}"
    )
    return notes


def merged_entries(merged: Sequence[Merged]) -> list[dict[str, Any]]:
    """For the manifest: the points that differ from the one they were merged into, each once."""
    others = {told(one.point): one for one in merged if one.point != one.into}
    return [{"point": dict(one.point), "into": dict(one.into)} for one in others.values()]
