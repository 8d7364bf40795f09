"""BurstGPT v1 to v3: Timestamp (s), Request tokens, Response tokens, and from v2 on Session ID and Elapsed time.

Columns are found by name: later versions put theirs in the middle. Seconds count from a local midnight, whole in
v1, decimal later. Rows with 0 response tokens are failures of the service and stay as failed rows. Session ID is
empty on API rows. `Elapsed time` is the end-to-end time of somebody else's service and is not used, nor is Model.
"""

from __future__ import annotations

from typing import Final

from workloads.content import Content
from workloads.readers import arrow, arrow_files
from workloads.readers.reader import Options, csv_rows, wrong_width
from workloads.rows import Row, Rows
from workloads.stamps import NS_PER_S, nanoseconds, whole
from workloads.tables import Blocks, Table

STAMP: Final = "Timestamp"
LENGTHS: Final = ("Request tokens", "Response tokens")
SESSION: Final = "Session ID"
EXPECTS = "CSV Timestamp (s),Request tokens,Response tokens (and Session ID)"
REBASE = True
TAKES: tuple[str, ...] = ()


def claims(content: Content) -> bool:
    """By its three column names."""
    return {STAMP, *LENGTHS} <= set(content.header())


def read(content: Content, rows: Rows, options: Options) -> Blocks:
    """Sessions are numbered in the order in which their first row is kept."""
    number: dict[str, int] = {}
    for line, fields, at in csv_rows(content):
        with rows.row(line):
            if fields is None:
                raise wrong_width(at)
            prompt, output = (whole(name, fields[at[name]].strip()) for name in LENGTHS)
            arrival_ns = nanoseconds(STAMP, fields[at[STAMP]].strip(), NS_PER_S)
            key = fields[at[SESSION]].strip() if SESSION in at else ""
            session = number.get(key, len(number)) if key else -1
            rows.add(Row(arrival_ns, prompt, output, session=session), line)
            if key:
                number.setdefault(key, session)
    return Blocks()


def read_plain(content: Content, rows: Rows, options: Options) -> Table:
    """By pyarrow."""
    texts = [STAMP, SESSION] if SESSION in content.header() else [STAMP]
    columns = arrow_files.csv_columns(content, LENGTHS, as_text=texts)
    session = {"session": arrow.numbered(columns.pop(SESSION))} if SESSION in columns else {}
    arrival_ns = arrow.scaled(columns[STAMP], NS_PER_S)
    return arrow.plain_table(2, arrival_ns, *(arrow.whole_numbers(columns[name]) for name in LENGTHS), **session)
