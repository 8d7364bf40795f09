"""Results folders as a sweep leaves them, from real replays of small configurations."""

import hashlib
import itertools
import json
import shlex
from pathlib import Path

from experiments.api import Config
from experiments.cells import run_task, task_of
from experiments.config import dump, to_toml
from experiments.csv_text import to_csv
from experiments.resolve import plan_of
from experiments.store import Store
from workloads import synthetic_trace

BASE = {
    "kv.kv_tokens": 4000,
    "measure.step_model": "linear:0.02,0.0001,0.000001,0.0001",
    "model.max_model_len": 2048,
    "measure.map_frames": 0,
}
AXES = {"kv.allocator": ["orca-max", "paged"], "kv.block_size": [8, 16, 32]}


def write_sweep(
    folder: Path, axes=AXES, *, repeats=1, rate_key=None, num_requests=40, base=(), failing=(), step_s=0.02
) -> Path:
    """One tidy row a cell and repeat; a null of an axis is an empty field. `rate_key`: an axis of request rates, which
    the trace follows. `failing`: cells (by their values) that leave an error in place of a row."""
    store = Store.create(folder, overwrite=False)
    rows, cells, planned = [], [], []
    keys = list(axes)
    given = {**BASE, "measure.step_model": f"linear:{step_s},0.0001,0.000001,0.0001", **dict(base)}
    for values in itertools.product(*axes.values()):
        point = dict(zip(keys, values, strict=True))
        digest = hashlib.sha256(json.dumps(point).encode()).hexdigest()[:10]
        for repeat in range(repeats):
            name = f"{digest}-r{repeat}"
            seed = int(hashlib.sha256(name.encode()).hexdigest()[:6], 16)
            planned.append({"cell": name, "repeat": repeat, "seed": seed, **point})
            if values in failing:
                (folder / "cells" / name).mkdir()
                (folder / "cells" / name / "error.txt").write_text("ValueError: it broke on purpose\n")
                cells.append({"cell": name, "status": "failed", "error": "ValueError: it broke on purpose"})
                continue
            outcome, row = _replayed(point, seed, {**given, **point}, rate_key, num_requests)
            outcome.cell = _named(outcome.cell, name)
            store.write_cell(outcome)
            rows.append({"cell": name, "repeat": repeat, "seed": seed, **point, **row})
            cells.append({"cell": name, "status": "ok", "error": None})
    (folder / "plan.csv").write_text(to_csv(planned))
    (folder / "summary.csv").write_text(to_csv(rows))
    (folder / "ledger.jsonl").write_text("".join(json.dumps(cell) + "\n" for cell in cells))
    (folder / "config.resolved.toml").write_text(to_toml(dump(_config(given))))
    _write_manifest(folder, axes, planned, cells, given)
    return folder


def _config(values):
    return Config(**_tree({key: value for key, value in values.items() if value is not None}))


def _tree(flat):
    tree = {}
    for dotted, value in flat.items():
        section, _, key = dotted.partition(".")
        if key:
            tree.setdefault(section, {})[key] = value
        else:
            tree[section] = value
    return tree


def _replayed(point, seed, values, rate_key, num_requests):
    rate = values[rate_key] if rate_key else 8.0
    trace = synthetic_trace("poisson", "uniform:20-200,5-60", num_requests, seed, rate_per_s=rate)
    values = {key: value for key, value in values.items() if key != rate_key}
    plan = plan_of(_config(values), verb="run", writes=False, trace=trace)
    outcome = run_task(task_of(plan, plan.cells[0]), None)
    assert outcome.summary is not None, outcome.details
    return outcome, outcome.summary


def _named(cell, name):
    from dataclasses import replace

    return replace(cell, name=name)


def _write_manifest(folder, axes, planned, cells, given):
    words = itertools.chain.from_iterable(("--axis", f"{k}={','.join(map(str, v))}") for k, v in axes.items())
    manifest = {
        "schema_version": 1,
        "kind": "sweep",
        "experiment": folder.name,
        "verb": "sweep",
        "status": "failed" if any(cell["status"] == "failed" for cell in cells) else "ok",
        "argv": shlex.split(shlex.join(["pagelab", "sweep", *words])),
        "axes": axes,
        "config": _tree(given),
        "config_sha256": hashlib.sha256(json.dumps(given).encode()).hexdigest(),
        "seeds": sorted(row["seed"] for row in planned),
        "trace": {"name": "poisson", "sha256": "0123456789abcdef" * 4, "num_requests": 40},
        "capacity": {"tokens": given["kv.kv_tokens"]},
        "step_model": {"base_ps": 20_000_000_000},
        "device": "simulated",
        "cells": cells,
        "num_cells_planned": len(planned),
        "notes": [],
    }
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=2))
