"""`pagelab calibrate`: measured or read, fitted, written, and its errors told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from experiments.calibrate.main import CALIBRATION_FILE, Wanted, measure, read, report, write
from experiments.console import say, say_json
from experiments.exits import OK, UsageError


def wanted_of(model: str, device: str, **others: Any) -> Wanted:
    """UsageError for numbers that make no grid."""
    try:
        return Wanted(model, device, **others)
    except ValueError as error:
        raise UsageError(f"calibrate: {error}") from error


def calibrate_verb(wanted: Wanted | None, source: Path | None, folder: Path, *, as_json: bool) -> int:
    """Exit code 0. UsageError for bad usage or a folder that cannot be read or written; DeviceMissing."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if source is not None:
            done = read(source)
        else:
            assert wanted is not None
            done = measure(wanted)
        model = write(done, folder)
        errors = done.errors()
    except (ValueError, OSError) as error:
        raise UsageError(f"calibrate: {error}") from error
    if as_json:
        found = {"coefficients": model.coefficients(), "about": done.about}
        say_json({**found, "errors": [{"rows": which, **one._asdict()} for which, one in errors]})
        return OK
    for line in report(done):
        say(line)
    say(f"step model: calibrated:{folder / CALIBRATION_FILE}")
    return OK
