"""Azure LLM inference traces: 2023 (7-digit fractions), 2024 (+00:00, fraction optional), 2025 (ISO 8601,
NumImages).

Columns are found by name: the 2025 files put one in the middle. The files carry no sessions and no block ids.
"""

from __future__ import annotations

from workloads.content import Content
from workloads.readers.reader import csv_rows, wrong_width
from workloads.rows import Blocks, Row, Rows
from workloads.stamps import RowError, date_time_ns, whole

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
EXPECTS = "CSV " + ",".join(COLUMNS)
REBASE = True


def claims(content: Content) -> bool:
    """By its three column names."""
    return set(COLUMNS) <= set(content.header())


def read(content: Content, rows: Rows, block_size: int | None) -> Blocks:
    """Stamps without a zone are UTC; a file that mixes stamps with and without a zone has bad rows."""
    zoned: bool | None = None
    if "NumImages" in content.header():
        rows.notes.append(f"{content.path}: NumImages is not used: prompts are text tokens only")
    for line, fields, at in csv_rows(content):
        with rows.row(line):
            if fields is None:
                raise wrong_width(at)
            stamp, prompt, output = (fields[at[name]].strip() for name in COLUMNS)
            arrival_ns, has_zone = date_time_ns("TIMESTAMP", stamp)
            zoned = has_zone if zoned is None else zoned
            if has_zone != zoned:
                raise RowError("zone on some rows only", stamp)
            rows.add(Row(arrival_ns, whole("ContextTokens", prompt), whole("GeneratedTokens", output)), line)
    return Blocks()
