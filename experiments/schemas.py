"""JSON schemas (2020-12) of what pagelab reads and writes: the configuration, a run's summary, a folder's manifest.

A summary's columns are many and grow; what holds for all of them is what their names say: `_frac` lies in [0, 1],
`num_` counts, `_s` is a time, and a column of `sim.metrics` says what it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from engine.core.suggestion import unknown_name
from experiments import exits
from experiments.console import say_json
from experiments.exits import UsageError

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
Schema = dict[str, Any]
COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
TIME: Final[Schema] = {"type": ["number", "null"], "minimum": 0}
SHARE: Final[Schema] = {"type": ["number", "null"], "minimum": 0, "maximum": 1}
TEXT: Final[Schema] = {"type": "string", "minLength": 1}
STAMP: Final[Schema] = {"type": "string", "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+([+-][0-9:]+|Z)$"}
HASH: Final[Schema] = {"type": "string", "pattern": "^[0-9a-f]{64}$"}


def config_schema() -> Schema:
    """What a TOML file may say, once it is read: comma lists and units in words are the reader's, not the schema's."""
    from experiments.settings import Config

    return {"$schema": DIALECT, **Config.model_json_schema(mode="validation")}


def summary_schema() -> Schema:
    """summary.json of a cell, and a row of the JSON object's `runs`."""
    from sim.metrics import METRICS

    fixed: Schema = {
        "allocator": TEXT,
        "block_size": {"type": "integer", "minimum": 1},
        "num_blocks": {"type": "integer", "minimum": 1},
        "capacity_tokens": {"type": "integer", "minimum": 1},
        "saturated": {"type": ["boolean", "null"]},
        "window_kind": {"enum": ["arrivals", "named", "makespan"]},
    }
    told = {
        metric.name: {
            "type": ["number", "null"],
            "title": metric.label,
            "description": f"{metric.formula} [{metric.unit}]",
        }
        for metric in METRICS
    }
    names = ["kv_live_frac", "kv_reserved_frac", "kv_internal_frac", "kv_external_frac", "kv_free_frac"]
    return {
        "$schema": DIALECT,
        "title": "summary of a run",
        "type": "object",
        "required": [*fixed, *names, "num_requests", "num_finished", "makespan_s"],
        "properties": told | fixed,
        "patternProperties": {
            "_frac$": SHARE,
            "^num_": COUNT,
            "_tokens$": {"type": "integer", "minimum": 0},
            "(?<!_per)_s$": TIME,
            "_per_s$": TIME,
        },
        "additionalProperties": {"type": ["number", "string", "boolean", "null"]},
    }


def manifest_schema() -> Schema:
    """manifest.json of a results folder."""
    cell = {
        "type": "object",
        "required": ["cell", "allocator", "block_size", "num_blocks", "seed", "status", "wall_s"],
        "properties": {
            "cell": TEXT,
            "allocator": TEXT,
            "block_size": {"type": "integer", "minimum": 1},
            "num_blocks": {"type": "integer", "minimum": 1},
            "seed": COUNT,
            "status": {"enum": ["ok", "invalid", "failed"]},
            "wall_s": TIME,
            "error": {"type": ["string", "null"]},
            "failed_checks": {"type": "array", "items": TEXT},
            "trace_sha256": HASH,
        },
    }
    properties: Schema = {
        "schema_version": {"type": "integer", "minimum": 1},
        "experiment": TEXT,
        "verb": TEXT,
        "status": {"enum": ["ok", "invalid", "failed", "interrupted"]},
        "argv": {"type": "array", "items": {"type": "string"}},
        "config": {"type": "object"},
        "config_sha256": HASH,
        "seeds": {"type": "array", "items": COUNT},
        "git": {"type": ["object", "null"], "required": ["commit", "dirty"]},
        "trace": {"type": "object", "required": ["name", "sha256", "num_requests"]},
        "capacity": {"type": "object", "required": ["tokens", "bytes", "bytes_per_token", "rule"]},
        "step_model": {"type": "object"},
        "device": TEXT,
        "started": STAMP,
        "finished": STAMP,
        "wall_s": TIME,
        "cells": {"type": "array", "items": cell},
        "num_rows": {"type": "object", "additionalProperties": {"type": "object", "additionalProperties": COUNT}},
        "notes": {"type": "array", "items": {"type": "string"}},
        "files": {"type": "object", "additionalProperties": HASH},
    }
    return {
        "$schema": DIALECT,
        "title": "manifest of compare and run",
        "type": "object",
        "required": list(properties),
        "properties": properties,
    }


SCHEMAS: Final[dict[str, Callable[[], Schema]]] = {
    "config": config_schema,
    "summary": summary_schema,
    "manifest": manifest_schema,
}


def schema_verb(name: str) -> int:
    """Prints one schema; UsageError for a name that there is not."""
    if name not in SCHEMAS:
        raise UsageError(str(unknown_name("schema", name, SCHEMAS)))
    say_json(SCHEMAS[name]())
    return exits.OK
