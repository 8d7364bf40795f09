"""Vidur's replay CSV: `arrived_at` or `arrival_time`, then num_prefill_tokens,num_decode_tokens.

Seconds are decimal (float residue is rounded at the nanosecond); `arrival_time` may also be a date and time.
No other names are guessed, because two of Vidur's own readers disagree about them.
"""

from __future__ import annotations

from workloads.content import Content
from workloads.readers import arrow, arrow_files
from workloads.readers.reader import Options, csv_rows, wrong_width
from workloads.rows import Row, Rows, TraceError
from workloads.stamps import NS_PER_S, date_time_ns, looks_like_date, nanoseconds, whole
from workloads.tables import Blocks, NotPlainError, Table

STAMPS = ("arrived_at", "arrival_time")
LENGTHS = ("num_prefill_tokens", "num_decode_tokens")
EXPECTS = "CSV arrived_at (or arrival_time),num_prefill_tokens,num_decode_tokens"
REBASE = True
TAKES: tuple[str, ...] = ()


def claims(content: Content) -> bool:
    """By a stamp column beside both token columns."""
    header = set(content.header())
    return bool(header & set(STAMPS)) and set(LENGTHS) <= header


def read(content: Content, rows: Rows, options: Options) -> Blocks:
    """One stamp column decides; two are refused."""
    stamps = [name for name in STAMPS if name in content.header()]
    if len(stamps) != 1:
        raise TraceError(f"{content.path}:1: both {' and '.join(STAMPS)} are there; keep the one that counts")
    for line, fields, at in csv_rows(content):
        with rows.row(line):
            if fields is None:
                raise wrong_width(at)
            prompt, output = (whole(name, fields[at[name]].strip()) for name in LENGTHS)
            rows.add(Row(_arrival_ns(stamps[0], fields[at[stamps[0]]].strip()), prompt, output), line)
    return Blocks()


def read_plain(content: Content, rows: Rows, options: Options) -> Table:
    """By pyarrow, where all stamps are numbers or all are dates."""
    stamps = [name for name in STAMPS if name in content.header()]
    if len(stamps) != 1:
        raise NotPlainError
    columns = arrow_files.csv_columns(content, LENGTHS, as_text=stamps)
    try:
        arrival_ns = arrow.scaled(columns[stamps[0]], NS_PER_S)
    except NotPlainError:
        arrival_ns = arrow.date_times(columns[stamps[0]])
    return arrow.plain_table(2, arrival_ns, *(arrow.whole_numbers(columns[name]) for name in LENGTHS))


def _arrival_ns(key: str, text: str) -> int:
    if looks_like_date(text):
        return date_time_ns(key, text)[0]
    return nanoseconds(key, text, NS_PER_S)
