"""The trace: what arrives, as read-only int64 columns, validated once and hashed by content.

Times are integer nanoseconds. float32 seconds lose milliseconds after a week, and float64 sums depend on
their order; integers keep every reader, file format and machine on the same digits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from workloads import reshape, validation

if TYPE_CHECKING:
    import pandas as pd

Int64s = NDArray[np.int64]

OK: Final = 0
"""Status of a row that is replayed."""
FAILED: Final = 1
"""Status of a row without output tokens: kept and counted, never replayed."""

ROW_COLUMNS: Final = (
    "arrival_ns",
    "num_prompt_tokens",
    "num_output_tokens",
    "limit_tokens",
    "priority",
    "session",
    "parent",
    "delay_ns",
)
"""One number a row, all that a replay sees of it but its block ids."""
HASHED_COLUMNS: Final = (*ROW_COLUMNS, "block_offsets", "block_ids")


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """Requests in order of arrival; a row is a request, and row index is its identity inside the trace.

    All columns are read-only: copies, or arrays that were read-only already and own their memory. Raises ValueError
    naming the column and the first bad row when a column has the wrong shape or dtype, or when the columns contradict
    each other (`workloads/validation.py` lists the rules). `Trace.build` fills the optional columns.
    """

    name: str
    arrival_ns: Int64s
    """[n] nanoseconds, non-decreasing, at least 0. A row with `delay_ns` carries its parent's arrival: it
    cannot come earlier, and a replay takes the later time."""
    num_prompt_tokens: Int64s
    """[n] tokens, at least 1 unless the row has failed."""
    num_output_tokens: Int64s
    """[n] tokens the request really generated; 0 means that it failed."""
    limit_tokens: Int64s
    """[n] the row's own limit on output tokens, -1 for none."""
    priority: Int64s
    """[n] 0 by default."""
    session: Int64s
    """[n] number of the conversation, -1 for none."""
    parent: Int64s
    """[n] row index of the previous turn, always an earlier row, -1 for none."""
    delay_ns: Int64s
    """[n] nanoseconds from the end of the parent to this arrival, -1 where `arrival_ns` counts."""
    block_offsets: Int64s
    """[n + 1] row i owns block_ids[block_offsets[i] : block_offsets[i + 1]]."""
    block_ids: Int64s
    """[total] ids of the prompt's content, one per `block_size` tokens; of scope 'runs' text, tokens, text, ..."""
    block_size: int
    """Tokens per block id, 0 when the trace has no ids. Not the KV block size of an engine."""
    block_scope: str
    """'chained': an id stands for its block and everything before it. 'content': for its own block only, so
    it is a key only together with the ids before it. 'runs': pairs of a text's number and how many tokens the
    prompt has of it, position for position; the last text goes on through the answer. '' without ids."""
    block_partial: str
    """'ceil': a partly filled last block has an id too. 'floor': full blocks only. '' without ids."""
    source_row: Int64s
    """[n] 1-based line or row number in the file that was read; not part of the hash."""
    status: NDArray[np.int8]
    """[n] 0 ok, 1 failed (no output tokens)."""
    source: dict[str, str] = field(default_factory=dict)
    """Provenance: format, file name, recipe, seed. Not part of the hash."""

    def __post_init__(self) -> None:
        for column in (*HASHED_COLUMNS, "source_row", "status"):
            object.__setattr__(self, column, validation.frozen_column(self, column))
        object.__setattr__(self, "source", {str(key): str(value) for key, value in self.source.items()})
        validation.check_columns(self)

    @classmethod
    def build(
        cls,
        arrival_ns: ArrayLike,
        num_prompt_tokens: ArrayLike,
        num_output_tokens: ArrayLike,
        *,
        name: str = "trace",
        limit_tokens: ArrayLike | None = None,
        priority: ArrayLike | None = None,
        session: ArrayLike | None = None,
        parent: ArrayLike | None = None,
        delay_ns: ArrayLike | None = None,
        block_offsets: ArrayLike | None = None,
        block_ids: ArrayLike | None = None,
        block_size: int = 0,
        block_scope: str = "",
        block_partial: str = "",
        source_row: ArrayLike | None = None,
        source: Mapping[str, str] | None = None,
    ) -> Trace:
        """A trace from any integer sequences, with defaults for optional columns; status follows output."""
        n = len(validation.integers("arrival_ns", arrival_ns))
        given: dict[str, ArrayLike | None] = {
            "arrival_ns": arrival_ns,
            "num_prompt_tokens": num_prompt_tokens,
            "num_output_tokens": num_output_tokens,
            "limit_tokens": limit_tokens,
            "priority": priority,
            "session": session,
            "parent": parent,
            "delay_ns": delay_ns,
            "block_offsets": block_offsets,
            "block_ids": block_ids,
            "source_row": source_row,
        }
        columns = {key: _filled(key, values, n) for key, values in given.items()}
        failed = columns["num_output_tokens"] == 0
        return cls(
            name=name,
            block_size=block_size,
            block_scope=block_scope,
            block_partial=block_partial,
            status=np.where(failed, FAILED, OK).astype(np.int8),
            source=dict(source or {}),
            **columns,
        )

    def __len__(self) -> int:
        return len(self.arrival_ns)

    def block_ids_of(self, i: int) -> Int64s:
        """Block ids of row `i`, a read-only view."""
        return self.block_ids[self.block_offsets[i] : self.block_offsets[i + 1]]

    def sha256(self) -> str:
        """Hash of what a replay can see; the same from CSV, JSONL, Parquet or gzip. O(bytes).

        Name, provenance and `source_row` are left out; `status` follows from the output tokens.
        """
        blocks = f"{self.block_size} {self.block_scope} {self.block_partial}"
        digest = hashlib.sha256(f"pagelab trace 1\n{len(self)} {blocks}\n".encode())
        for column in HASHED_COLUMNS:
            values: Int64s = getattr(self, column)
            digest.update(f"{column} {len(values)}\n".encode())
            digest.update(np.ascontiguousarray(values, "<i8").data)
        return digest.hexdigest()

    def slice(self, start: int, stop: int) -> Trace:
        """Rows [start, stop), re-based so that the first arrives at 0."""
        return reshape.slice_rows(self, start, stop)

    def window(self, start_s: float, stop_s: float) -> Trace:
        """Rows that arrive in [start_s, stop_s), re-based so that `start_s` is 0."""
        return reshape.window(self, start_s, stop_s)

    def with_rate(self, requests_per_s: float) -> Trace:
        """The same gaps in proportion, at (n - 1) / span = `requests_per_s`; delays of turns are kept."""
        return reshape.with_rate(self, requests_per_s)

    def scale_time(self, factor: float) -> Trace:
        """All times and delays multiplied by `factor` (2 is twice as slow), rounded down to nanoseconds."""
        return reshape.scale_time(self, factor)

    def sample(self, num_requests: int, seed: int, replace: bool = False) -> Trace:
        """`num_requests` rows drawn by `seed`, in file order, re-based to 0."""
        return reshape.sample(self, num_requests, seed, replace)

    def repeat(self, num_requests: int) -> Trace:
        """`num_requests` rows, going round: every round begins a mean gap after the last, with sessions of its own
        and the same block ids (the same prompts come again)."""
        return reshape.repeat(self, num_requests)

    def shuffle_lengths(self, seed: int) -> Trace:
        """The same arrivals, with everything else of the rows permuted together by `seed`."""
        return reshape.shuffle_lengths(self, seed)

    def with_arrivals(self, arrival_ns: ArrayLike) -> Trace:
        """The same rows at other times (nanoseconds, non-decreasing); delays are dropped."""
        return reshape.with_arrivals(self, validation.integers("arrival_ns", arrival_ns))

    def to_frame(self) -> pd.DataFrame:
        """One row a request; `block_ids` is a column of arrays, present only if the trace has ids."""
        import pandas as pd

        names = [*ROW_COLUMNS, "source_row", "status"]
        columns: dict[str, Any] = {column: getattr(self, column) for column in names}
        if self.block_size:
            columns["block_ids"] = [self.block_ids_of(i) for i in range(len(self))]
        return pd.DataFrame(columns)


def _filled(column: str, values: ArrayLike | None, n: int) -> Int64s:
    """The values as int64, or the column's default for `n` rows."""
    if values is not None:
        return validation.integers(column, values)
    if column == "block_offsets":
        return np.zeros(n + 1, np.int64)
    if column == "block_ids":
        return np.zeros(0, np.int64)
    if column == "source_row":
        return np.arange(1, n + 1)
    # One value seen n times; the trace's own copy is the only one that takes room.
    return np.broadcast_to(np.int64(0 if column == "priority" else -1), n)
