"""The bytes of a trace file: opened, decompressed and recognised before any reader sees a row."""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from workloads.rows import TraceError

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
    """A file's decompressed content. Text is UTF-8 without a byte order mark; Parquet stays bytes."""

    path: str
    """As the caller wrote it; only its last part goes into a trace."""
    text: str = ""
    parquet: bytes = b""
    notes: list[str] = field(default_factory=list)

    @property
    def file_name(self) -> str:
        return Path(self.path).name

    @property
    def size(self) -> int:
        """Characters of text, or bytes of Parquet."""
        return len(self.text) or len(self.parquet)

    def first_line(self) -> str:
        """The first line that is not blank, stripped."""
        return next((line.strip() for _, line in self.lines()), "")

    def header(self) -> list[str]:
        """The first line's fields as CSV, stripped; none if it is no CSV at all."""
        try:
            return [name.strip() for name in next(csv.reader([self.first_line()]), [])]
        except csv.Error:
            return []

    def lines(self) -> Iterator[tuple[int, str]]:
        """1-based number and text of every line that is not blank: a blank line is not a row."""
        start, number = 0, 0
        while start < len(self.text):  # line by line in place: StringIO would keep four bytes a character
            stop = self.text.find("\n", start) + 1 or len(self.text)
            line, start, number = self.text[start:stop], stop, number + 1
            if not line.isspace():
                yield number, line


def open_content(path: str | Path) -> Content:
    """Read the whole file. Raises TraceError, saying what it is, when it is no text or Parquet table."""
    shown = str(path)
    if Path(path).is_dir():
        raise TraceError(f"{shown}: a directory; name a trace file in it")
    if not Path(path).exists():
        raise TraceError(f"{shown}: no such file; check the path")
    if Path(shown.removesuffix(".gz")).suffix in PICKLE_SUFFIXES:
        raise TraceError(f"{shown}: {PICKLE_ADVICE}")
    data = _decompressed(shown, Path(path).read_bytes())
    if data.startswith(PARQUET_MAGIC):
        return Content(shown, parquet=data)
    refuse_other_kinds(shown, data)
    notes = []
    if data.startswith(UTF8_BOM):
        data = data[len(UTF8_BOM) :]
        notes.append(f"{shown}: a UTF-8 byte order mark was skipped")
    return Content(shown, text=_decoded(shown, data), notes=notes)


def _decompressed(shown: str, data: bytes) -> bytes:
    # By content, not by suffix: browsers and mirrors unpack .gz files without renaming them.
    if not data.startswith(GZIP_MAGIC):
        return data
    try:
        return gzip.decompress(data)
    except EOFError:
        raise TraceError(f"{shown}: the gzip stream ends early; fetch the file again") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise TraceError(f"{shown}: a damaged gzip file ({error}); fetch the file again") from None


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
