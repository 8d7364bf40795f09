"""The table of measured steps that a calibration is fitted to: a row a step."""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from sim.cost import Features

PS: Final = 10**12


class StepRow(NamedTuple):
    """One step. Steps with as many new tokens as sequences are decodes."""

    run: str
    """What belongs together: a grid point, or a run. Rows are held out by run, never one by one."""
    num_seqs: int
    num_new_tokens: int
    num_kv_tokens: int
    """Tokens attended to: context and new ones, summed over sequences."""
    num_attended_pairs: int
    """Sum over new tokens of the tokens that each attends to, itself included."""
    longest_chunk_tokens: int
    """Context and new tokens of the longest sequence that has several new ones; 0 if none has, or it is not known."""
    rows_changed: int
    """1 if other sequences decode than in the step before, else 0."""
    duration_s: float
    """From the end of the step before to its own, exposed host time included."""
    device_s: float
    """From its first command on the device to its end; duration_s where only that is known."""
    host_s: float

    @property
    def gap_s(self) -> float:
        """Time that the device waited for the host before the step."""
        return max(self.duration_s - self.device_s, 0.0)

    @property
    def decodes(self) -> bool:
        """Whether every sequence got one token."""
        return self.num_new_tokens == self.num_seqs

    @property
    def churns(self) -> bool:
        """Whether sequences come and go in its run."""
        return self.run.startswith(CHURN)

    @property
    def features(self) -> Features:
        """What its cost may depend on."""
        return Features(*self[1:6])


COLUMNS: Final = StepRow._fields
REQUIRED: Final = (*COLUMNS[:5], "duration_s")


def write_rows(rows: Iterable[StepRow]) -> str:
    """CSV text."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(COLUMNS)
    table.writerows(rows)
    return text.getvalue()


def rows_sha256(rows: Iterable[StepRow]) -> str:
    """Of the text of `write_rows`."""
    return hashlib.sha256(write_rows(rows).encode()).hexdigest()


def read_rows(path: Path) -> list[StepRow]:
    """A table with at least REQUIRED. ValueError with file and line for anything else; nothing is skipped."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return list(_parsed(csv.DictReader(file), path))
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror}") from error


def _parsed(table: csv.DictReader[str], path: Path) -> Iterable[StepRow]:
    lacking = [name for name in REQUIRED if name not in (table.fieldnames or ())]
    if lacking:
        raise ValueError(f"{path}:1: a table of steps needs columns {', '.join(REQUIRED)}, lacks {', '.join(lacking)}")
    for row in table:
        where = f"{path}:{table.line_num}"
        try:
            whole = [int(row.get(name) or 0) for name in COLUMNS[1:7]]
            duration = float(row["duration_s"])
            others = [float(row.get(name) or duration) for name in COLUMNS[8:]]
        except (TypeError, ValueError) as error:
            raise ValueError(f"{where}: {error}") from error
        found = StepRow(str(row["run"]), *whole, duration, *others)  # type: ignore[call-arg]
        check_row(found, where)
        yield found


def check_row(row: StepRow, where: str) -> None:
    """ValueError for numbers that no step has."""
    seqs, new, kv, pairs, longest = row.features
    if not 0.0 < row.duration_s < 1e5:
        raise ValueError(f"{where}: duration_s={row.duration_s}, expected more than 0 and less than 1e5")
    if not 1 <= seqs <= new <= kv <= pairs:
        raise ValueError(
            f"{where}: expected 1 <= num_seqs <= num_new_tokens <= num_kv_tokens <= num_attended_pairs, got "
            f"{seqs}, {new}, {kv}, {pairs}"
        )
    if not 0 <= longest <= kv:
        raise ValueError(f"{where}: longest_chunk_tokens={longest}, expected 0 to num_kv_tokens={kv}")


CHURN: Final = "churn"
"""How the names of runs begin in which sequences come and go, as on a server."""
HELD: Final = "-held"
"""How the names of half of those end."""
FOLDS: Final = 5


def split(rows: Sequence[StepRow], fold: int) -> tuple[list[StepRow], list[StepRow]]:
    """(kept, held out) of one of `FOLDS` folds. Each run is held out in one of them, as a whole: points of the grid by
    the hash of their names; of the runs in which sequences come and go those named so in the first, the others in the
    second, so that runs of each size are always among the kept ones."""
    kept: list[StepRow] = []
    held: list[StepRow] = []
    for row in rows:
        (held if _fold(row) == fold else kept).append(row)
    return kept, held


def _fold(row: StepRow) -> int:
    if row.churns:
        return 0 if row.run.endswith(HELD) else 1
    return hashlib.sha256(row.run.encode()).digest()[0] % FOLDS
