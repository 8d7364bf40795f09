"""The shape of a reader module, and the walk over CSV rows and JSON lines that they share."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from itertools import islice
from typing import Final, NamedTuple, NoReturn, Protocol

from workloads.content import Content
from workloads.rows import Rows, TraceError
from workloads.stamps import RowError
from workloads.tables import Blocks, Table

Record = dict[str, object]

NUM_PROBED_LINES: Final = 20
"""Lines looked at to recognise JSON lines."""


class Options(NamedTuple):
    """What a caller may add to a file; see `workloads.load_trace`. None where nothing was said."""

    block_size: int | None = None
    recipe: str | None = None
    tokenizer: str | None = None


class Reader(Protocol):
    """What a module of `workloads.readers` offers."""

    EXPECTS: str
    """The columns or keys it looks for, as one line for error messages."""
    REBASE: bool
    """Whether the first arrival becomes 0: true where the file's origin is arbitrary."""

    TAKES: tuple[str, ...]
    """Names of the `Options` that it reads; others are refused."""

    def claims(self, content: Content) -> bool:
        """Whether the header or the first row is of this format. Never raises."""

    def read(self, content: Content, rows: Rows, options: Options) -> Blocks:
        """Add every row to `rows`, say what the block ids mean. Raises TraceError for an unusable header."""

    def read_plain(self, content: Content, rows: Rows, options: Options) -> Table:
        """All rows at once, exactly as `read` would keep them. Raises NotPlainError where one needs a closer look.

        Only for speed: adds nothing to `rows` but notes.
        """


def csv_rows(content: Content, skip_lines: int = 0) -> Iterator[tuple[int, list[str] | None, dict[str, int]]]:
    """(line number, fields or None if their number is wrong, position of each named column) for each row."""
    position: dict[str, int] = {}
    for line, fields in _csv_fields(content, skip_lines):
        if len(fields) < 2 and not "".join(fields).strip():
            continue
        if not position:
            position = _positions(content, line, [name.strip() for name in fields])
        else:
            yield line, fields if len(fields) == len(position) else None, position


def _csv_fields(content: Content, skip_lines: int) -> Iterator[tuple[int, list[str]]]:
    text = io.StringIO(content.text, newline=None)
    for _ in range(skip_lines):  # before any parsing: a quote in them would swallow rows
        text.readline()
    body = text.read()
    if '"' not in body:
        # Twice as fast, and without the parser's limit on a field: a row may have very many block ids.
        yield from ((skip_lines + i, line.split(",")) for i, line in enumerate(body.split("\n"), start=1))
        return
    reader = csv.reader(io.StringIO(body))
    try:
        for fields in reader:
            yield skip_lines + reader.line_num, fields
    except csv.Error as error:
        line = skip_lines + reader.line_num
        raise TraceError(f"{content.path}:{line}: not CSV ({error}); mend the quotes") from None


def _positions(content: Content, line: int, header: list[str]) -> dict[str, int]:
    twice = {name for name in header if header.count(name) > 1}
    if twice:
        raise TraceError(f"{content.path}:{line}: column {sorted(twice)[0]!r} appears twice; rename one")
    return {name: i for i, name in enumerate(header)}


def wrong_width(position: dict[str, int]) -> RowError:
    """The RowError of a CSV row with missing or surplus fields, as a cut-off last line has."""
    return RowError("wrong number of fields", f"need {len(position)}: {','.join(position)}")


def json_record(line: str) -> Record:
    """One JSON object, decimals kept exact. Raises RowError for anything else, NaN and Infinity included."""
    try:
        record = _DECODER.decode(line)
    except RowError:
        raise
    except (ValueError, RecursionError, InvalidOperation) as error:
        raise RowError("not JSON", f"{error}") from None
    if not isinstance(record, dict):
        raise RowError("not a JSON object", f"{line.strip()[:40]!r}")
    return record


def first_record(content: Content) -> Record:
    """The first of the leading lines that is a JSON object, or {}; broken lines must not hide the format."""
    if content.first_line()[:1] != "{":
        return {}
    for _, line in islice(content.lines(), NUM_PROBED_LINES):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            return record
    return {}


def _not_finite(text: str) -> NoReturn:
    raise RowError("not finite", text)


_DECODER = json.JSONDecoder(parse_float=Decimal, parse_constant=_not_finite)
