"""`trace fetch`: a public trace from its home, checked against what its bytes must hash to."""

from __future__ import annotations

import hashlib
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments import exits
from experiments.arriving import file_sha256
from experiments.console import say, show
from experiments.exits import UsageError

if TYPE_CHECKING:
    from workloads.homes import Home

PIECE_BYTES = 1 << 20
TIMEOUT_S = 60
RECORD = ".sha256"
"""Suffix of the file beside the trace that remembers what was downloaded, as sha256sum writes it."""

Opener = Callable[..., Any]


def fetch_verb(
    name: str | None, folder: Path, url: str | None, *, overwrite: bool, opener: Opener = urllib.request.urlopen
) -> int:
    """Downloads, or lists what is known. A file that is there already is checked, not fetched again."""
    from workloads.homes import HOMES

    if name is None:
        _list(HOMES)
        return exits.OK
    if name not in HOMES:
        raise UsageError(f"trace fetch: no trace is known as {name!r}; known are {', '.join(HOMES)}")
    home = HOMES[name]
    file = folder / home.file_name
    if file.exists() and not overwrite:
        _check(file, file_sha256(file), home, "what is there")
        say(f"{file}: there already, sha256 {file_sha256(file)}; --overwrite fetches it again")
        return exits.OK
    digest, num_bytes = _download(url or home.url, file, home, opener)
    _record(file, digest)
    known = "as it must be" if home.sha256 else f"recorded in {file.name}{RECORD}: nobody here has held this file"
    say(f"{file}: {num_bytes:,} bytes, sha256 {digest} ({known})")
    say(f"licence: {home.licence}; cite {home.cite}")
    say(f"next: pagelab trace inspect {file} {home.read_with}".rstrip())
    return exits.OK


def _list(homes: dict[str, Home]) -> None:
    from rich.table import Table

    table = Table(caption="rows and bytes as published; without a known sha256 the first download is recorded")
    for column in ("name", "what", "licence", "cite", "sha256 known"):
        table.add_column(column)
    for name, home in homes.items():
        table.add_row(name, home.what, home.licence, home.cite, "yes" if home.sha256 else "no")
    show(table, "public traces: pagelab trace fetch NAME")


def _download(url: str, file: Path, home: Home, opener: Opener) -> tuple[str, int]:
    """(sha256, bytes) of a file that appears under its name only when it is whole and is what it must be."""
    if not file.parent.is_dir():
        raise UsageError(f"{file.parent}: no such folder; make it first, or name another with -o")
    part = file.with_name(f".{file.name}.{os.getpid()}.part")
    digest, num_bytes = hashlib.sha256(), 0
    try:
        with _opened(url, opener) as answer, part.open("wb") as out:
            for piece in iter(lambda: answer.read(PIECE_BYTES), b""):
                digest.update(piece)
                num_bytes += out.write(piece)
            _check_length(url, answer, num_bytes)
        _refuse_pages(url, part)
        _check(file, digest.hexdigest(), home, f"what {url} serves")
        part.replace(file)
    except OSError as error:
        raise UsageError(f"{url}: {_reason(error)}; {_instead(file)}") from error
    finally:
        part.unlink(missing_ok=True)
    return digest.hexdigest(), num_bytes


@contextmanager
def _opened(url: str, opener: Opener) -> Iterator[Any]:
    try:
        request = urllib.request.Request(url, headers={"User-Agent": "pagelab"})
    except ValueError as error:
        raise UsageError(f"--url: {error}; write it out, as https://host/file or file:///folder/file") from None
    with opener(request, timeout=TIMEOUT_S) as answer:
        yield answer


def _check_length(url: str, answer: Any, num_bytes: int) -> None:
    promised = answer.headers.get("Content-Length") if getattr(answer, "headers", None) else None
    if promised is not None and int(promised) != num_bytes:
        raise UsageError(f"{url}: broke off after {num_bytes:,} of {int(promised):,} bytes; fetch it again")


def _refuse_pages(url: str, part: Path) -> None:
    """An HTML page or a Git LFS pointer in place of the data."""
    from workloads.content import refuse_other_kinds
    from workloads.rows import TraceError

    with part.open("rb") as file:
        head = file.read(512)
    try:
        refuse_other_kinds(url, head)
    except TraceError as error:
        raise UsageError(f"{error}; or fetch a mirror with --url") from None


def _check(file: Path, digest: str, home: Home, what: str) -> None:
    """UsageError unless the hash is the published one, or the one recorded beside the file."""
    record = file.with_name(file.name + RECORD)
    expected = home.sha256 or (record.read_text(encoding="utf-8").split()[0] if record.exists() else digest)
    if digest == expected:
        return
    source, instead = "it must be", "it was changed or damaged: fetch it again with --overwrite"
    if not home.sha256:
        source = f"{record} remembers"
        instead = f"it was damaged, or its publisher changed it: remove {record} to take it all the same"
    raise UsageError(f"{file}: {what} has sha256 {digest}, {source} {expected}; {instead}")


def _record(file: Path, digest: str) -> None:
    file.with_name(file.name + RECORD).write_text(f"{digest}  {file.name}\n", encoding="utf-8")


def _reason(error: OSError) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"the server answers {error.code} {error.reason}"
    if isinstance(error, urllib.error.URLError):
        return f"cannot be reached ({error.reason})"
    return f"cannot be fetched ({error})"


def _instead(file: Path) -> str:
    return f"check the network (HTTPS_PROXY is honoured), name a mirror with --url, or put the file at {file} by hand"
