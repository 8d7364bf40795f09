"""The verbs of `trace` that read or make one: inspect, convert, synth and validate."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from experiments import exits
from experiments.arriving import file_sha256
from experiments.console import Talk, say, say_json, show
from experiments.exits import UsageError

if TYPE_CHECKING:
    from experiments.trace_flags import ReadFlags
    from workloads import ClientClass, Loaded, Trace

T = TypeVar("T")
OWN = "pagelab"
FLAGS = {
    "arrival": "--arrivals",
    "lengths": "--lengths",
    "rate_per_s": "--request-rate",
    "cv": "--cv",
    "num_requests": "--num-requests",
}
"""Arguments of the generators, as the command line spells them."""


def inspect_verb(file: Path, read: ReadFlags, *, as_json: bool) -> int:
    """Prints what `workloads.describe` says."""
    from workloads import describe

    loaded = read.load(file)
    known = {**_identity(file, loaded), **describe(loaded.trace)}
    if as_json:
        say_json({**known, "notes": loaded.notes})
        return exits.OK
    from rich.table import Table

    table = Table()
    table.add_column("what")
    table.add_column("value", justify="right")
    for name, value in known.items():
        table.add_row(name, _written(value))
    show(table, file.name)
    _note(loaded)
    return exits.OK


def _note(loaded: Loaded) -> None:
    """What was noticed, on stderr: stdout has the answer."""
    for note in loaded.notes:
        Talk().note(f"note: {note}")


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


def convert_verb(source: Path, target: Path, read: ReadFlags, to: str, *, lossy: bool, overwrite: bool) -> int:
    """Reads one format, writes pagelab's or another tool's."""
    from workloads import FORMATS_TO_WRITE, export_trace

    if to not in (OWN, *FORMATS_TO_WRITE):
        raise UsageError(f"--to: need one of {OWN}, {', '.join(FORMATS_TO_WRITE)}, got {to!r}")
    if lossy and to == OWN:
        raise UsageError("--lossy: pagelab's own format loses nothing; leave it out, or say --to FORMAT")
    loaded = read.load(source)
    said: list[str] = []
    if to == OWN:
        _save(loaded.trace, target, overwrite=overwrite)
    else:
        said = _written_by(lambda: export_trace(loaded.trace, target, to, lossy=lossy), target, overwrite=overwrite)
    say(f"{target}: {len(loaded.trace):,} requests, sha256 {loaded.trace.sha256()}")
    _note(loaded)
    for note in said:
        Talk().note(f"note: {note}")
    return exits.OK


def synth_verb(target: Path, recipe: Mapping[str, Any], num_requests: int, seed: int, *, overwrite: bool) -> int:
    """Generates and writes; what is None in the recipe takes its default."""
    from workloads import synthetic_trace

    given = {key: value for key, value in recipe.items() if value is not None}
    return make_and_save(
        lambda name: synthetic_trace(**given, num_requests=num_requests, seed=seed, name=name), target, overwrite
    )


def mix_verb(
    target: Path, clients: Path, recipe: Mapping[str, Any], num_requests: int, seed: int, *, overwrite: bool
) -> int:
    """Generates from a file of client classes."""
    from workloads import client_mix

    also = [FLAGS[key] for key, value in recipe.items() if value is not None]
    if also:
        raise UsageError(f"--clients: the file says what each class does; leave {', '.join(also)} out, or put it there")
    classes = client_classes(clients)
    return make_and_save(lambda name: client_mix(classes, num_requests, seed, name=name), target, overwrite)


def client_classes(path: Path) -> list[ClientClass]:
    """The `[[client]]` tables of a TOML file; UsageError with file and key for anything else in it."""
    from workloads import ClientClass

    known = [field.name for field in fields(ClientClass)]
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: {error}; write a [[client]] table for each class") from None
    tables = tree.get("client")
    if set(tree) != {"client"} or not isinstance(tables, list) or not all(isinstance(one, dict) for one in tables):
        raise UsageError(f"{path}: need [[client]] tables and nothing else, got {', '.join(tree) or 'an empty file'}")
    classes = []
    for number, one in enumerate(tables, start=1):
        unknown = sorted(one.keys() - set(known))
        if unknown:
            raise UsageError(f"{path}: client {number}: unknown key {unknown[0]!r}; known are {', '.join(known)}")
        try:
            classes.append(ClientClass(**one))
        except (TypeError, ValueError) as error:
            raise UsageError(f"{path}: client {number}: {error}; name and request_rate are needed") from None
    return classes


def _in_flags(message: str) -> str:
    """What the generators say of their arguments, in the words of the command line."""
    for name, flag in FLAGS.items():
        message = re.sub(rf"^{name}(?=:)|\b{name}(?=, got)", flag, message)
    return message


def make_and_save(make: Callable[[str], Trace], target: Path, overwrite: bool) -> int:
    """Makes a trace of the file's name and writes it; UsageError for what cannot be made."""
    try:
        trace = make(target.name.split(".")[0])
    except (ValueError, OverflowError) as error:
        raise UsageError(_in_flags(str(error))) from error
    _save(trace, target, overwrite=overwrite)
    say(f"{target}: {len(trace):,} requests, sha256 {trace.sha256()}")
    return exits.OK


def _save(trace: Trace, target: Path, *, overwrite: bool) -> None:
    from workloads import save_trace

    _written_by(lambda: save_trace(trace, target), target, overwrite=overwrite)


def _written_by(write: Callable[[], T], target: Path, *, overwrite: bool) -> T:
    if target.exists() and not overwrite:
        raise UsageError(f"{target} exists: say --overwrite, or choose another name")
    try:
        return write()
    except (ValueError, OSError) as error:
        raise UsageError(str(error)) from error


def validate_verb(file: Path, read: ReadFlags, *, as_json: bool) -> int:
    """0 with counts, or 2 with the first reason."""
    loaded = read.load(file)
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
    _note(loaded)
    return exits.OK
