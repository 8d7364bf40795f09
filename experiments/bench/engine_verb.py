"""`pagelab bench engine`: measures, prints, and keeps rows and manifest like every other result."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments import manifest, store
from experiments.bench import engine_main
from experiments.bench.engine_rows import MEANINGS, report
from experiments.bench.engine_run import EngineMeasured, EngineWanted, measure
from experiments.bench.kept import keep_tables
from experiments.console import say, say_json
from experiments.exits import OK, UsageError


def engine_verb(
    options: dict[str, Any],
    argv: Sequence[str],
    output_dir: Path | None,
    measured_in: Path | None,
    *,
    overwrite: bool,
    as_json: bool,
) -> int:
    """Exit code 0; UsageError, DeviceMissing."""
    begun = manifest.Invocation("bench engine", argv, manifest.now())
    if output_dir is not None:
        store.Store.replaceable(output_dir, overwrite=overwrite)  # a refusal after the measurements would lose them
    done = engine_main.read(measured_in) if measured_in is not None else _measured(options)
    if output_dir is not None:
        about = {key: value for key, value in done.to_dict().items() if key not in ("rows", "profile")}
        about |= {"device": done.engine["device"], "seeds": [done.wanted.seed], "columns": MEANINGS}
        keep_tables(output_dir, engine_main.tables_of(done), begun, about, overwrite=overwrite)
    if as_json:
        say_json({**done.to_dict(), "results": str(output_dir) if output_dir else None})
    else:
        say("\n".join(report(done.rows, done.steps, done.profile)))
        if output_dir:
            say(f"results: {output_dir}")
    return OK


def _measured(options: dict[str, Any]) -> EngineMeasured:
    try:
        return measure(EngineWanted(**options), engine_main.say)
    except ValueError as error:
        raise UsageError(str(error)) from error
