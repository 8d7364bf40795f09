"""The axes of a sweep: values by dotted key, which of them go together, and what is left out.

A flag says `--axis kv.block_size=1,8,16`; a file has [sweep.grid] (every combination), [sweep.zip] (value by value) and
`exclude`. A later layer replaces the values of an axis of the same key.
"""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from experiments.config import SECTIONS, Layer, flatten, leaf_keys
from experiments.exits import UsageError
from experiments.settings import Config
from experiments.sweep.exclude import parse_exclude

NULL: Final = "null"
"""How flags and files spell a key that is left unset: TOML has no null."""
NO_AXIS: Final = {
    "seed": "repeats have seeds of their own: say --num-runs N",
    "num_runs": "say --num-runs N",
    "schema_version": "there is only one",
    "kv.sweep": "say block sizes and allocators as axes, and leave combinations out with --exclude",
    "workload.lengths": "say --lengths",
}
SPACES: Final = {
    "lin": lambda start, stop, share: start + (stop - start) * share,
    "log": lambda start, stop, share: start * (stop / start) ** share,
}
MOST_SPACED: Final = 1_000_000
"""Values of one lin or log: more are a slip of the keyboard."""
Point = dict[str, Any]
"""One value an axis, by dotted key; None leaves the key unset."""


@dataclass(frozen=True, slots=True)
class Axes:
    """What is varied."""

    values: dict[str, tuple[Any, ...]]
    """By dotted key, in the order given, as often as given."""
    zips: tuple[tuple[str, ...], ...] = ()
    """Keys that go together, value by value."""
    exclude: tuple[str, ...] = ()
    """Expressions over dotted keys: where one is true, there is no cell."""

    def __post_init__(self) -> None:
        zipped = [key for group in self.zips for key in group]
        for key in zipped:
            if key not in self.values:
                raise UsageError(f"--zip names {key!r}, which is no axis: say --axis {key}=..., too")
            if zipped.count(key) > 1:
                raise UsageError(f"--zip names {key!r} twice: an axis goes together with one group")
        for group in self.zips:
            lengths = {key: len(self.values[key]) for key in group}
            if len(set(lengths.values())) > 1:
                told = ", ".join(f"{key} has {length}" for key, length in lengths.items())
                raise UsageError(f"--zip goes value by value and needs as many of each: {told}")
        for expression in self.exclude:
            parse_exclude(expression)

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns, in order."""
        return tuple(self.values)

    def points(self) -> Iterator[Point]:
        """Every combination, the last axis fastest; those that are excluded, too."""
        group_of = {key: group for group in self.zips for key in group}
        groups = dict.fromkeys(group_of.get(key, (key,)) for key in self.values)
        spaces = [[dict(zip(group, row, strict=True)) for row in self._rows(group)] for group in groups]
        for parts in itertools.product(*spaces):
            found = {key: value for part in parts for key, value in part.items()}
            yield {key: found[key] for key in self.values}

    def _rows(self, group: Sequence[str]) -> Iterable[tuple[Any, ...]]:
        return zip(*(self.values[key] for key in group), strict=True)

    def table(self) -> dict[str, Any]:
        """The [sweep] table that says the same."""
        plain = {key: [NULL if value is None else value for value in values] for key, values in self.values.items()}
        zips = [{key: plain[key] for key in group} for group in self.zips]
        grid = {key: values for key, values in plain.items() if not any(key in group for group in self.zips)}
        zipped: dict[str, Any] = {"zip": zips[0] if len(zips) == 1 else zips} if zips else {}
        return {
            **({"exclude": list(self.exclude)} if self.exclude else {}),
            **({"grid": grid} if grid else {}),
            **zipped,
        }


def axes_of(
    layers: Sequence[Layer], axes: Iterable[str] = (), zips: Iterable[str] = (), exclude: Iterable[str] = ()
) -> Axes:
    """From the [sweep] tables of files, and flags over them; UsageError with what is wrong and where."""
    values: dict[str, tuple[Any, ...]] = {}
    groups: list[tuple[str, ...]] = []
    expressions: list[str] = []
    for layer in layers:
        _read_table(layer, values, groups, expressions)
    for text in axes:
        key, equals, listed = text.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"--axis needs KEY=VALUE,VALUE,..., got {text!r}")
        _put(values, key.strip(), parse_values(key.strip(), listed), f"--axis {key.strip()}")
    groups += [tuple(_known(key.strip(), "--zip") for key in text.split(",")) for text in zips]
    return Axes(values, tuple(dict.fromkeys(groups)), (*expressions, *exclude))


def axes_of_keys(grid: Mapping[str, Any], zips: Iterable[Sequence[str]] = (), exclude: Iterable[str] = ()) -> Axes:
    """From Python values: lists by key; None, or "null", leaves a key unset."""
    values: dict[str, tuple[Any, ...]] = {}
    for key, listed in grid.items():
        _put(values, key, _listed(listed), f"axis {key}")
    return Axes(values, tuple(tuple(_known(key, "zip") for key in group) for group in zips), tuple(exclude))


def _read_table(
    layer: Layer, values: dict[str, tuple[Any, ...]], groups: list[tuple[str, ...]], exclude: list[str]
) -> None:
    table = dict(layer.sweep)
    grid, zips = dict(table.pop("grid", {})), table.pop("zip", [])
    said = [*_texts(layer, table.pop("exclude", [])), *_texts(layer, grid.pop("exclude", []))]
    if table:
        raise UsageError(
            f"{layer.place(next(iter(table)))}: sweep.{next(iter(table))}: unknown key; known are grid, zip, exclude"
        )
    exclude += said
    for key, listed in flatten(grid).items():
        _put(values, key, _listed(listed), layer.place(key))
    for group in zips if isinstance(zips, list) else [zips]:
        flat = flatten(group)
        for key, listed in flat.items():
            _put(values, key, _listed(listed), layer.place(key))
        groups.append(tuple(_known(key, layer.place(key)) for key in flat))


def _texts(layer: Layer, value: Any) -> list[str]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise UsageError(f"{layer.place('exclude')}: exclude is a list of expressions in quotes, got {value!r}")
    return texts


def _put(values: dict[str, tuple[Any, ...]], key: str, listed: Sequence[Any], place: str) -> None:
    if not listed:
        raise UsageError(f"{place}: {key}: an axis needs at least one value")
    values[_known(key, place)] = tuple(listed)


def _known(key: str, place: str) -> str:
    """The dotted key; a last part alone will do, as for `--set`. Unknown ones are complained about with their value."""
    dotted = key if "." in key else leaf_keys().get(key, key)
    if dotted in NO_AXIS:
        raise UsageError(f"{place}: {dotted} is no axis: {NO_AXIS[dotted]}")
    return dotted


def _listed(value: Any) -> list[Any]:
    """One value, or a list; text in the spelling of flags, where it is not in a list."""
    if isinstance(value, str):
        return parse_values("", value)
    listed = list(value) if isinstance(value, list | tuple | range) else [value]
    return [None if one == NULL else one for one in listed]


def parse_values(key: str, text: str) -> list[Any]:
    """`1,8,16`, `paged,null`, `lin(1,4,7)`, `log(1,256,9)`, or a TOML list."""
    stripped = text.strip()
    if stripped.startswith("["):
        try:
            return _listed(tomllib.loads(f"value = {stripped}")["value"])
        except tomllib.TOMLDecodeError as error:
            raise UsageError(f"--axis {key}: not a TOML list: {error}") from None
    return [value for part in _split(stripped) for value in _spaced(key, part.strip())]


def _split(text: str) -> list[str]:
    """At commas outside of brackets and quotes; empty parts are nothing."""
    parts, depth, quoted = [""], 0, False
    for character in text:
        quoted ^= character == '"'
        depth += (character in "([") - (character in ")]")
        if character == "," and not depth and not quoted:
            parts.append("")
        else:
            parts[-1] += character
    return [part for part in parts if part.strip()]


def _spaced(key: str, text: str) -> list[Any]:
    name, bracket, inside = text.partition("(")
    if not bracket or name not in SPACES:
        return [_value(text)]
    try:
        start, stop, count = (float(part) for part in inside.removesuffix(")").split(","))
        whole = inside.endswith(")") and count.is_integer() and 2 <= count <= MOST_SPACED
        if not whole or (name == "log" and min(start, stop) <= 0):
            raise ValueError
        found = [SPACES[name](start, stop, i / (count - 1)) for i in range(int(count))]
        if not all(map(isfinite, found)):
            raise ValueError
    except (ValueError, OverflowError):
        raise UsageError(
            f"--axis {key}: {text!r}: say {name}(FIRST,LAST,COUNT) with a COUNT of 2 to {MOST_SPACED:,}"
            + (" and bounds above 0" if name == "log" else "")
        ) from None
    return [round(value) for value in found] if _is_whole(key) else [float(f"{value:.12g}") for value in found]


def _value(text: str) -> Any:
    """A number, a truth value, a word, or nothing."""
    if text == NULL:
        return None
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    return value if isinstance(value, bool | int | float | str) else text


def _is_whole(key: str) -> bool:
    """Whether the key takes whole numbers only."""
    field = field_of(leaf_keys().get(key, key))
    if field is None:
        return False
    try:
        TypeAdapter(field.rebuild_annotation()).validate_python(1.5)
    except ValidationError:
        return True
    return False


def field_of(dotted: str) -> FieldInfo | None:
    """The configuration's field of that key."""
    section, _, leaf = dotted.partition(".")
    model = Config.model_fields[section].annotation if section in SECTIONS else Config
    found: FieldInfo | None = getattr(model, "model_fields", {}).get(leaf or section)
    return found
