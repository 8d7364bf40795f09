"""The models known by name. Each entry of catalogue.json is a config.json, cut down to what sizes a model."""

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from engine.core.model_shape import ModelShape, read_model_shape
from engine.core.suggestion import unknown_model


def model_names() -> tuple[str, ...]:
    """The catalogue, in alphabetical order."""
    return tuple(sorted(_entries()))


def lookup(name_or_path: str | Path) -> ModelShape:
    """The model of a catalogue name or a Hugging Face id (in any case), or of a config.json or its folder.

    ValueError with the nearest names if there is neither such a model nor such a file, and for a file that is
    not a model's configuration. Reads that one file; no network.
    """
    asked = str(name_or_path)
    name, config = entry(asked)
    if config is not None:
        return read_model_shape(config, name)
    path = Path(name_or_path)
    path = path / "config.json" if path.is_dir() else path
    if not path.is_file():
        raise unknown_model(asked, _entries(), "a config.json or its folder")
    name = path.parent.name if path.name == "config.json" else path.stem
    try:
        return read_model_shape(read_json(path), name)
    except ValueError as error:
        raise error if str(path) in str(error) else ValueError(f"{path}: {error}") from error


def entry(name_or_id: str) -> tuple[str, Mapping[str, Any] | None]:
    """The catalogue's name and config of a name or a Hugging Face id, in any case; ("", None) if it has none."""
    name = _names().get(name_or_id.lower(), "")
    return name, _entries().get(name)


def read_json(path: Path) -> dict[str, Any]:
    """A file with one JSON object, as every file of a model's configuration is. ValueError for anything else."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path}: expected a JSON object, got {type(content).__name__}")
    return content


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
