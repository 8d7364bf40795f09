"""Steps out of vLLM's log, as `--enable-logging-iteration-details` writes them (vLLM 0.33).

A line has the requests and tokens of an iteration, its time on the host's clock, and how full the KV cache is after it.
The context is not logged. It follows from the cache's use and size to a tenth of a per cent and half a block a
sequence; prefixes that several share count once, and who finished in the step is not in it any more.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sim.step_rows import LoggedStep, check_step_row

LINE: Final = re.compile(
    r"Iteration\((?P<index>\d+)\): (?P<prefills>\d+) context requests, (?P<chunk>\d+) context tokens, "
    r"(?P<decodes>\d+) generation requests, (?P<generated>\d+) generation tokens, "
    r"iteration elapsed time: (?P<ms>\d+(?:\.\d+)?) ms(?P<dummy> \(dummy\))?, "
    r"\S+ KV cache usage: (?P<used>\d+(?:\.\d+)?)%"
)
SIZE: Final = re.compile(r"KV cache size: ([\d,]+) tokens")
BACKEND: Final = re.compile(r"Using (?:AttentionBackendEnum\.)?(\w+) (?:attention )?backend")
HOW: Final = "start vLLM with --enable-logging-iteration-details and keep its log"


@dataclass(frozen=True, slots=True)
class StepLog:
    """The steps of a log."""

    rows: list[LoggedStep]
    kv_tokens: int
    """Size of the cache."""
    left_out: Counter[str]
    """Iterations that are no row, by reason."""


def read_vllm_log(
    path: Path, *, block_size: int = 16, kv_tokens: int | None = None, kernel: str | None = None
) -> StepLog:
    """All iterations of a log in their order. `kv_tokens` and `kernel` where the log does not say them. ValueError
    with the place and what to do."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror}") from error
    found: list[LoggedStep] = []
    left_out: Counter[str] = Counter()
    for number, line in enumerate(lines, 1):
        if kv_tokens is None and (size := SIZE.search(line)):
            kv_tokens = int(size[1].replace(",", ""))
        if kernel is None and (backend := BACKEND.search(line)):
            kernel = backend[1]
        if step := LINE.search(line):
            where = f"{path}:{number}"
            if kv_tokens is None:
                raise ValueError(f"{where}: the log does not say how large the KV cache is: say --kv-tokens N")
            if reason := _unfit(step):
                left_out[reason] += 1
            else:
                found.append(_row(step, block_size, kv_tokens, kernel or "", where))
        elif "Iteration(" in line and "context requests" in line:
            raise ValueError(f"{path}:{number}: an iteration in other words than vLLM 0.33's: {line.strip()[-160:]!r}")
    if not found:
        why = ", ".join(f"{count} {reason}" for reason, count in left_out.items()) or "no line of an iteration"
        raise ValueError(f"{path}: no step in it ({why}); {HOW}")
    assert kv_tokens is not None
    return StepLog(found, kv_tokens, left_out)


def _unfit(step: re.Match[str]) -> str:
    """Why a line is no row; empty if it is one."""
    if step["dummy"]:
        return "dummy iterations"
    if step["decodes"] != step["generated"]:  # recomputed after a preemption, or speculated: their lengths are unknown
        return "iterations with more generation tokens than requests"
    if float(step["ms"]) == 0:
        return "iterations too short for the log's clock"
    return ""


def _row(step: re.Match[str], block_size: int, kv_tokens: int, kernel: str, where: str) -> LoggedStep:
    decodes, prefills, chunk = int(step["decodes"]), int(step["prefills"]), int(step["chunk"])
    held = float(step["used"]) / 100 * kv_tokens
    context = round(held - (decodes + prefills) * (block_size - 1) / 2) - decodes - chunk
    row = LoggedStep(decodes, prefills, chunk, max(context, 0), 0, block_size, kernel, float(step["ms"]) / 1e3)
    check_step_row(row, where)
    return row
