"""The provenance line that every figure carries: number of requests, seeds, trace hash, device, step model, command."""

from __future__ import annotations

import shlex
import textwrap
from typing import TYPE_CHECKING, Any, cast

import pandas as pd

from experiments.figures.stored import find_key

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas
    from matplotlib.figure import SubFigure

    from experiments.figures.stored import Stored

LINE_CHARS = 172
"""Characters of the footer that fit the page width."""
MAX_LINES = 3
LINE_IN = 0.1
MAX_SEEDS = 12
"""More are counted, not listed."""


def command_of(manifest: dict[str, Any]) -> str:
    """The command line as it can be pasted into a shell."""
    argv = manifest.get("argv")
    return shlex.join(map(str, argv)) if isinstance(argv, list) and argv else "unknown command"


def step_model_of(manifest: dict[str, Any]) -> str:
    """The model of step times as it was asked for, or its first coefficients."""
    asked = find_key(manifest.get("config"), "step_model")
    model = manifest.get("step_model")
    if isinstance(asked, str):
        return asked
    if not isinstance(model, dict):
        return str(model) if model else "unknown"
    return str(model["name"]) if "name" in model else ", ".join(f"{key}={model[key]}" for key in list(model)[:4])


def trace_of(manifest: dict[str, Any]) -> tuple[str, str]:
    """Name of the trace, and its hash: of the first one, where seeds or rates have their own."""
    trace = manifest.get("trace")
    trace = trace if isinstance(trace, dict) else {}
    return str(trace.get("name", "unknown trace")), str(trace.get("sha256") or "unknown")


def other_traces(manifest: dict[str, Any]) -> int:
    """How many traces the cells replayed beside that one."""
    cells = manifest.get("cells")
    own = [cell.get("trace_sha256") for cell in cells if isinstance(cell, dict)] if isinstance(cells, list) else []
    return len(set(filter(None, own)) - {trace_of(manifest)[1]})


def traces_of(manifest: dict[str, Any]) -> str:
    """Name and hash of the trace, and how many others there are."""
    name, digest = trace_of(manifest)
    others = other_traces(manifest)
    return f"trace {name} sha256 {digest[:12]}" + (f" and {counted(others, 'other')}" if others else "")


def seeds_of(stored: Stored) -> str:
    """The seeds, from the manifest or else the table."""
    seeds = stored.manifest.get("seeds")
    if not isinstance(seeds, list):
        seeds = sorted(set(stored.summary["seed"].dropna().astype(int)))
    if len(seeds) > MAX_SEEDS:
        return f"{len(seeds)} different ones, {min(seeds)} to {max(seeds)}"
    return ", ".join(map(str, seeds)) or "none"


def block_sizes(frame: pd.DataFrame) -> list[int]:
    """Those of the rows, ascending."""
    return sorted(set(frame["block_size"].dropna().astype(int))) if "block_size" in frame else []


def counted(count: int | str, thing: str) -> str:
    """`1 request`, `2 requests`."""
    written = f"{count:,}" if isinstance(count, int) else count
    return f"{written} {thing}" if written == "1" else f"{written} {thing}s"


def num_requests_of(stored: Stored) -> str:
    """Requests of one run: a number, or the range over seeds."""
    if "num_requests" in stored.base and len(stored.base):
        counts = pd.to_numeric(stored.base["num_requests"], errors="coerce").dropna().astype(int)
        if len(counts):
            low, high = int(counts.min()), int(counts.max())
            return f"{low:,}" if low == high else f"{low:,} to {high:,}"
    trace = stored.manifest.get("trace")
    return str(trace.get("num_requests", "unknown")) if isinstance(trace, dict) else "unknown"


def caption_of(stored: Stored, *, base: bool = True) -> str:
    """One line, for the page and the picture alike; `base`: it shows the rows of one block size only."""
    verb = str(stored.manifest.get("verb"))
    if verb == "bench kernel":
        return kernel_caption(stored.manifest)
    if verb.startswith("bench "):
        return f"device: {stored.manifest.get('device', 'unknown')} · {command_of(stored.manifest)}"
    sizes = block_sizes(stored.base if base else stored.summary)
    parts = [
        f"n = {counted(num_requests_of(stored), 'request')} a run",
        f"{'seeds' if ',' in seeds_of(stored) else 'seed'} {seeds_of(stored)}",
        traces_of(stored.manifest),
        *([f"{'block sizes' if len(sizes) > 1 else 'block size'} {', '.join(map(str, sizes))}"] if sizes else []),
        f"device: {stored.manifest.get('device', 'unknown')}",
        *([engine_of(stored.manifest)] if stored.is_measured else []),
        f"step {'times' if stored.is_measured else 'model'} {step_model_of(stored.manifest)}",
        command_of(stored.manifest),
    ]
    return " · ".join(parts)


ENGINE_WORDS = ("driver", "torch", "triton", "dtype", "attention")


def engine_of(manifest: dict[str, Any]) -> str:
    """Versions, types and weights of the engine that ran the steps."""
    engine = manifest["engine"]
    words = [f"{name} {engine[name]}" for name in ENGINE_WORDS if engine.get(name) is not None]
    weights = engine.get("weights") or {}
    seed = f" of seed {weights['seed']}" if weights.get("seed") is not None else ""
    return ", ".join([*words, f"{weights.get('kind', 'unknown')} weights{seed}"])


def kernel_caption(manifest: dict[str, Any]) -> str:
    """Of measurements of kernels: device, versions, method and command."""
    machine, config = manifest["machine"], manifest["config"]
    absent = ", ".join(missing["name"] for missing in manifest["peers_missing"])
    parts = [
        str(machine["device"]),
        f"torch {machine['torch']}, triton {machine['triton']}, driver {driver_of(machine)}",
        f"{config['dtype']}, block size {config['block_size']} unless shown, seed {config['seed']}",
        "median of CUDA-graph replays over rotated inputs, bars 20th to 80th percentile",
        *([f"not taking part: {absent}"] if absent else []),
        command_of(manifest),
    ]
    return " · ".join(parts)


def driver_of(machine: dict[str, Any]) -> str:
    """The driver's version and the power limit; clocks and temperature were those of an idle card."""
    fields = [field.strip() for field in str(machine["driver"]).split(",")]
    return f"{fields[0]}, limit {fields[-1].replace('.00', '')}" if len(fields) > 1 else fields[0]


def above_footer(canvas: Canvas, caption: str, max_lines: int = MAX_LINES) -> SubFigure:
    """Writes the caption at the foot, so that a picture cut out of the report keeps it; returns the room above."""
    width_in, height_in = canvas.get_size_inches()
    lines = footer_lines(caption, width_in, max_lines)
    foot_in = 0.06 + LINE_IN * len(lines)
    above, foot = cast("Any", canvas.subfigures(2, 1, height_ratios=[height_in - foot_in, foot_in]))
    text = {"fontsize": 5.5, "color": "#595959", "linespacing": 1.25}
    foot.text(0.04 / width_in, 0.03 / foot_in, "\n".join(lines), ha="left", va="bottom", **text)
    return cast("SubFigure", above)


def footer_lines(caption: str, width_in: float, max_lines: int = MAX_LINES) -> list[str]:
    """The lines of a footer of that width, cut with a mark where they are too many."""
    chars = round(LINE_CHARS * width_in / 6.9)
    return textwrap.wrap(caption, chars, max_lines=max_lines, placeholder=" …", break_on_hyphens=False)
