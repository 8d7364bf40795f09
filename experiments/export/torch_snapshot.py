"""The pool as a snapshot of PyTorch's caching allocator, for pytorch.org/memory_viz and `torch.cuda._memory_viz`.

The KV memory is one segment: a block has its bytes of all layers in one place. Each run of adjacent blocks with one
owner is an allocation; what has no owner is inactive. Between two pictures of the run, allocations that are gone are
freed and new ones made. The format has no field for what an owner leaves empty, so allocations count in full.
Plain dictionaries: torch is needed to look at them, not to write them.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from engine.core.allocator import CACHED, FREE, LEAVING, NULL, SHARED
from experiments.exits import UsageError

if TYPE_CHECKING:
    import pandas as pd

    from experiments.export.runs import StoredRun

BASE: Final = 0x7F0000000000
"""Address of block 0: where CUDA likes to put things."""
OWNERLESS: Final = {SHARED: "shared block", NULL: "null block", LEAVING: "left, still copied from"}
Span = tuple[int, int, int]
"""First block, blocks, owner."""


def snapshot_of(run: StoredRun, at_s: float | None = None) -> dict[str, Any]:
    """Up to the last picture at or before `at_s` [the end of the run]; UsageError where there is none."""
    frame = run.table("map")
    pictures = list(_pictures(frame, at_s))
    if not pictures:
        first = f"the first one is of {frame['time_s'].min():g} s" if len(frame) else "run with --map-frames 160"
        raise UsageError(f"{run.folder}: no picture of the pool at that time; {first}")
    capacity = run.manifest.get("capacity", {})
    if not isinstance(capacity.get("bytes_per_token"), int):
        raise UsageError(f"{run.folder}: the manifest does not say how many bytes a token takes")
    unit = int(capacity["bytes_per_token"] * run.row["block_size"])
    _, last = pictures[-1]
    return {
        "segments": [_segment(last, unit)],
        "device_traces": [list(_events(pictures, unit))],
        "external_annotations": [],
        "allocator_settings": {"PYTORCH_ALLOC_CONF": "", "max_split_size": -1, "expandable_segments": False},
    }


def pickled(snapshot: dict[str, Any]) -> bytes:
    """As `torch.cuda.memory._dump_snapshot` would write it."""
    return pickle.dumps(snapshot, protocol=4)


def _pictures(frame: pd.DataFrame, at_s: float | None) -> Iterator[tuple[int, list[Span]]]:
    """(microseconds, the pool in address order)."""
    for time_s in sorted(set(frame["time_s"].astype(float).tolist())):
        if at_s is not None and time_s > at_s:
            return
        picture = frame[frame["time_s"] == time_s]
        columns = (picture[name].astype(int) for name in ("start_block", "num_blocks", "owner"))
        yield round(time_s * 1e6), list(zip(*columns, strict=True))


def _frames(owner: int) -> list[dict[str, Any]]:
    """The name of who holds a block, where the format has a call stack."""
    name = OWNERLESS.get(owner) or ("free" if owner in (FREE, CACHED) else f"request {owner}")
    return [{"filename": "pagelab", "line": max(owner, 0), "name": name}]


def _is_active(span: Span) -> bool:
    return span[2] not in (FREE, CACHED)


def _segment(spans: Iterable[Span], unit: int) -> dict[str, Any]:
    blocks: list[dict[str, Any]] = [
        {
            "address": BASE + start * unit,
            "size": count * unit,
            "requested_size": count * unit,
            "state": "active_allocated" if _is_active((start, count, owner)) else "inactive",
            "frames": _frames(owner),
        }
        for start, count, owner in spans
    ]
    active = sum(block["size"] for block in blocks if block["state"] == "active_allocated")
    return {
        "device": 0,
        "address": BASE,
        "total_size": sum(block["size"] for block in blocks),
        "allocated_size": active,
        "active_size": active,
        "requested_size": active,
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": blocks,
    }


def _events(pictures: list[tuple[int, list[Span]]], unit: int) -> Iterator[dict[str, Any]]:
    """The segment, then what changes from picture to picture: frees before allocations."""
    began, first = pictures[0]
    yield _event("segment_alloc", (0, sum(count for _, count, _ in first), NULL), unit, began)
    held: dict[Span, None] = {}
    for time_us, spans in pictures:
        now = dict.fromkeys(span for span in spans if _is_active(span))
        for span in held:
            if span not in now:
                yield _event("free_requested", span, unit, time_us)
                yield _event("free_completed", span, unit, time_us)
        for span in now:
            if span not in held:
                yield _event("alloc", span, unit, time_us)
        held = now


def _event(action: str, span: Span, unit: int, time_us: int) -> dict[str, Any]:
    start, count, owner = span
    return {
        "action": action,
        "addr": BASE + start * unit,
        "size": count * unit,
        "stream": 0,
        "time_us": time_us,
        "frames": _frames(owner),
    }
