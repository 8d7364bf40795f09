"""Azure LLM inference traces: 2023 (7-digit fractions), 2024 (+00:00, fraction optional), 2025 (ISO 8601,
NumImages).

Columns are found by name: the 2025 files put one in the middle. The files carry no sessions and no block ids.
"""

from __future__ import annotations

from typing import Final

from workloads.content import Content
from workloads.readers import arrow, arrow_files
from workloads.readers.reader import Options, csv_rows, wrong_width
from workloads.rows import Row, Rows
from workloads.stamps import RowError, date_time_ns, whole
from workloads.tables import Blocks, Table

STAMP: Final = "TIMESTAMP"
LENGTHS: Final = ("ContextTokens", "GeneratedTokens")
COLUMNS: Final = (STAMP, *LENGTHS)
EXPECTS = "CSV " + ",".join(COLUMNS)
REBASE = True
TAKES: tuple[str, ...] = ()


def claims(content: Content) -> bool:
    """By its three column names."""
    return set(COLUMNS) <= set(content.header())


def read(content: Content, rows: Rows, options: Options) -> Blocks:
    """Stamps without a zone are UTC; a file that mixes stamps with and without a zone has bad rows."""
    zoned: bool | None = None
    _say(content, rows)
    for line, fields, at in csv_rows(content):
        with rows.row(line):
            if fields is None:
                raise wrong_width(at)
            stamp, prompt, output = (fields[at[name]].strip() for name in COLUMNS)
            arrival_ns, has_zone = date_time_ns(STAMP, stamp)
            zoned = has_zone if zoned is None else zoned
            if has_zone != zoned:
                raise RowError("zone on some rows only", stamp)
            rows.add(Row(arrival_ns, whole(LENGTHS[0], prompt), whole(LENGTHS[1], output)), line)
    return Blocks()


def read_plain(content: Content, rows: Rows, options: Options) -> Table:
    """By pyarrow."""
    columns = arrow_files.csv_columns(content, LENGTHS, as_text=[STAMP])
    table = arrow.plain_table(
        2, arrow.date_times(columns[STAMP]), *(arrow.whole_numbers(columns[name]) for name in LENGTHS)
    )
    _say(content, rows)
    return table


def _say(content: Content, rows: Rows) -> None:
    if "NumImages" in content.header():
        rows.notes.append(f"{content.path}: NumImages is not used: prompts are text tokens only")
