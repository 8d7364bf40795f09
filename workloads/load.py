"""Reading a trace file: recognise it, refuse it with a place and a reason, or return it with what was
noticed."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal, NamedTuple

from workloads.columns import Trace
from workloads.content import Content, open_content
from workloads.readers import azure, length_list, mooncake, pagelab, vidur
from workloads.readers.reader import Reader
from workloads.rows import Rows, TraceError, assemble
from workloads.stamps import NS_PER_S

READERS: Final[dict[str, Reader]] = {
    "pagelab": pagelab,
    "azure": azure,
    "mooncake": mooncake,
    "vidur": vidur,
    "lengths": length_list,
}
FORMATS: Final = ("auto", *READERS)
"""Names for `format`; a new reader is one file and one entry."""
WITH_BLOCK_IDS: Final = ("pagelab", "mooncake")


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
    name: str | None = None,
) -> Loaded:
    """Read a trace file, gzip or not, into a validated trace. Nothing is skipped silently.

    `block_size` is the tokens per block id where the file does not say (Mooncake: 512). Rows out of order are
    sorted stably, arrivals are re-based to 0 (pagelab's own files are taken as they are), and `notes` says
    so. Raises TraceError, a ValueError, as 'path:line: reason: what was found (read = kept + dropped:
    reasons); what to do'.
    """
    if on_bad_row not in ("refuse", "drop"):
        raise ValueError(f"on_bad_row: need 'refuse' or 'drop', got {on_bad_row!r}")
    if format not in FORMATS:
        raise ValueError(f"format: need one of {', '.join(FORMATS)}, got {format!r}")
    content = open_content(path)
    found = _detect(content) if format == "auto" else format
    _check_block_size(content, found, block_size)
    rows = Rows(content.path, refuse=on_bad_row == "refuse", notes=[*content.notes])
    trace = _read(content, found, rows, block_size, name)
    return Loaded(trace, rows.notes, len(rows.place), dict(rows.dropped))


def _read(content: Content, found: str, rows: Rows, block_size: int | None, name: str | None) -> Trace:
    reader = READERS[found]
    if not reader.claims(content):
        raise TraceError(f"{content.path}:1: not in the format {found!r}, which is {reader.EXPECTS}")
    blocks = reader.read(content, rows, block_size)
    rows.finish()
    if not rows.kept and not (found == "pagelab" and not rows.place):
        raise TraceError(f"{content.path}: no row is left ({rows.counts()}); name a trace with rows")
    source, saved_name = {"format": found, "file": content.file_name}, content.file_name.split(".")[0]
    if found == "pagelab":
        saved_name, source = _saved_provenance(content, saved_name, source)
    try:
        trace = assemble(rows, blocks, name=name or saved_name, source=source, rebase=reader.REBASE)
    except ValueError as error:
        raise TraceError(f"{content.path}: {error}; the rows contradict each other") from error
    _note_ties(rows, trace)
    return trace


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


def _check_block_size(content: Content, found: str, block_size: int | None) -> None:
    if block_size is None:
        return
    if block_size < 1:
        raise ValueError(f"block_size: need at least 1 token, got {block_size}")
    if found not in WITH_BLOCK_IDS:
        raise ValueError(f"block_size: {content.path} is {found!r}, which has no block ids")


def _note_ties(rows: Rows, trace: Trace) -> None:
    span_ns = int(trace.arrival_ns[-1]) if len(trace) else 0
    ties = int((trace.arrival_ns[1:] == trace.arrival_ns[:-1]).sum())
    if span_ns and ties * 2 > len(trace):
        step_s = span_ns / NS_PER_S / max(1, len(trace) - 1 - ties)
        rows.notes.append(
            f"{rows.path}: {ties} of {len(trace)} rows share their stamp with the row before (a stamp every "
            f"{step_s:.3g} s): burstiness below that is an artefact of collection"
        )
