"""Numbers with units on the way in: seconds, bytes, fractions and comma lists, as flags and files spell them.

Everything inside is in SI base units. A value that carries another unit is refused with the right spelling: a silent
factor of a thousand is the commonest mistake of all.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

_NUMBER = r"([-+]?(?:\d[\d_]*)?\.?\d+(?:[eE][-+]?\d+)?)"
_WITH_UNIT = re.compile(rf"^\s*{_NUMBER}\s*([A-Za-zµ%/]+)\s*$")
_TO_SECONDS = {
    "s": 1.0,
    "sec": 1.0,
    "ms": 1e-3,
    "us": 1e-6,
    "µs": 1e-6,
    "ns": 1e-9,
    "min": 60.0,
    "m": 60.0,
    "h": 3600.0,
}
_TO_BYTES = {
    "B": 1,
    "kB": 10**3,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
LEAST_POOL_BYTES = 1 << 16
"""Fewer bytes than this for a whole pool are a number of GiB without its unit."""

LEAST_PAGE_BYTES = 1 << 12


def seconds(value: Any) -> Any:
    """Durations are plain numbers of seconds; `900ms` is refused and told what it is in seconds."""
    match = _WITH_UNIT.match(value) if isinstance(value, str) else None
    if match is None:
        return value
    number, unit = float(match[1]), match[2]
    if unit not in _TO_SECONDS:
        raise ValueError(f"durations are in seconds, without a unit: got {value!r}")
    raise ValueError(
        f"durations are in seconds, without a unit: write {number * _TO_SECONDS[unit]:g} instead of {value!r}"
    )


def byte_count(value: Any) -> Any:
    """Bytes as an integer, or with a unit that says whether it is decimal (GB) or binary (GiB)."""
    match = _WITH_UNIT.match(value) if isinstance(value, str) else None
    if match is None:
        return value
    unit = match[2]
    if unit not in _TO_BYTES:
        raise ValueError(f"{value!r}: {unit!r} does not say which; use GB (10^9 bytes) or GiB (2^30 bytes)")
    return round(float(match[1]) * _TO_BYTES[unit])


def pool_bytes(value: Any, key: str = "kv_bytes") -> Any:
    """`byte_count`, and a hint where the number can only be meant in another unit."""
    count = byte_count(value)
    number = str(count).replace(".", "", 1).isdigit()
    if number and 0 < float(count) < LEAST_POOL_BYTES:
        raise ValueError(f"{key} is in bytes, got {value}: write {value}GiB or {value}GB if that is meant")
    return count


def page_sizes(value: Any) -> Any:
    """`64KiB,2MiB`, one size, or a list."""
    return [byte_count(one) for one in comma_list(value)]


def whole_pages(value: tuple[int, ...]) -> tuple[int, ...]:
    """What a device can map: multiples of 4 KiB."""
    for size in value:
        if size % LEAST_PAGE_BYTES:
            raise ValueError(f"page_bytes are multiples of 4KiB (4096 bytes), got {size}: write {size}KiB if meant")
    return value


def host_bytes(value: Any) -> Any:
    """`pool`, or bytes as for a pool."""
    return value if value == "pool" else pool_bytes(value, "host_bytes")


def fraction(value: Any) -> Any:
    """A share between 0 and 1; percentages are refused by name."""
    text = str(value).strip()
    number = text.removesuffix("%").strip()
    try:
        given = float(number)
    except ValueError:
        return value
    if text.endswith("%") or given > 1:
        raise ValueError(f"a fraction between 0 and 1, not a percentage: write {given / 100:g} instead of {value!r}")
    return given


def comma_list(value: Any) -> Any:
    """`1,8,16`, one value, or a list."""
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    return value if isinstance(value, list | tuple) else [value]


def window(value: Any) -> Any:
    """`a:b` in seconds, a pair, or `arrivals`."""
    if isinstance(value, str) and value.strip() != "arrivals":
        parts = value.split(":")
        if len(parts) != 2:
            raise ValueError(f"a window is START:STOP in seconds or 'arrivals', got {value!r}")
        value = parts
    if isinstance(value, list | tuple):
        start, stop = (float(seconds(bound)) for bound in value)
        if not 0 <= start < stop <= 1e9:
            raise ValueError(f"a window needs 0 <= START < STOP <= 1e9 in seconds, got {start:g}:{stop:g}")
        return (start, stop)
    return value


def end(value: Any) -> Any:
    """Seconds, or `none` to drain."""
    return value if value == "none" else seconds(value)


def headroom_bytes(text: str) -> int:
    """The flag --headroom-gb: GB of 10^9 bytes."""
    try:
        number = float(text)
    except ValueError:
        raise ValueError(f"--headroom-gb is a number of GB (10^9 bytes), got {text!r}") from None
    if not 0 <= number < 1e6:
        raise ValueError(
            f"--headroom-gb is in GB (10^9 bytes), got {text}: for bytes use --set kv.headroom_bytes={text}"
        )
    return round(number * 10**9)


Count = Annotated[int, Field(gt=0)]
Seconds = Annotated[float, BeforeValidator(seconds), Field(gt=0, le=1e9, allow_inf_nan=False)]
Delay = Annotated[float, BeforeValidator(seconds), Field(ge=0, le=1e9, allow_inf_nan=False)]
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Fraction = Annotated[float, BeforeValidator(fraction), Field(ge=0, le=1)]
Bytes = Annotated[int, BeforeValidator(byte_count), Field(ge=0)]
HostBytes = Annotated[Annotated[int, Field(gt=0)] | Literal["pool"], BeforeValidator(host_bytes)]
PoolBytes = Annotated[int, BeforeValidator(pool_bytes), Field(gt=0)]
Window = Annotated[tuple[float, float] | Literal["arrivals"], BeforeValidator(window)]
End = Annotated[Seconds | Literal["none"], BeforeValidator(end)]
Names = Annotated[tuple[str, ...], BeforeValidator(comma_list), Field(min_length=1)]
Counts = Annotated[tuple[Count, ...], BeforeValidator(comma_list), Field(min_length=1)]
PageSizes = Annotated[tuple[Count, ...], BeforeValidator(page_sizes), AfterValidator(whole_pages), Field(min_length=1)]
