"""Clock and power of the device while something runs, as nvidia-smi tells them. Reads only."""

from __future__ import annotations

import statistics
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

FIELDS: Final = ("clocks.sm", "power.draw", "temperature.gpu")
NAMES: Final = ("sm_clock_mhz", "power_w", "temperature_c")
EVERY_MS: Final = 250


@contextmanager
def watched(found: dict[str, Any]) -> Iterator[None]:
    """Fills `found` with least, median and most of each; leaves it empty where nvidia-smi is not there."""
    command = ["nvidia-smi", f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits", "-lms", str(EVERY_MS)]
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    except OSError:
        yield
        return
    try:
        yield
    finally:
        process.terminate()
        text, _ = process.communicate()
        found.update(summed_up(text))


def summed_up(text: str) -> dict[str, Any]:
    """Lines of comma-separated numbers, one a moment; a line that is cut or not of numbers counts as none."""
    rows = []
    for line in text.splitlines():
        try:
            values = [float(value) for value in line.split(",")]
        except ValueError:
            continue
        if len(values) == len(NAMES):
            rows.append(values)
    columns = zip(NAMES, zip(*rows, strict=True), strict=False)
    summary = {name: {"least": min(c), "median": statistics.median(c), "most": max(c)} for name, c in columns}
    return {**summary, "num_samples": len(rows)} if rows else {}
