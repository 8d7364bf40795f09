"""Whether a library and the device that it needs are here, and in one line what to do where they are not."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch

from engine.attention.archs import Archs

T = TypeVar("T")


class LibraryMissingError(Exception):
    """A library is not here, or does not load; one line with what to do."""


def imported(name: str, install: str) -> Any:
    """The module; LibraryMissingError if it is not installed, or is and cannot be imported."""
    if importlib.util.find_spec(name) is None:
        raise LibraryMissingError(f"{name} is not installed: {install}")
    try:
        return importlib.import_module(name)
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        raise LibraryMissingError(f"{name} is installed and cannot be imported: {one_line(error)}") from error


def named(variable: str) -> Path | None:
    """The extension library that an environment variable names, if it is set."""
    path = os.environ.get(variable)
    return Path(path) if path else None


def registered(path: Path, namespace: str) -> Any:
    """Operators of an extension library (.so) under torch.ops. LibraryMissingError if it does not load."""
    if not path.is_file():
        raise LibraryMissingError(f"{path}: no such library")
    operators: Any = torch.ops
    try:
        operators.load_library(str(path))
    except (OSError, RuntimeError) as error:
        raise LibraryMissingError(f"{path.name} cannot be loaded: {one_line(error)}") from error
    return getattr(torch.ops, namespace)


def inside(package: str, pattern: str) -> Path | None:
    """A file of an installed package, which is not imported; None if there is no such package or file."""
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for path in sorted(Path(folder).glob(pattern)):
            return path
    return None


def why_not_here(load: Callable[[], object], archs: Archs) -> str:
    """What is missing of the library and of the device; empty where both are here."""
    reasons = []
    try:
        load()
    except LibraryMissingError as error:
        reasons.append(str(error))
    reasons.append(archs.why_not_here())
    return "; ".join(filter(None, reasons))


def one_line(error: Exception) -> str:
    """The first words of an error, for a message of one line."""
    return " ".join(str(error).split())[:160]
