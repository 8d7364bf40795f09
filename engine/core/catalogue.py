"""The models known by name. Each entry of catalogue.json is a config.json, cut down to what sizes a model."""

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from engine.core.model_shape import ModelShape, read_model_shape
from engine.core.suggestion import unknown_name


def model_names() -> tuple[str, ...]:
    """The catalogue, in alphabetical order."""
    return tuple(sorted(_entries()))


def lookup(name_or_path: str | Path) -> ModelShape:
    """The model of a catalogue name or a Hugging Face id (in any case), or of a config.json or its folder.

    ValueError with the nearest names if there is neither such a model nor such a file, and for a file that is
    not a model's configuration. Reads that one file; no network.
    """
    asked = str(name_or_path)
    name = _names().get(asked.lower())
    if name is not None:
        return read_model_shape(_entries()[name], name)
    path = Path(name_or_path)
    path = path / "config.json" if path.is_dir() else path
    if not path.is_file():
        raise unknown_name("model (neither a name nor a config.json)", asked, _entries())
    return _read_file(path)


def _read_file(path: Path) -> ModelShape:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise ValueError(f"{path} is not a config.json: its top level is not an object")
    name = path.parent.name if path.name == "config.json" else path.stem
    try:
        return read_model_shape(config, name)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


@cache
def _entries() -> Mapping[str, dict[str, Any]]:
    text = files(__package__).joinpath("catalogue.json").read_text(encoding="utf-8")
    entries: dict[str, dict[str, Any]] = json.loads(text)
    return entries


@cache
def _names() -> Mapping[str, str]:
    """Every accepted spelling, in lower case, with the entry it stands for."""
    ids = {config["_name_or_path"].lower(): name for name, config in _entries().items()}
    return ids | {name: name for name in _entries()}
