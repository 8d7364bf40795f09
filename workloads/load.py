"""Reading a trace file: recognise it, refuse it with a place and a reason, or return it with what was
noticed."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal, NamedTuple

from workloads.columns import Trace
from workloads.content import Content, open_content
from workloads.readers import (
    azure,
    bailian,
    blis,
    burstgpt,
    length_list,
    mooncake,
    pagelab,
    sharegpt,
    timed_trace,
    vidur,
    vllm_bench,
    vllm_custom,
)
from workloads.readers.reader import Options, Reader
from workloads.remarks import remarks
from workloads.rows import Rows, TraceError
from workloads.tables import NotPlainError, Table, all_plain, to_trace

READERS: Final[dict[str, Reader]] = {
    "pagelab": pagelab,
    "azure": azure,
    "burstgpt": burstgpt,
    "bailian": bailian,
    "mooncake": mooncake,
    "timed-trace": timed_trace,  # Mooncake's keys in other units: never recognised, only named
    "vidur": vidur,
    "blis": blis,
    "lengths": length_list,
    "sharegpt": sharegpt,
    "vllm-custom": vllm_custom,
    "vllm-bench": vllm_bench,
}
FORMATS: Final = ("auto", *READERS)
"""Names for `format`; a new reader is one file and one entry."""
OPTION_FLAGS: Final = {"block_size": "--trace-block-size", "recipe": "--recipe", "tokenizer": "--tokenizer"}


AT_ONCE_BYTES: Final = 1 << 20
"""Smaller files are read row by row: importing pyarrow takes longer than that."""


class Loaded(NamedTuple):
    """A trace and what was noticed on the way: num_read = len(trace) + sum of dropped."""

    trace: Trace
    notes: list[str]
    num_read: int
    dropped: dict[str, int]


def load_trace(
    path: str | Path,
    format: str = "auto",  # noqa: A002 - the name of the command line's option
    *,
    on_bad_row: Literal["refuse", "drop"] = "refuse",
    block_size: int | None = None,
    recipe: str | None = None,
    tokenizer: str | None = None,
    name: str | None = None,
) -> Loaded:
    """Read a trace file, gzip or not, into a validated trace. Nothing is skipped silently.

    `block_size` is the tokens per block id where the file does not say (Mooncake: 512, Bailian and timed-trace:
    16). Texts become lengths by `tokenizer`: 'words', or the path of a Hugging Face tokenizer.json; `recipe` says
    which turns of a ShareGPT talk are a request. Rows out of order are sorted stably, arrivals are re-based to 0
    (pagelab's own files are taken as they are), and `notes` says so. Raises TraceError, a ValueError, as
    'path:line: reason: what was found (read = kept + dropped: reasons); what to do'.
    """
    if on_bad_row not in ("refuse", "drop"):
        raise ValueError(f"on_bad_row: need 'refuse' or 'drop', got {on_bad_row!r}")
    if format not in FORMATS:
        raise ValueError(f"format: need one of {', '.join(FORMATS)}, got {format!r}")
    content = open_content(path)
    options = Options(block_size, recipe, tokenizer)
    return read_content(content, format, options, refuse=on_bad_row == "refuse", name=name)


def read_content(
    content: Content, format_: str, options: Options, *, refuse: bool = True, name: str | None = None
) -> Loaded:
    """As `load_trace`, from what was opened already."""
    found = _detect(content) if format_ == "auto" else format_
    reader = READERS[found]
    _check_options(content, found, options)
    if not reader.claims(content):
        raise TraceError(f"{content.path}:1: not in the format {found!r}, which is {reader.EXPECTS}")
    rows = Rows(content.path, refuse=refuse, notes=[*content.notes])
    table = _table(reader, content, rows, options, empty_is_a_trace=found == "pagelab")
    num_read = len(table) + rows.dropped.total()
    source, saved_name = {"format": found, "file": content.file_name}, content.file_name.split(".")[0]
    if found == "pagelab":
        saved_name, source = _saved_provenance(content, saved_name, source)
    source |= {key: str(value) for key, value in options._asdict().items() if value is not None and key in RECORDED}
    try:
        trace = to_trace(table, content.path, rows.notes, name=name or saved_name, source=source, rebase=reader.REBASE)
    except ValueError as error:
        raise TraceError(f"{content.path}: {error}; the rows contradict each other") from error
    rows.notes.extend(f"{content.path}: {remark}" for remark in remarks(trace))
    return Loaded(trace, rows.notes, num_read, dict(rows.dropped))


RECORDED: Final = ("recipe", "tokenizer")
"""Options that decide the lengths: they go into the trace's provenance."""


def _table(reader: Reader, content: Content, rows: Rows, options: Options, *, empty_is_a_trace: bool) -> Table:
    """All rows at once where each is plain, which is the same and ten times as fast; else one by one."""
    plain = _plain_table(reader, content, rows, options) if content.size >= AT_ONCE_BYTES else None
    if plain is not None:
        rows.take(plain)
        return plain
    blocks = reader.read(content, rows, options)
    rows.finish()
    if not rows.kept and not (empty_is_a_trace and not rows.place):
        raise TraceError(f"{content.path}: no row is left ({rows.counts()}); name a trace with rows")
    return rows.table(blocks)


def _plain_table(reader: Reader, content: Content, rows: Rows, options: Options) -> Table | None:
    num_notes = len(rows.notes)
    try:
        table = reader.read_plain(content, rows, options)
        if len(table) and all_plain(table):
            return table
    except NotPlainError:
        pass
    del rows.notes[num_notes:]
    return None


def _saved_provenance(content: Content, name: str, source: dict[str, str]) -> tuple[str, dict[str, str]]:
    """Name and source as they were saved: a round trip keeps where the rows first came from."""
    meta = pagelab.metadata(content)
    saved = meta.get("source")
    origin = {str(key): str(value) for key, value in saved.items()} if isinstance(saved, dict) else {}
    return str(meta.get("name", name)), origin or source


def _detect(content: Content) -> str:
    for name, reader in READERS.items():
        if reader.claims(content):
            return name
    first = content.first_line()
    raise TraceError(
        f"{content.path}:1: no known format; the first line is {first[:100]!r}; expected one of: "
        + "; ".join(f"{name}: {reader.EXPECTS}" for name, reader in READERS.items())
    )


def _check_options(content: Content, found: str, options: Options) -> None:
    if options.block_size is not None and options.block_size < 1:
        raise ValueError(f"block_size: need at least 1 token, got {options.block_size}")
    for option, value in options._asdict().items():
        if value is not None and option not in READERS[found].TAKES:
            takers = ", ".join(name for name, reader in READERS.items() if option in reader.TAKES)
            why = "has no block ids" if option == "block_size" else f"has no use for {OPTION_FLAGS[option]}"
            raise ValueError(f"{option}: {content.path} is {found!r}, which {why}; only {takers} take it")
