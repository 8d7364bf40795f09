"""Numbers of `bench engine`: a row a run, percentiles over the steps at full batch, and files to keep them in."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

from experiments.bench.timing import quantile

Row = dict[str, Any]
CONFIG_COLUMNS: Final = (
    *("model", "allocator", "kernel", "block_size", "prefix_caching", "num_requests", "input_len", "output_len"),
)
MEANINGS: Final = {
    "wall_s": "wall clock of the whole batch, warm-up left out",
    "clock_s": "sum of the steps' own durations: what a replay's clock would show",
    "output_tok_per_s": "output tokens / wall_s",
    "prefill_tok_per_s": "prompt tokens / time of the steps that compute any",
    "full_batch": "most requests that decode in a step without prompts; the percentiles are over these steps",
    "decode_p50_s": "duration of a step at full batch: between the ends of consecutive steps on the device",
    "decode_device_p50_s": "of that, from its first command on the device to its end",
    "host_gap_p50_s": "the rest: the device waits for the host",
    "host_work_p50_s": "host time of such a step, overlapped or not: scheduler, preparation, launch",
    "num_cuda_mallocs": "calls of cudaMalloc between the first step and the last",
    "num_hit_tokens": "prompt tokens found in the prefix cache",
    "best": "the run with the least wall_s; steps.csv has its steps",
}
BINS_S: Final = (0.0, 0.1e-3, 0.2e-3, 0.3e-3, 0.4e-3, 0.5e-3, 0.75e-3, 1e-3, 2e-3, 5e-3)
"""Edges of the histogram of host time; the last bin is open."""


class Step(NamedTuple):
    """One step of a run, in seconds."""

    duration_s: float
    device_s: float
    host_gap_s: float
    launch_s: float
    """Host, from the batch to its last launch."""
    decide_s: float
    """Host, in the scheduler: before and after the step."""
    num_decodes: int
    num_chunk_tokens: int
    graph: bool

    @property
    def host_work_s(self) -> float:
        """What the host does for the step, overlapped or not."""
        return self.launch_s + self.decide_s


class BatchRun(NamedTuple):
    """One closed batch, start to end."""

    wall_s: float
    steps: list[Step]
    num_output_tokens: int
    num_cuda_mallocs: int
    """Calls of cudaMalloc between the first step and the last."""
    num_hit_tokens: int


def full_decodes(steps: Sequence[Step]) -> list[Step]:
    """The steady steps: nothing but decodes, as many as ever."""
    pure = [step for step in steps if not step.num_chunk_tokens]
    most = max((step.num_decodes for step in pure), default=0)
    return [step for step in pure if step.num_decodes == most]


def row_of(config: Mapping[str, Any], run: BatchRun, index: int) -> Row:
    """A run in numbers."""
    full, prefill = full_decodes(run.steps), [step for step in run.steps if step.num_chunk_tokens]
    chunk_tokens, prefill_s = sum(step.num_chunk_tokens for step in prefill), sum(step.duration_s for step in prefill)
    return {
        **{name: config[name] for name in CONFIG_COLUMNS},
        "run": index,
        "best": False,
        "wall_s": run.wall_s,
        "clock_s": sum(step.duration_s for step in run.steps),
        "output_tok_per_s": run.num_output_tokens / run.wall_s,
        "prefill_tok_per_s": chunk_tokens / prefill_s if prefill_s else None,
        "full_batch": full[0].num_decodes if full else 0,
        **_percentiles("decode", [step.duration_s for step in full]),
        **_percentiles("decode_device", [step.device_s for step in full]),
        **_percentiles("host_gap", [step.host_gap_s for step in full]),
        **_percentiles("host_work", [step.host_work_s for step in full]),
        "num_steps": len(run.steps),
        "num_graph_steps": sum(step.graph for step in run.steps),
        "num_cuda_mallocs": run.num_cuda_mallocs,
        "num_hit_tokens": run.num_hit_tokens,
    }


def _percentiles(name: str, values: Sequence[float]) -> Row:
    ascending = sorted(values)
    shares = {"p20": 0.2, "p50": 0.5, "p80": 0.8}
    return {f"{name}_{key}_s": quantile(ascending, share) if ascending else None for key, share in shares.items()}


def histogram(values_s: Sequence[float]) -> list[tuple[str, int]]:
    """Steps by host time: (bin in milliseconds, count), empty bins at the ends left out."""
    edges = [*BINS_S, float("inf")]
    counts = [sum(low <= value < high for value in values_s) for low, high in pairwise(edges)]
    names = [f"{low * 1e3:g} to {high * 1e3:g} ms" for low, high in pairwise(edges)]
    names[-1] = f"{edges[-2] * 1e3:g} ms and more"
    used = [index for index, count in enumerate(counts) if count]
    return list(zip(names, counts, strict=True))[used[0] : used[-1] + 1] if used else []


def line_of(row: Row) -> str:
    """What is said while it runs."""
    decode = f"decode step {row['decode_p50_s'] * 1e3:.3f} ms at {row['full_batch']}" if row["decode_p50_s"] else ""
    return f"run {row['run']}: {row['wall_s']:.3f} s, {row['output_tok_per_s']:,.0f} output tok/s, {decode}"


def report(rows: Sequence[Row], steps: Sequence[Row], profile: Sequence[Row]) -> list[str]:
    """The best run, its histogram of host time, and where the time of a step goes."""
    best = next(row for row in rows if row["best"])
    walls = ", ".join(f"{row['wall_s']:.3f}" for row in rows)
    what = (
        f"{best['model']}, {best['num_requests']} requests of {best['input_len']} -> {best['output_len']} tokens, "
        f"{best['allocator']} block size {best['block_size']}, {best['kernel']} kernel, "
        f"prefix caching {'on' if best['prefix_caching'] else 'off'}; wall clock of the runs: {walls} s"
    )
    lines = [
        what,
        f"output {best['output_tok_per_s']:,.0f} tok/s, prompts {best['prefill_tok_per_s'] or 0:,.0f} tok/s",
    ]
    if best["decode_p50_s"]:
        lines += [
            f"{name} at {best['full_batch']} requests: p20 {best[f'{key}_p20_s'] * 1e3:.3f}, "
            f"p50 {best[f'{key}_p50_s'] * 1e3:.3f}, p80 {best[f'{key}_p80_s'] * 1e3:.3f} ms"
            for name, key in (
                ("decode step", "decode"),
                ("  on the device", "decode_device"),
                ("  device waits for the host", "host_gap"),
                ("  host work", "host_work"),
            )
        ]
    full = full_decodes([Step(**row) for row in steps])
    lines += [f"  host work {name:>14}: {count}" for name, count in histogram([step.host_work_s for step in full])]
    lines.append(f"cudaMalloc between the first step and the last: {best['num_cuda_mallocs']}")
    return lines + parts_table(profile)


def parts_table(profile: Sequence[Row]) -> list[str]:
    """Seconds of a step by part, the kernels of each below it."""
    lines: list[str] = []
    for kind in dict.fromkeys(row["step"] for row in profile):
        rows = [row for row in profile if row["step"] == kind]
        whole = sum(row["time_s"] for row in rows)
        lines.append(f"a {kind} step of {whole * 1e3:.3f} ms:")
        for part in dict.fromkeys(row["part"] for row in rows):
            members = [row for row in rows if row["part"] == part]
            part_s = sum(row["time_s"] for row in members)
            lines.append(f"  {part:<14} {part_s * 1e3:9.3f} ms {part_s / whole:6.1%}")
            lines += [
                f"    {row['time_s'] * 1e6:9.1f} us {row['num_calls']:6.1f} x {row['kernel'][:90]}"
                for row in members[:8]
            ]
    return lines


def from_csv(text: str) -> list[Row]:
    """What `to_csv` wrote: numbers by their looks, empty cells as None. ValueError for a ragged table."""
    reader = csv.DictReader(io.StringIO(text))
    rows = list(reader)
    if any(None in row or None in row.values() for row in rows):
        raise ValueError("a table with rows of different lengths")
    return [{name: _value(cell) for name, cell in row.items()} for row in rows]


def _value(cell: str) -> Any:
    if cell in ("True", "False"):
        return cell == "True"
    for kind in (int, float):
        try:
            return kind(cell)
        except ValueError:
            continue
    return cell or None
