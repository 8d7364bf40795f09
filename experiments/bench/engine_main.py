"""`python -m experiments.bench.engine_main`: the measurements of `pagelab bench engine` with torch and triton alone.

Writes `summary.csv`, `steps.csv`, `profile.csv` and `machine.json` into the output folder; `pagelab bench engine --from
FOLDER` makes a results folder with a manifest of them, anywhere.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

from experiments import exits
from experiments.bench.engine_rows import from_csv, report
from experiments.bench.engine_run import EngineMeasured, EngineWanted, measure
from experiments.csv_text import to_csv

ROWS_FILE, STEPS_FILE, PROFILE_FILE, MACHINE_FILE = "summary.csv", "steps.csv", "profile.csv", "machine.json"
MANIFEST_FILE: Final = "manifest.json"
MACHINE_KEYS: Final = ("config", "machine", "engine", "num_blocks")


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code: 0; 2 for bad usage, 3 where a rank died, 6 without a device."""
    words = vars(_parser().parse_args(argv))
    folder, as_json = words.pop("output_dir"), words.pop("json")
    try:
        wanted = EngineWanted(**words)
        if folder:
            folder.mkdir(parents=True, exist_ok=True)  # before anything is measured: a refusal later would lose it
        done = measure(wanted, say)
    except (ValueError, OSError) as error:
        say(f"engine_main: {error}")
        return exits.USAGE
    except exits.DeviceMissing as error:
        say(f"engine_main: {error}")
        return exits.NO_DEVICE
    except exits.RunBroken as error:
        say(f"engine_main: {error}")
        return exits.FAILED_CELLS
    if folder:
        write(done, folder)
    if as_json:
        print(json.dumps(done.to_dict(), allow_nan=False, indent=1))
    else:
        print("\n".join(report(done.rows, done.steps, done.profile)))
    return exits.OK


def write(done: EngineMeasured, folder: Path) -> None:
    """The files; existing ones are replaced."""
    machine = {key: value for key, value in done.to_dict().items() if key not in ("rows", "profile")}
    for name, rows in tables_of(done).items():
        (folder / name).write_text(to_csv(rows), "utf-8")
    (folder / MACHINE_FILE).write_text(json.dumps(machine, allow_nan=False, indent=2) + "\n", "utf-8")


def tables_of(done: EngineMeasured) -> dict[str, list[dict[str, Any]]]:
    """Rows by file name; no profile where none was asked for."""
    tables = {ROWS_FILE: done.rows, STEPS_FILE: done.steps, PROFILE_FILE: done.profile}
    return {name: rows for name, rows in tables.items() if rows}


def read(folder: Path) -> EngineMeasured:
    """What `write`, or `pagelab bench engine`, wrote. UsageError for anything else."""
    place = next((folder / name for name in (MACHINE_FILE, MANIFEST_FILE) if (folder / name).is_file()), folder)
    try:
        about = json.loads(place.read_text("utf-8"))
        config, machine, engine, num_blocks = (about[key] for key in MACHINE_KEYS)
        rows, steps = (from_csv((folder / name).read_text("utf-8")) for name in (ROWS_FILE, STEPS_FILE))
        profile = from_csv((folder / PROFILE_FILE).read_text("utf-8")) if (folder / PROFILE_FILE).is_file() else []
        done = EngineMeasured(EngineWanted(**config), machine, engine, num_blocks, rows, steps, profile)
        report(done.rows, done.steps, done.profile)
    except (OSError, ValueError, KeyError, TypeError, StopIteration) as error:
        raise exits.UsageError(f"{folder}: no measurements of the engine can be read here: {error!r}") from error
    return done


def say(text: str) -> None:
    """Progress, on stderr."""
    print(text, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("engine_main", description="Time the engine on a closed batch.")
    for field in fields(EngineWanted):
        flag, default = "--" + field.name.replace("_", "-"), field.default
        if isinstance(default, bool):
            parser.add_argument(flag, default=default, action=argparse.BooleanOptionalAction)
        else:
            kind = int if isinstance(default, int) or field.name in ("max_model_len", "kv_tokens") else str
            parser.add_argument(flag, default=default, type=kind, help=f"[{default}]")
    parser.add_argument("--output-dir", type=Path)
    parser.add_argument("--json", action="store_true", help="one strict JSON object on stdout")
    return parser


if __name__ == "__main__":
    sys.exit(main())
