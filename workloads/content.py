"""The bytes of a trace file: opened, decompressed and recognised before any reader sees a row."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import IO, Final, cast

from workloads.rows import TraceError

FIRST_CHUNK: Final = 1 << 16
PIECE: Final = 1 << 22
"""Bytes that are read, and parsed, at once."""

GZIP_MAGIC = b"\x1f\x8b"
PARQUET_MAGIC = b"PAR1"
UTF8_BOM = b"\xef\xbb\xbf"
ARCHIVES = {
    b"PK\x03\x04": "a zip archive",
    b"\x28\xb5\x2f\xfd": "zstd-compressed",
    b"\xfd7zXZ": "xz-compressed",
    b"BZh": "bzip2-compressed",
}
PICKLE_SUFFIXES = (".pkl", ".pickle", ".pckl")
PICKLE_ADVICE = (
    "a pickle: pickles are never loaded, because they run code; convert it where you trust it "
    "to a CSV with the columns input_len,output_len"
)


@dataclass(frozen=True, slots=True)
class Content:
    """A file's decompressed content, read again for each use: a large text is never in memory as a whole unless asked
    for. Text is UTF-8 without a byte order mark; Parquet stays bytes."""

    path: str
    """As the caller wrote it; only its last part goes into a trace."""
    open: Callable[[], IO[bytes]]
    """The decompressed bytes from their beginning, after a byte order mark."""
    size: int
    """Bytes after decompression."""
    parquet: bytes = b""
    notes: list[str] = field(default_factory=list)

    @classmethod
    def of_text(cls, path: str, text: str) -> Content:
        """A text that is in memory already."""
        data = text.encode()
        return cls(path, lambda: io.BytesIO(data), len(data))

    @property
    def file_name(self) -> str:
        return Path(self.path).name

    @property
    def text(self) -> str:
        """All of it. O(size) memory, at every use."""
        if self.parquet:
            return ""
        with self.open() as stream:
            return _decoded(self.path, stream.read())

    def chunks(self) -> Iterator[bytes]:
        """The bytes in order, little at first: most readers look at the first line only."""
        if self.parquet:
            return
        with self.open() as stream:
            size = FIRST_CHUNK
            while chunk := stream.read(size):
                yield chunk
                size = min(2 * size, PIECE)

    def pieces(self) -> Iterator[bytes]:
        """The text as UTF-8 in pieces of whole lines, of about `PIECE` bytes where lines are shorter."""
        begun: list[bytes] = []
        for chunk in self.chunks():
            stop = chunk.rfind(b"\n") + 1
            if stop:
                yield b"".join([*begun, chunk[:stop]])
                begun = []
            if stop < len(chunk):
                begun.append(chunk[stop:])
        if begun:
            yield b"".join(begun)

    def first_line(self) -> str:
        """The first line that is not blank, stripped; of an array only its beginning, as all of it may be one line."""
        head = next(self.chunks(), b"").lstrip()
        if head.startswith(b"["):
            return head.decode(errors="ignore").split("\n")[0].strip()
        return next((line.strip() for _, line in self.lines()), "")

    def header(self) -> list[str]:
        """The first line's fields as CSV, stripped; none if it is no CSV at all."""
        try:
            return [name.strip() for name in next(csv.reader([self.first_line()]), [])]
        except csv.Error:
            return []

    def lines(self) -> Iterator[tuple[int, str]]:
        """1-based number and text of every line that is not blank: a blank line is not a row."""
        number = 0
        for piece in self.pieces():
            text, start = piece.decode(), 0
            while start < len(text):
                stop = text.find("\n", start) + 1 or len(text)
                line, start, number = text[start:stop], stop, number + 1
                if not line.isspace():
                    yield number, line


def open_content(path: str | Path) -> Content:
    """Look through the whole file. Raises TraceError, saying what it is, when it is no text or Parquet table."""
    shown = str(path)
    if Path(path).is_dir():
        raise TraceError(f"{shown}: a directory; name a trace file in it")
    if not Path(path).exists():
        raise TraceError(f"{shown}: no such file; check the path")
    if Path(shown.removesuffix(".gz")).suffix in PICKLE_SUFFIXES:
        raise TraceError(f"{shown}: {PICKLE_ADVICE}")
    opened = _opener(Path(path))
    try:
        return _recognised(shown, opened)
    except EOFError:
        raise TraceError(f"{shown}: the gzip stream ends early; fetch the file again") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise TraceError(f"{shown}: a damaged gzip file ({error}); fetch the file again") from None


def _opener(path: Path) -> Callable[[], IO[bytes]]:
    once = None if path.is_file() else path.read_bytes()  # of a pipe, which cannot be read again

    def raw() -> IO[bytes]:
        return path.open("rb") if once is None else io.BytesIO(once)

    # By content, not by suffix: browsers and mirrors unpack .gz files without renaming them.
    with raw() as stream:
        zipped = stream.read(len(GZIP_MAGIC)) == GZIP_MAGIC
    return (lambda: cast(IO[bytes], _Unzipped(raw()))) if zipped else raw


class _Unzipped(gzip.GzipFile):
    """Closes the file below it as well."""

    def __init__(self, raw: IO[bytes]) -> None:
        super().__init__(fileobj=raw, mode="rb")
        self.myfileobj = raw  # type: ignore[assignment]


def _recognised(shown: str, opened: Callable[[], IO[bytes]]) -> Content:
    with opened() as stream:
        head = stream.read(FIRST_CHUNK)
        if head.startswith(PARQUET_MAGIC):
            data = head + stream.read()
            return Content(shown, opened, len(data), parquet=data)
    refuse_other_kinds(shown, head)
    notes, skip = list[str](), 0
    if head.startswith(UTF8_BOM):
        skip = len(UTF8_BOM)
        notes.append(f"{shown}: a UTF-8 byte order mark was skipped")
    content = Content(shown, partial(_from, opened, skip), 0, notes=notes)
    return replace(content, size=_checked_size(content))


def _from(opened: Callable[[], IO[bytes]], skip: int) -> IO[bytes]:
    stream = opened()
    stream.read(skip)
    return stream


def _checked_size(content: Content) -> int:
    """Bytes of text. Raises TraceError for what is no UTF-8, or binary."""
    decode, size = codecs.getincrementaldecoder("utf-8")().decode, 0
    try:
        for chunk in content.chunks():
            decode(chunk)
            size += len(chunk)
            if b"\0" in chunk:
                raise ValueError
        decode(b"", final=True)
    except ValueError:  # a UnicodeDecodeError is one; where it is, the whole text says
        return len(content.text)
    return size


def refuse_other_kinds(shown: str, data: bytes) -> None:
    """Raise TraceError for what is known by its first bytes to be no trace: a page, a pointer, an archive, a pickle."""
    head = data[:512].removeprefix(UTF8_BOM).lstrip().lower()
    if not head:
        raise TraceError(f"{shown}: the file is empty; fetch it again or name another")
    if head.startswith(b"version https://git-lfs"):
        raise TraceError(f"{shown}:1: a Git LFS pointer, not the data; run `git lfs pull` or fetch the file itself")
    if head.startswith((b"<!doctype", b"<html", b"<?xml", b"<head")):
        raise TraceError(f"{shown}:1: an HTML page, not the data; fetch the raw file (curl -L)")
    if data[0] == 0x80 and data[1:2] <= b"\x05":
        raise TraceError(f"{shown}: {PICKLE_ADVICE}")
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise TraceError(f"{shown}: UTF-16 text; convert it to UTF-8")
    for magic, kind in ARCHIVES.items():
        if data.startswith(magic):
            raise TraceError(f"{shown}: {kind}; unpack it first (gzip is read as it is)")


def _decoded(shown: str, data: bytes) -> str:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise TraceError(f"{shown}:{line}: not UTF-8 text (byte {error.start}); convert it to UTF-8") from None
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise TraceError(f"{shown}:{line}: binary data (a NUL byte); name a CSV, JSONL or Parquet trace")
    return text
