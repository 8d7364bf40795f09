"""Written numbers to integers: token counts, seconds, milliseconds and dates, without a float in between."""

from __future__ import annotations

import re
from datetime import date
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from functools import lru_cache
from typing import Final

NS_PER_S: Final = 1_000_000_000
NS_PER_MS: Final = 1_000_000
MAX_NS: Final = 2**63 - 1
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()

_DATE_TIME: Final = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:?\d\d)?", re.ASCII
)


class RowError(ValueError):
    """One row that cannot be taken: `reason` names the kind, for the counts; the text says what was found."""

    def __init__(self, reason: str, found: str) -> None:
        super().__init__(f"{reason}: {found}")
        self.reason = reason


def exact(value: float) -> Fraction:
    """The decimal that a float is written as: 0.1 is one tenth, not 0.1000000000000000055."""
    return Fraction(repr(float(value)))


def decimal(key: str, value: object) -> Decimal:
    """A finite decimal from text or from a JSON number (int or Decimal)."""
    if isinstance(value, bool) or not isinstance(value, (str, int, Decimal)):
        raise RowError("not a number", f"{key} is {value!r}")
    try:
        number = Decimal(value)
    except InvalidOperation:
        raise RowError("not a number", f"{key} is {value!r}") from None
    if not number.is_finite():
        raise RowError("not finite", f"{key} is {value}")
    return number


def whole(key: str, value: object) -> int:
    """An integer; '7564.0' is one, '7564.5' is not."""
    if type(value) is int and -MAX_NS <= value <= MAX_NS:
        return value
    if isinstance(value, str) and value.isdecimal() and value.isascii() and len(value) < 19:
        return int(value)
    number = decimal(key, value)
    if number.adjusted() > 18 or abs(number) > MAX_NS:
        raise RowError("number out of range", f"{key} is {value}")
    if number != number.to_integral_value():
        raise RowError("not a whole number", f"{key} is {value}")
    return int(number)


def nanoseconds(key: str, value: object, unit_ns: int) -> int:
    """A time in units of `unit_ns`, rounded half to even at the nanosecond (float residue is smaller)."""
    number = decimal(key, value)
    if number.adjusted() > 18 or not 0 <= number * unit_ns <= MAX_NS:
        raise RowError("time out of range", f"{key} is {value}")
    return round(number * unit_ns)


def looks_like_date(text: str) -> bool:
    """Whether the text begins as a date rather than as a number of seconds."""
    return text[4:5] == "-" and text[:4].isdecimal()


def date_time_ns(key: str, text: str) -> tuple[int, bool]:
    """Nanoseconds since 1970 UTC of '2023-11-16 18:15:46.6805900' or ISO 8601, and whether a zone was given.

    No fraction, 1 to 9 digits, 'Z' and offsets are read; without a zone UTC is meant.
    """
    found = _DATE_TIME.fullmatch(text)
    if found is None:
        raise RowError("not a date and time", f"{key} is {text!r}")
    year, month, day, hour, minute, second, fraction, zone = found.groups()
    if int(hour) > 23 or int(minute) > 59 or int(second) > 59:
        raise RowError("not a date and time", f"{key} is {text!r}")
    seconds = _day(key, int(year), int(month), int(day)) * 86_400 + int(hour) * 3600 + int(minute) * 60 + int(second)
    nanos = int((fraction or "").ljust(9, "0"))
    return (seconds - _offset_s(zone)) * NS_PER_S + nanos, zone is not None


@lru_cache(maxsize=64)
def _day(key: str, year: int, month: int, day: int) -> int:
    try:
        return date(year, month, day).toordinal() - _EPOCH_DAY
    except ValueError:
        raise RowError("not a date and time", f"{key} is on {year:04}-{month:02}-{day:02}") from None


def _offset_s(zone: str | None) -> int:
    if zone is None or zone == "Z":
        return 0
    sign = -1 if zone[0] == "-" else 1
    return sign * (int(zone[1:3]) * 3600 + int(zone[-2:]) * 60)
