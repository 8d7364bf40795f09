"""The verbs of `trace`: inspect, convert, synth and validate."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments import exits
from experiments.arriving import file_sha256
from experiments.console import say, say_json, show
from experiments.exits import UsageError

if TYPE_CHECKING:
    from workloads import Loaded, Trace


def load(file: Path, trace_format: str, on_bad_row: str) -> Loaded:
    """The trace; UsageError with place and reason where it is none."""
    from workloads import load_trace

    try:
        return load_trace(file, trace_format, on_bad_row=on_bad_row)  # type: ignore[arg-type]
    except (ValueError, OSError) as error:
        raise UsageError(str(error)) from error


def inspect_verb(file: Path, trace_format: str, on_bad_row: str, *, as_json: bool) -> int:
    """Prints what `workloads.describe` says."""
    from workloads import describe

    loaded = load(file, trace_format, on_bad_row)
    known = {**_identity(file, loaded), **describe(loaded.trace)}
    if as_json:
        say_json({**known, "notes": loaded.notes})
        return exits.OK
    from rich.table import Table

    table = Table(caption="\n".join(loaded.notes), caption_justify="left")
    table.add_column("what")
    table.add_column("value", justify="right")
    for name, value in known.items():
        table.add_row(name, _written(value))
    show(table, file.name)
    return exits.OK


def _identity(file: Path, loaded: Loaded) -> dict[str, Any]:
    trace = loaded.trace
    return {
        "name": trace.name,
        "format": trace.source.get("format", ""),
        "sha256": trace.sha256(),
        "file_sha256": file_sha256(file),
        "num_read": loaded.num_read,
        "num_dropped": sum(loaded.dropped.values()),
        "dropped": loaded.dropped,
        "block_size": trace.block_size,
    }


def _written(value: Any) -> str:
    if value is None or value == {}:
        return "–"
    if isinstance(value, float):
        return f"{value:,.6g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def convert_verb(source: Path, target: Path, trace_format: str, on_bad_row: str, *, overwrite: bool) -> int:
    """Reads one format, writes pagelab's."""
    loaded = load(source, trace_format, on_bad_row)
    _save(loaded.trace, target, overwrite=overwrite)
    say(f"{target}: {len(loaded.trace):,} requests, sha256 {loaded.trace.sha256()}")
    for note in loaded.notes:
        say(f"note: {note}")
    return exits.OK


def synth_verb(target: Path, recipe: dict[str, Any], *, overwrite: bool) -> int:
    """Generates and writes."""
    from workloads import synthetic_trace

    try:
        trace = synthetic_trace(**recipe, name=target.name.split(".")[0])
    except (ValueError, OverflowError) as error:
        raise UsageError(str(error)) from error
    _save(trace, target, overwrite=overwrite)
    say(f"{target}: {len(trace):,} requests, sha256 {trace.sha256()}")
    return exits.OK


def _save(trace: Trace, target: Path, *, overwrite: bool) -> None:
    from workloads import save_trace

    if target.exists() and not overwrite:
        raise UsageError(f"{target} exists: say --overwrite, or choose another name")
    try:
        save_trace(trace, target)
    except (ValueError, OSError) as error:
        raise UsageError(str(error)) from error


def validate_verb(file: Path, trace_format: str, on_bad_row: str, *, as_json: bool) -> int:
    """0 with counts, or 2 with the first reason."""
    loaded = load(file, trace_format, on_bad_row)
    counts = {
        **_identity(file, loaded),
        "num_requests": len(loaded.trace),
        "num_failed": int((loaded.trace.status == 1).sum()),
        "notes": loaded.notes,
    }
    if as_json:
        say_json({"valid": True, **counts})
        return exits.OK
    say(
        f"{file}: a valid {counts['format']} trace: {counts['num_requests']:,} requests, {counts['num_failed']:,} "
        f"of them without output; read {counts['num_read']:,}, dropped {counts['num_dropped']:,}"
    )
    for note in loaded.notes:
        say(f"note: {note}")
    return exits.OK
