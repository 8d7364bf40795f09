"""Measurements read back from folders: what does not hold together is refused here, before anything is made of it."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, get_args

from experiments import store
from experiments.bench.cases import CASES
from experiments.bench.contestant import Missing
from experiments.bench.kernel_main import MACHINE_FILE
from experiments.bench.rows import Row, Status, from_csv
from experiments.bench.session import Measured, Wanted
from experiments.bench.shapes import DTYPES, FP8
from experiments.exits import UsageError

ROW_KEY: Final = ("case", "shape", "dtype", "block_size", "layout", "table", "peer", "config")
MACHINE: Final = ("device", "torch", "triton", "driver")
"""What captions and comparisons need to know of a machine, as text."""
SIZES: Final = ("batch", "context_tokens", "block_size")


def read(folder: Path) -> Measured:
    """What `kernel_main` or `bench kernel` has written. UsageError for anything else."""
    found = next((folder / name for name in (MACHINE_FILE, store.MANIFEST) if (folder / name).is_file()), None)
    try:
        rows = [_checked(row) for row in from_csv((folder / store.SUMMARY).read_text("utf-8"))]
        about = json.loads(found.read_text("utf-8"), parse_constant=_not_json) if found else {}
        machine, missing = dict(about["machine"]), [Missing(**one) for one in about["peers_missing"]]
        texts = [
            about["broken"] or "",
            *(machine[name] for name in MACHINE),
            *(text for one in missing for text in one),
        ]
        _need(all(isinstance(text, str) for text in texts), f"text about the machine, got {texts}")
        return Measured(_wanted(about["config"]), machine, missing, rows, about["broken"] or "")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UsageError(f"{folder}: no kernel measurements can be read here: {error!r}") from error


def _need(holds: bool, expected: str) -> None:
    if not holds:
        raise ValueError(f"expected {expected}")


def _not_json(constant: str) -> None:
    raise ValueError(f"expected strict JSON, got {constant}")


def _checked(row: Row) -> Row:
    """The row, if it is one. Names of cases become names of folders."""
    _need(row["case"] in CASES, f"a case among {', '.join(CASES)}, got {row['case']!r}")
    _need(row["status"] in get_args(Status), f"a status among {get_args(Status)}, got {row['status']!r}")
    known = (*DTYPES, FP8)
    _need(row["dtype"] in known, f"a dtype among {known}, got {row['dtype']!r}")
    _need(bool(row["peer"] and row["shape"]), f"a peer and a shape, got {row['peer']!r} and {row['shape']!r}")
    for name, value in row.items():
        if isinstance(value, int | float):
            _need(math.isfinite(value) and value >= 0, f"{name} of 0 or more, got {value}")
    needed = SIZES + (("median_s", "p20_s", "p80_s") if row["status"] == "ok" else ())
    for name in needed:
        _need(bool(row[name]), f"{name} above 0 in a row that is {row['status']}, got {row[name]}")
    if row["status"] == "ok":
        _need(row["p20_s"] <= row["median_s"] <= row["p80_s"], f"percentiles around the median, got {row}")
    return row


def _wanted(config: Any) -> Wanted:
    """What was asked for."""
    names = ("dtype", "block_size", "quick", "sweep", "seed")
    kinds = (str, int, bool, bool, int)
    values = {name: config[name] for name in names}
    for (name, value), kind in zip(values.items(), kinds, strict=True):
        _need(type(value) is kind, f"{name} as {kind.__name__}, got {value!r}")
    for name in ("cases", "peers"):
        listed = isinstance(config[name], list) and all(isinstance(one, str) for one in config[name])
        _need(listed, f"{name} as a list of names, got {config[name]!r}")
    library = config.get("fa3_library")
    _need(library is None or isinstance(library, str), f"fa3_library as text, got {library!r}")
    path = Path(library) if library else None
    backends = tuple(config.get("backends", ()))  # kept from a time before them: none
    _need(all(isinstance(one, str) for one in backends), f"backends as a list of names, got {backends!r}")
    cases, peers = tuple(config["cases"]), tuple(config["peers"])
    return Wanted(cases, peers=peers, fa3_library=path, backends=backends, **values)


def together(parts: Sequence[Measured]) -> Measured:
    """Several measurements as one. UsageError unless device, versions, type and seed agree and all rows differ."""
    first = parts[0]
    for part in parts[1:]:
        mine, theirs = ((_card(one), one.wanted.dtype, one.wanted.seed, one.wanted.sweep) for one in (first, part))
        for name, a, b in zip(("machine", "dtype", "seed", "sweep"), mine, theirs, strict=True):
            if a != b:
                raise UsageError(f"--from: measurements of one {name} go together, got {a} and {b}")
    rows = [row for part in parts for row in part.rows]
    keys = [tuple(row[name] for name in ROW_KEY) for row in rows]
    if len(set(keys)) < len(keys):
        twice = next(key for key, times in Counter(keys).items() if times > 1)
        raise UsageError(f"--from: the same row is there twice: {twice}")
    cases = tuple(dict.fromkeys(case for part in parts for case in part.wanted.cases))
    missing = list(dict.fromkeys(one for part in parts for one in part.missing))
    broken = "; ".join(part.broken for part in parts if part.broken)
    return Measured(replace(first.wanted, cases=cases), first.machine, missing, rows, broken)


def _card(one: Measured) -> dict[str, Any]:
    """The machine without its clocks and temperature, which change by the second."""
    return {name: value for name, value in one.machine.items() if name != "driver"}
