"""The header of a GGUF file: its metadata, and where each tensor lies. Format: ggml's docs/gguf.md, versions 2 and 3.

Read here and not by the `gguf` package: every length is checked against the file before it is believed, so that a
damaged file is an error that says where, never a long loop.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from engine.model.weights import Shape

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_STRING, _ARRAY = 8, 9
_SCALARS = MappingProxyType(
    {0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?", 10: "<u8", 11: "<i8", 12: "<f8"}
)
_ALIGNMENT = "general.alignment"
_MAX_AXES = 4  # ggml's own limit


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """One tensor of the file."""

    shape: Shape
    """Outermost axis first, as in torch; the file has it the other way round."""
    type_id: int
    """ggml's number of the storage type."""
    offset: int
    """Bytes from the start of the file."""


@dataclass(frozen=True, slots=True)
class GGUFHeader:
    """What a file says before its data."""

    path: Path
    metadata: MappingProxyType[str, Any]
    """Numbers, strings, and lists of either."""
    tensors: MappingProxyType[str, TensorPlace]
    num_bytes: int
    """Of the whole file."""


def read_header(path: Path) -> GGUFHeader:
    """ValueError, with file, place, expected and found, for what is not a whole GGUF header."""
    size = path.stat().st_size
    with path.open("rb") as file:
        if size < len(_MAGIC) or file.read(len(_MAGIC)) != _MAGIC:
            raise ValueError(f"{path}: not a GGUF file: it does not begin with {_MAGIC.decode()}")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
            return _Reader(path, view).header()


class _Reader:
    """Goes once through a header."""

    def __init__(self, path: Path, view: mmap.mmap) -> None:
        self._path, self._view, self._at = path, view, len(_MAGIC)

    def header(self) -> GGUFHeader:
        version = self._number("<I")
        if version not in _VERSIONS:
            hint = " (a big-endian file?)" if version % 65536 == 0 else ""
            raise self._wrong(f"expected GGUF version 2 or 3, got {version}{hint}")
        num_tensors, num_keys = self._count(24), self._count(13)
        metadata: dict[str, Any] = {}
        for _ in range(num_keys):
            key = self._string()
            if key in metadata:
                raise self._wrong(f"the key {key!r} comes twice")
            metadata[key] = self._value(self._number("<I"))
        return GGUFHeader(
            self._path,
            MappingProxyType(metadata),
            MappingProxyType(self._tensors(num_tensors, metadata.get(_ALIGNMENT, 32))),
            len(self._view),
        )

    def _tensors(self, count: int, alignment: Any) -> dict[str, TensorPlace]:
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise self._wrong(f"expected a power of two as {_ALIGNMENT}, got {alignment!r}")
        found: dict[str, TensorPlace] = {}
        for _ in range(count):
            name = self._string()
            num_axes = self._number("<I")
            if name in found or not 1 <= num_axes <= _MAX_AXES:
                raise self._wrong(f"tensor {name!r}: expected once, with 1 to {_MAX_AXES} axes, got {num_axes} axes")
            axes = struct.unpack(f"<{num_axes}Q", self._take(8 * num_axes))
            type_id, offset = self._number("<I"), self._number("<Q")
            found[name] = TensorPlace(tuple(reversed(axes)), type_id, offset)
        start = -(-self._at // alignment) * alignment
        return {n: TensorPlace(place.shape, place.type_id, start + place.offset) for n, place in found.items()}

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            inner = self._number("<I")
            if inner == _STRING:
                return [self._string() for _ in range(self._count(8))]
            return self._scalars(inner, self._count(1)).tolist()
        return self._scalars(kind, 1).tolist()[0]

    def _scalars(self, kind: int, count: int) -> np.ndarray[Any, Any]:
        if kind not in _SCALARS:
            raise self._wrong(f"expected a value type of 0 to 12 (no array in an array), got {kind}")
        dtype = np.dtype(_SCALARS[kind])
        return np.frombuffer(self._take(count * dtype.itemsize), dtype)

    def _string(self) -> str:
        place = self._at
        raw = self._take(self._number("<Q"))
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise self._wrong(f"the string at byte {place} is not UTF-8") from error

    def _count(self, least_bytes: int) -> int:
        """A number of things of at least so many bytes each, all of which must fit into the rest of the file."""
        count = self._number("<Q")
        if count * least_bytes > len(self._view) - self._at:
            raise self._wrong(f"{count} entries do not fit into the {len(self._view) - self._at} bytes that are left")
        return count

    def _number(self, layout: str) -> int:
        number: int = struct.unpack(layout, self._take(struct.calcsize(layout)))[0]
        return number

    def _take(self, count: int) -> bytes:
        if count > len(self._view) - self._at:
            raise self._wrong(f"expected {count} bytes more, but the file ends at byte {len(self._view)}")
        start, self._at = self._at, self._at + count
        return self._view[start : self._at]

    def _wrong(self, what: str) -> ValueError:
        return ValueError(f"{self._path}: damaged or truncated GGUF header at byte {self._at}: {what}")
