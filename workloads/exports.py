"""Traces in the formats of other tools: written, read back, and compared, so that nothing is lost unsaid.

What a format cannot hold is found by reading the written file with this package's own reader and comparing every
column, not by a list of what the format is thought to hold.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from workloads import writers
from workloads.blocks import in_blocks
from workloads.columns import ROW_COLUMNS, Trace
from workloads.content import Content
from workloads.load import read_content
from workloads.readers.reader import Options
from workloads.rows import TraceError
from workloads.save import write_whole
from workloads.tokens import WORDS

Int64s = NDArray[np.int64]


class Target(NamedTuple):
    """A format to write: its text, and what whoever plays it should know."""

    write: Callable[[Trace], str]
    advice: str
    tokenizer: str | None = None
    """By which its texts are counted again."""
    has_ids: bool = False
    """Whether rows have block ids; how many tokens each stands for is never in the file."""
    block_size: int = 0
    """Tokens of an id where the trace has runs of texts: the format's usual."""
    beside: tuple[str, Callable[[Trace], str]] | None = None
    """Suffix and text of a second file that the tool wants."""


TARGETS: Final[dict[str, Target]] = {
    "azure": Target(writers.azure, "stamps count from 2030-01-01 UTC; every tool that reads Azure's traces takes it"),
    "burstgpt": Target(
        writers.burstgpt,
        "rows are named GPT-4, the only ones that vllm bench serve takes; it reads lengths alone, and by position: "
        "a file with sessions has two more columns than it expects",
    ),
    "mooncake": Target(
        writers.mooncake,
        "AIPerf: --custom-dataset-type mooncake_trace; vLLM: --dataset-name timed_trace "
        "--timed-trace-sec-multiplier 0.001",
        has_ids=True,
        block_size=512,
    ),
    "vidur": Target(writers.vidur, "Vidur clips lengths of 0 to 1: rows without output would run"),
    "timed-trace": Target(
        writers.timed_trace,
        "vLLM: --dataset-name timed_trace --self-timed; a row without hash_ids gets an empty prompt there",
        has_ids=True,
        block_size=16,
    ),
    "vllm-custom": Target(
        writers.vllm_custom,
        "vLLM: --dataset-name custom --skip-chat-template --disable-shuffle; prompts are repeated words, which a "
        "tokenizer may count otherwise",
        tokenizer=WORDS,
    ),
    "blis": Target(
        writers.blis, "BLIS: blis replay, with the header beside the file", beside=(".yaml", writers.blis_header)
    ),
}
FORMATS_TO_WRITE: Final = tuple(TARGETS)


def export_trace(trace: Trace, path: str | Path, to: str, *, lossy: bool = False) -> list[str]:
    """Write a file for another tool, whole or not at all; returns what was lost and what to know when playing it.

    Raises ValueError for an unknown format, and, unless `lossy`, for a trace that it cannot hold: with every column
    that would come back changed. Times are compared from the first arrival, sessions as who is with whom.
    """
    if to not in TARGETS:
        raise ValueError(f"to: need one of {', '.join(TARGETS)}, got {to!r}")
    target, file = TARGETS[to], Path(path)
    whole, trace = trace, in_blocks(trace, target.block_size) if target.block_size else trace
    text = target.write(trace)
    lost = losses(trace, text, to)
    if whole is not trace:
        lost.append(f"what {target.block_size}-token blocks do not tell of shared texts: parts of blocks, and answers")
    if lost and not lossy:
        raise ValueError(
            f"{path}: {to} would lose {'; '.join(lost)}; convert to pagelab's own format, or say --lossy to write it so"
        )
    if target.beside is not None:
        suffix, beside = target.beside
        write_whole(file.with_suffix(suffix), beside(trace).encode())
    write_whole(file, text.encode())
    return [*(f"lost: {what}" for what in lost), target.advice, *_block_size_said(trace, target)]


def _block_size_said(trace: Trace, target: Target) -> list[str]:
    if not target.has_ids or not trace.block_size:
        return []
    size = trace.block_size
    flags = f"--timed-trace-chunk-hash-size {size} for vLLM, --isl-block-size {size} for AIPerf"
    return [f"ids stand for {size} tokens, which the file does not say: --trace-block-size {size} here, {flags}"]


def losses(trace: Trace, text: str, to: str) -> list[str]:
    """What is different when the text is read again, in words; empty if nothing is."""
    target = TARGETS[to]
    options = Options(trace.block_size or None if target.has_ids else None, tokenizer=target.tokenizer)
    try:
        back = read_content(Content.of_text(f"the {to} file", text), to, options).trace
    except TraceError as error:
        return [f"the trace itself: it cannot be read back ({error})"]
    if len(back) != len(trace):
        return [f"{len(trace) - len(back)} of {len(trace)} rows"]
    before, after = _comparable(trace), _comparable(back)
    found = [_difference(name, getattr(before, name), getattr(after, name)) for name in ROW_COLUMNS]
    return [text for text in (*found, _block_difference(before, after)) if text]


def _comparable(trace: Trace) -> Trace:
    """Times from the first arrival, sessions numbered in the order of their first rows."""
    if not len(trace):
        return trace
    names, first, which = np.unique(trace.session, return_index=True, return_inverse=True)
    rank = np.empty(len(names), np.int64)
    rank[np.argsort(first)] = np.arange(len(names))
    session = rank[which]
    none = trace.session < 0
    if none.any():  # -1 keeps its place, the others close up
        at = int(rank[np.searchsorted(names, -1)])
        session = np.where(none, -1, session - (session > at))
    return replace(trace, arrival_ns=trace.arrival_ns - trace.arrival_ns[0], session=session)


def _difference(name: str, before: Int64s, after: Int64s) -> str:
    rows = np.flatnonzero(before != after)
    if not len(rows):
        return ""
    row = int(rows[0])
    return f"{name} of {len(rows)} rows (row {row + 1}: {int(after[row])} instead of {int(before[row])})"


def _block_difference(before: Trace, after: Trace) -> str:
    meaning = [(one.block_size, one.block_scope, one.block_partial) for one in (before, after)]
    same_ids = np.array_equal(before.block_offsets, after.block_offsets) and np.array_equal(
        before.block_ids, after.block_ids
    )
    if same_ids and (meaning[0] == meaning[1] or not len(before.block_ids)):
        return ""
    if not len(after.block_ids):
        return f"block_ids ({len(before.block_ids)} ids of {before.block_size} tokens)"
    said = [f"{size}-token {scope} {partial}" for size, scope, partial in meaning]
    return f"block_ids (they would mean {said[1]} blocks instead of {said[0]})"
