"""Lists of lengths without arrivals: input_len,output_len, or Sarathi's and vAttention's num_*_tokens
columns.

Every request arrives at 0 until a generator or `Trace.with_arrivals` says otherwise.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from workloads.content import Content
from workloads.readers import arrow, arrow_files, vidur
from workloads.readers.reader import Options, csv_rows, wrong_width
from workloads.rows import Row, Rows
from workloads.stamps import whole
from workloads.tables import Blocks, Table

PAIRS: Final = (("input_len", "output_len"), vidur.LENGTHS)
EXPECTS = "CSV input_len,output_len or num_prefill_tokens,num_decode_tokens (no arrivals)"
REBASE = True
TAKES: tuple[str, ...] = ()


def claims(content: Content) -> bool:
    """By a pair of columns and no stamp; other columns (index, has_input, totals) may be there."""
    header = set(content.header())
    return any(set(pair) <= header for pair in PAIRS) and not header & {*vidur.STAMPS, "arrival_ns"}


def read(content: Content, rows: Rows, options: Options) -> Blocks:
    """'7564.0' is read as a whole number, '7564.5' is a bad row."""
    pair = _pair(content)
    _say(content, rows)
    for line, fields, at in csv_rows(content):
        with rows.row(line):
            if fields is None:
                raise wrong_width(at)
            prompt, output = (whole(name, fields[at[name]].strip()) for name in pair)
            rows.add(Row(0, prompt, output), line)
    return Blocks()


def read_plain(content: Content, rows: Rows, options: Options) -> Table:
    """By pyarrow."""
    pair = _pair(content)
    columns = arrow_files.csv_columns(content, pair)
    prompt, output = (arrow.whole_numbers(columns[name]) for name in pair)
    table = arrow.plain_table(2, np.zeros(len(prompt), np.int64), prompt, output)
    _say(content, rows)
    return table


def _pair(content: Content) -> tuple[str, str]:
    return next(pair for pair in PAIRS if set(pair) <= set(content.header()))


def _say(content: Content, rows: Rows) -> None:
    rows.notes.append(f"{content.path}: lengths without arrivals: every request arrives at 0")
