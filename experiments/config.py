"""Configuration from files, `--set` and flags: later layers win, and every complaint names file, line and key."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from engine.core.catalogue import entry
from experiments.exits import UsageError
from experiments.settings import Config

SECTIONS = ("workload", "model", "kv", "scheduler", "measure", "engine", "fleet")
WHOLE = ("kv.sweep", "workload.lengths")
"""Tables that are values: their keys are names, and a layer replaces them as a whole."""
RIVALS = (
    ("kv.num_blocks", "kv.kv_tokens", "kv.kv_bytes", "kv.capacity_rule"),
    ("workload.name", "workload.trace"),
)
"""Setting one of these in a layer drops the others of lower layers."""
ALIASES = {"model": "model.name", "workload": "workload.name", "window": "measure.window_s", "end": "measure.end_s"}
_UNIT_SUFFIX = re.compile(r"_(ms|us|ns|min|minutes|seconds|sec|gb|gib|mb|mib|kb|pct|percent)$")


@dataclass(frozen=True, slots=True)
class Layer:
    """Values of one source, by dotted key."""

    values: dict[str, Any]
    source: str
    """File name, `--set` or the flag's spelling (`--block-size`), for messages."""
    text: str = ""
    """The file's text, to find lines in."""
    places: Mapping[str, str] = field(default_factory=dict)
    """Where single keys come from, if not from `source`."""
    sweep: Mapping[str, Any] = field(default_factory=dict)
    """The file's [sweep] table: axes are no part of a configuration, and only `sweep` and its plan read them."""

    def place(self, key: str) -> str:
        """`exp.toml:7` where the line can be found, else the source."""
        if key in self.places:
            return self.places[key]
        leaf = re.escape(key.rpartition(".")[2])
        for number, line in enumerate(self.text.splitlines(), 1):
            if re.match(rf"\s*(?:[\w.\"]*\.)?\"?{leaf}\"?\s*=", line) or re.match(rf"\s*\[+{re.escape(key)}\]+", line):
                return f"{self.source}:{number}"
        return self.source


def leaf_keys() -> dict[str, str]:
    """Every key by its last part; `name` is ambiguous and left out."""
    keys = {leaf: leaf for leaf in Config.model_fields if leaf not in SECTIONS}
    for section in SECTIONS:
        keys |= {leaf: f"{section}.{leaf}" for leaf in _section(section).model_fields if leaf != "name"}
    return keys | ALIASES


def _section(name: str) -> type[BaseModel]:
    section = Config.model_fields[name].annotation
    assert isinstance(section, type)
    return section


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        dotted = f"{prefix}{key}"
        if isinstance(value, Mapping) and dotted not in WHOLE:
            flat |= flatten(value, dotted + ".")
        else:
            flat[dotted] = value
    return flat


def read_layer(path: Path) -> Layer:
    """A TOML file; its relative paths are seen from its folder."""
    try:
        text = path.read_text(encoding="utf-8")
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path}: not TOML: {error}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from None
    for name in SECTIONS:
        if name in tree and not isinstance(tree[name], dict):
            raise UsageError(
                f"{path}: {name} is a table: write [{name}] above its keys, or {ALIASES.get(name, name)} = ..."
            )
    sweep = tree.pop("sweep", {})
    if not isinstance(sweep, dict):
        raise UsageError(f"{path}: sweep is a table: write [sweep.grid] above its axes")
    return Layer(_rebased(flatten(tree), path.parent), str(path), text, sweep=sweep)


def _rebased(values: dict[str, Any], folder: Path) -> dict[str, Any]:
    return map_paths(values, lambda text: str(folder / text), is_there=lambda text: (folder / text).exists())


def map_paths(
    values: Mapping[str, Any],
    change: Callable[[str], str],
    is_there: Callable[[str], bool] = lambda text: Path(text).exists(),
) -> dict[str, Any]:
    """The same keys with every path in them changed. A model is one where a file or folder of that name `is_there`,
    unless the catalogue knows the name."""
    new = dict(values)
    if isinstance(new.get("workload.trace"), str):
        new["workload.trace"] = change(new["workload.trace"])
    if new.get("workload.tokenizer", "words") != "words" and isinstance(new["workload.tokenizer"], str):
        new["workload.tokenizer"] = change(new["workload.tokenizer"])
    if isinstance(new.get("workload.lengths"), Mapping):
        new["workload.lengths"] = {
            k: change(v) if isinstance(v, str) else v for k, v in new["workload.lengths"].items()
        }
    model = new.get("model.name")
    if isinstance(model, str) and is_there(model) and entry(model)[1] is None:
        new["model.name"] = change(model)
    kind, colon, path = str(new.get("measure.step_model", "")).partition(":")
    if colon and kind in ("table", "recorded", "calibrated"):
        new["measure.step_model"] = f"{kind}:{change(path)}"
    return new


def set_layer(assignment: str) -> Layer:
    """`--set kv.block_size=32`: a dotted key or its last part, and a TOML value or a bare word."""
    key, equals, text = assignment.partition("=")
    if not equals or not key.strip():
        raise UsageError(f"--set needs key=value, got {assignment!r}")
    key = key.strip()
    key = key if "." in key else leaf_keys().get(key, key)
    try:
        value = tomllib.loads(f"value = {text.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    if isinstance(value, dict) and key not in WHOLE:
        return Layer(flatten(value, key + "."), "--set")
    return Layer({key: value}, "--set")


def resolve_layers(layers: Iterable[Layer], lower: Config | None = None) -> Config:
    """One configuration from all layers, lowest first; UsageError with the place of the first mistakes."""
    values: dict[str, Any] = flatten(dump(lower)) if lower is not None else {}
    origin: dict[str, Layer] = {}
    for layer in layers:
        if layer.sweep:
            raise UsageError(f"{layer.source}: [sweep] is what `pagelab sweep` reads: use that verb, or take it out")
        _displace(values, layer)
        values |= layer.values
        origin |= dict.fromkeys(layer.values, layer)
    try:
        return Config.model_validate(nested(values, origin))
    except ValidationError as error:
        raise UsageError("\n".join(_complaint(item, origin) for item in error.errors()[:5])) from None


def _displace(values: dict[str, Any], layer: Layer) -> None:
    for group in RIVALS:
        if any(key in layer.values for key in group):
            for key in group:
                values.pop(key, None)
    if {"kv.allocator", "kv.block_size"} & layer.values.keys():
        values.pop("kv.sweep", None)


def nested(values: Mapping[str, Any], origin: Mapping[str, Layer] | None = None) -> dict[str, Any]:
    """Dotted keys as nested tables; UsageError, with the place, where a value is in the way of a table."""
    tree: dict[str, Any] = {}
    for dotted, value in values.items():
        *tables, leaf = dotted.split(".")
        table = tree
        for name in tables:
            table = table.setdefault(name, {})
            if not isinstance(table, dict):
                place = origin[dotted].place(dotted) if origin and dotted in origin else "configuration"
                raise UsageError(f"{place}: {dotted}: {name} is not a table")
        table[leaf] = value
    return tree


def _complaint(item: Any, origin: Mapping[str, Layer]) -> str:
    parts = [str(part) for part in item["loc"]]
    key = next((k for n in range(len(parts), 0, -1) if (k := ".".join(parts[:n])) in origin), ".".join(parts[:2]))
    inside = next((layer for name, layer in origin.items() if name.startswith(key + ".")), None)
    layer = origin.get(key, inside)
    place = layer.place(key) if layer else "configuration"
    if item["type"] == "extra_forbidden":
        return f"{place}: {key}: unknown key; {suggestion(key)}"
    message = str(item["msg"]).removeprefix("Value error, ")
    got = "" if item["type"] in ("value_error", "missing") else f", got {item['input']!r}"
    return f"{place}: {key}: {message[:1].lower() + message[1:]}{got}"


def suggestion(key: str) -> str:
    """What an unknown key may have meant: a unit other than SI, a key of another section, or a slip."""
    leaf, known = key.rpartition(".")[2], leaf_keys()
    stem = _UNIT_SUFFIX.sub("", leaf)
    if stem != leaf:
        right = next((k for k in (f"{stem}_s", f"{stem}_bytes", stem) if k in known), None)
        if right:
            unit = "seconds" if right.endswith("_s") else "bytes" if right.endswith("_bytes") else "SI base units"
            return f"keys are in SI base units: use {known[right]} in {unit}"
    if leaf in known:
        return f"did you mean {known[leaf]}?"
    named = known if "." in key else {**known, **{name: f"[{name}]" for name in SECTIONS}}
    near = get_close_matches(leaf, named, n=1, cutoff=0.6)
    if near:
        return f"did you mean {named[near[0]]}?"
    section = key.partition(".")[0]
    names = _section(section).model_fields if section in SECTIONS else Config.model_fields
    return f"known are {', '.join(names)}"


def read_config(paths: Iterable[Path]) -> Config:
    """From files alone."""
    return resolve_layers([read_layer(path) for path in paths])


def config_of(keys: Mapping[str, Any], lower: Config | None = None) -> Config:
    """From keywords, see `Config.of`."""
    known, values = leaf_keys(), dict[str, Any]()
    for key, value in keys.items():
        if key in SECTIONS and isinstance(value, Mapping):
            values |= flatten(value, key + ".")
        else:
            values[known.get(key, key)] = str(value) if isinstance(value, Path) else value
    return resolve_layers([Layer(values, "keyword")], lower)


def dump(config: Config) -> dict[str, Any]:
    """What is set, as plain nested values without nulls: TOML has none. A simulation says nothing of the engine, and
    one replica nothing of a fleet, so that files and hashes are those of a pagelab without them."""
    tree = config.model_dump(mode="json", exclude_none=True)
    if config.measure.backend == "sim":
        del tree["measure"]["backend"]
    return {name: part for name, part in tree.items() if name not in ("engine", "fleet") or part}


def to_toml(tree: Mapping[str, Any]) -> str:
    """TOML text."""
    import tomlkit

    return tomlkit.dumps(tree)
