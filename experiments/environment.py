"""Configuration from environment variables: `PAGELAB_KV__BLOCK_SIZE=32` is kv.block_size, between files and `--set`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any, Final

from experiments.config import SECTIONS, Layer, leaf_keys, set_layer, suggestion
from experiments.exits import UsageError
from experiments.settings import Config

PREFIX: Final = "PAGELAB_"
BETWEEN: Final = "__"
"""Section and key."""
SOURCE: Final = "environment"
OTHERS: Final = {"PAGELAB_GPU"}
"""Variables that tests read, by the name of a key."""


def variable_of(dotted: str) -> str:
    """`PAGELAB_KV__BLOCK_SIZE` of `kv.block_size`, `PAGELAB_SEED` of `seed`."""
    return PREFIX + dotted.replace(".", BETWEEN).upper()


def keys_by_variable() -> dict[str, str]:
    """Dotted key by variable."""
    keys = [name for name in Config.model_fields if name not in SECTIONS]
    keys += [key for key in leaf_keys().values() if "." in key]
    keys += [f"{section}.name" for section in ("workload", "model")]
    return {variable_of(key): key for key in keys}


def read_variables(variables: Mapping[str, str] | None = None) -> Layer:
    """What the environment says; UsageError for a variable that is meant to be a key and is none."""
    known, given = keys_by_variable(), os.environ if variables is None else variables
    loose = _loosely(known)
    values, places = dict[str, Any](), dict[str, str]()
    for name in sorted(name for name in given if name.startswith(PREFIX)):
        if name in known:
            key = known[name]
            values |= set_layer(f"{key}={given[name]}").values
            places[key] = f"variable {name}"
        elif BETWEEN in name:
            key = name.removeprefix(PREFIX).replace(BETWEEN, ".").lower()
            raise UsageError(f"variable {name}: {key}: unknown key; {suggestion(key)}")
        elif name not in OTHERS and _bare(name) in loose:
            meant = " or ".join(loose[_bare(name)])
            raise UsageError(f"variable {name}: section and key have two underscores between them: {meant}")
    return Layer(values, SOURCE, places=places)


def _loosely(known: Iterable[str]) -> dict[str, list[str]]:
    """Variables that are meant by a section, by a key without its section, or by both with other underscores."""
    found: dict[str, list[str]] = {}
    for variable in known:
        section, between, key = variable.partition(BETWEEN)
        if between:
            for name in (variable, PREFIX + key):
                found.setdefault(_bare(name), []).append(variable)
            found.setdefault(_bare(section), [f"{section}{BETWEEN}KEY"])
    return found


def _bare(name: str) -> str:
    return name.replace("_", "")


def told() -> dict[str, str]:
    """The variables that say something of the configuration, for the manifest."""
    return {name: os.environ[name] for name in sorted(keys_by_variable().keys() & os.environ.keys())}
