"""A trace's rows as requests, built one at a time as they arrive."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from engine.core.content import BlockIdContent, ChainedIds, Content
from engine.core.request import Request
from engine.core.text_runs import RunContent
from sim.rows import RequestRow

if TYPE_CHECKING:
    from sim.group_room import Room
    from workloads import Trace

PS_PER_NS = 1_000
ROWS_AT_ONCE = 4_096


@dataclass(frozen=True, slots=True)
class LengthLimits:
    """What bounds a request's length."""

    max_model_len: int
    capacity_tokens: int
    too_long: Literal["reject", "truncate"] = "reject"

    of_group: Room | None = None
    """Where requests are groups: what bounds theirs, in place of the pool's tokens."""

    def room(self, prompt: int, output: int) -> int:
        """Most output tokens behind a prompt."""
        if self.of_group is not None:
            return self.of_group(prompt, output)
        return min(self.max_model_len, self.capacity_tokens) - prompt


def requests_of(trace: Trace, limits: LengthLimits, turn_away: Callable[[RequestRow], None]) -> Iterator[Request]:
    """Requests in trace order, times in picoseconds. Rows that are not replayed go to `turn_away` with their reason:
    `failed` (no output tokens) or `rejected` (too long for the model or the pool; a prompt that leaves no room)."""
    content = _content_maker(trace)
    for index, (arrival_ns, prompt, output, limit, priority, status) in enumerate(_rows(trace)):
        arrival = arrival_ns * PS_PER_NS
        room = limits.room(prompt, output)
        max_tokens = min(limit, room) if limit > 0 and limits.too_long == "truncate" else limit if limit > 0 else room
        wanted = min(output, limit) if limit > 0 else output
        too_long = room < 1 or (limits.too_long == "reject" and wanted > room)
        if status or too_long:
            turn_away(_away("failed" if status else "rejected", index, arrival, prompt, max(max_tokens, 0), priority))
            continue
        yield Request(
            index,
            prompt,
            max_tokens,
            oracle_output_tokens=output,
            arrival=arrival,
            priority=priority,
            content=content(index, prompt),
        )


def _rows(trace: Trace) -> Iterator[tuple[int, ...]]:
    """The columns row by row, as Python integers; some thousand rows at a time, so that not all are there at once."""
    columns = (
        trace.arrival_ns,
        trace.num_prompt_tokens,
        trace.num_output_tokens,
        trace.limit_tokens,
        trace.priority,
        trace.status,
    )
    for low in range(0, len(trace), ROWS_AT_ONCE):
        yield from zip(*(column[low : low + ROWS_AT_ONCE].tolist() for column in columns), strict=True)


def _away(status: str, index: int, arrival: int, prompt: int, max_tokens: int, priority: int) -> RequestRow:
    return RequestRow(index, status, arrival, -1, -1, -1, prompt, 0, max_tokens, priority, 0, 0, 0, 0, 0)


def _content_maker(trace: Trace) -> Callable[[int, int], Content | None]:
    """Content from the trace's block ids where it has any."""
    if not trace.block_size:
        return lambda index, prompt: None
    if trace.block_scope == "runs":
        return _run_content_maker(trace)
    chained = trace.block_scope == "chained"
    chains, size = ChainedIds(), trace.block_size

    def make(index: int, prompt: int) -> Content | None:
        ids: Sequence[int] = trace.block_ids_of(index).tolist()
        return BlockIdContent(ids if chained else chains.chain(ids), size, prompt) if ids else None

    return make


def _run_content_maker(trace: Trace) -> Callable[[int, int], Content | None]:
    """Content from runs of texts. An answer may be shared where its text is another row's, too."""
    rows = np.repeat(np.arange(len(trace)), np.diff(trace.block_offsets) // 2)
    texts, num_rows = np.unique(np.unique(np.stack((trace.block_ids[::2], rows)), axis=1)[0], return_counts=True)
    common = set(texts[num_rows > 1].tolist())
    chains = ChainedIds()

    def make(index: int, prompt: int) -> Content | None:
        runs: list[int] = trace.block_ids_of(index).tolist()
        return RunContent(runs, chains, shares_outputs=runs[-2] in common) if runs else None

    return make
