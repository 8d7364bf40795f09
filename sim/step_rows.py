"""Measured steps of any engine, a row a step: the table that a step-time model is calibrated with.

As CSV the columns are those of `LoggedStep`, a header first. A reader of an engine's own log makes such rows; nothing
here knows any engine.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple


class LoggedStep(NamedTuple):
    """One step of an engine."""

    num_decodes: int
    """Sequences that got one token each after their first output token."""
    num_prefills: int
    """Sequences of which a part of the prompt, or all of it, was computed."""
    num_chunk_tokens: int
    """Prompt tokens computed, summed over the prefills."""
    num_context_tokens: int
    """Tokens whose keys and values had been written before this step, summed over all sequences of it."""
    batch_bucket: int
    """Sequences that the step was padded to (the size of its CUDA graph); 0: not padded, or not known."""
    block_size: int
    """Tokens a KV block."""
    kernel: str
    """Attention back end, by the engine's name for it; empty: not known."""
    duration_s: float
    """From one step's end to the next one's where the engine is never idle; of a log what the log says."""

    @property
    def num_seqs(self) -> int:
        """Sequences of the step."""
        return self.num_decodes + self.num_prefills

    @property
    def num_new_tokens(self) -> int:
        """Tokens computed."""
        return self.num_decodes + self.num_chunk_tokens

    @property
    def num_kv_tokens(self) -> int:
        """Tokens attended to, those of this step included."""
        return self.num_context_tokens + self.num_new_tokens

    @property
    def num_attended_pairs(self) -> int:
        """Sum over new tokens of the tokens that each attends to, itself included. Exact for decodes; with prefills as
        if all sequences had the same context and all chunks the same length, as a sum is all that is known."""
        if not self.num_prefills:
            return self.num_kv_tokens
        context, chunk = self.num_context_tokens / self.num_seqs, self.num_chunk_tokens / self.num_prefills
        prefills = self.num_prefills * (chunk * context + chunk * (chunk + 1) / 2)
        return round(self.num_decodes * (context + 1) + prefills)

    @property
    def longest_chunk_tokens(self) -> int:
        """Context and new tokens of the longest prefill, as if all were as long as each other."""
        if self.num_chunk_tokens <= self.num_prefills:
            return 0
        return round(self.num_context_tokens / self.num_seqs + self.num_chunk_tokens / self.num_prefills)


COLUMNS: Final = LoggedStep._fields
REQUIRED: Final = ("num_decodes", "num_prefills", "num_chunk_tokens", "num_context_tokens", "duration_s")
SUMS: Final = ("num_seqs", "num_new_tokens", "num_kv_tokens", "num_attended_pairs", "longest_chunk_tokens")
"""Written beside the columns, and not read: they follow from them."""
MAX_DURATION_S: Final = 1e5


def read_step_rows(path: Path) -> Iterator[LoggedStep]:
    """The rows of a CSV table with at least `REQUIRED`; further columns are passed over. ValueError with file and line
    for anything else; nothing is skipped."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            table = csv.DictReader(file)
            if lacking := [name for name in REQUIRED if name not in (table.fieldnames or ())]:
                raise ValueError(
                    f"{path}:1: a table of steps needs the columns {', '.join(REQUIRED)}; {', '.join(lacking)} "
                    "are not there: name them in its first line"
                )
            for row in table:
                yield _row(row, f"{path}:{table.line_num}")
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path}: cannot be read as CSV: {error}") from error


def _row(row: dict[str, str], where: str) -> LoggedStep:
    try:
        a, b, c, d, e, f = (int(row.get(name) or 0) for name in COLUMNS[:6])
        found = LoggedStep(a, b, c, d, e, f, row.get("kernel") or "", float(row["duration_s"]))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: {error}; counts are whole numbers, duration_s is in seconds") from None
    check_step_row(found, where)
    return found


def check_step_row(row: LoggedStep, where: str) -> None:
    """ValueError for numbers that no step has."""
    if min(row[:6]) < 0:
        name = COLUMNS[row[:6].index(min(row[:6]))]
        raise ValueError(f"{where}: {name} is {min(row[:6])}: counts are not negative")
    if not 0 < row.duration_s < MAX_DURATION_S:
        raise ValueError(f"{where}: duration_s is {row.duration_s}: a step takes more than 0 and less than 1e5 s")
    if not row.num_seqs:
        raise ValueError(f"{where}: no sequence: leave out steps in which nothing runs")
    if row.num_chunk_tokens < row.num_prefills or (row.num_chunk_tokens and not row.num_prefills):
        raise ValueError(
            f"{where}: {row.num_chunk_tokens} tokens of {row.num_prefills} prefills: each of them has at least one"
        )


def step_rows_csv(rows: Iterable[LoggedStep], run: str, rows_a_run: int = 256) -> str:
    """CSV text, with `SUMS` and the name of a `run`, by which rows are held out, beside each row: so many rows in a
    sequence belong together."""
    lines = [",".join(("run", *COLUMNS, *SUMS))]
    for index, row in enumerate(rows):
        sums = (getattr(row, name) for name in SUMS)
        lines.append(",".join(map(str, (f"{run}#{index // rows_a_run}", *row, *sums))))
    return "\n".join(lines) + "\n"
