"""Parallel samples as requests of their own: every row so many times, equal prompts and different answers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from workloads.reshape import select

if TYPE_CHECKING:
    from workloads.columns import Trace


def as_requests(trace: Trace, num_samples: int) -> Trace:
    """Each row `num_samples` times in a row, at the same time.

    Prompts without content get texts of their own, which a row's samples have in common up to the last token: that one
    is every sample's own text, and so is the answer behind it. A cache leaves at least the last token of a prompt to
    compute, so nothing is lost. ValueError for fewer than one sample, for conversations (whose next turn would follow
    one sample) and for content by runs of texts (whose answers another row may repeat).
    """
    if num_samples < 1:
        raise ValueError(f"samples: need at least 1, got {num_samples}")
    if (trace.parent >= 0).any():
        raise ValueError("samples as requests: turns of a conversation follow one answer; fork instead")
    if trace.block_scope == "runs":
        raise ValueError("samples as requests: texts of this trace go on through answers; fork instead")
    rows = np.repeat(np.arange(len(trace)), num_samples)
    repeated = replace(select(trace, rows), source={**trace.source, "samples": str(num_samples)})
    return repeated if trace.block_size else replace(repeated, **_texts(repeated, rows))


def _texts(trace: Trace, rows: Any) -> dict[str, Any]:
    """Columns of content: all but the last token of the row's text, then the sample's own."""
    own = len(trace) + np.arange(len(trace))
    shared = trace.num_prompt_tokens - 1
    table = np.stack((rows, shared, own, np.ones_like(own)), axis=1)
    kept = np.repeat(np.stack((shared > 0, np.ones(len(own), np.bool_)), axis=1), 2, axis=1)
    return {
        "block_ids": table[kept],
        "block_offsets": np.concatenate(([0], np.cumsum(kept.sum(axis=1)))),
        "block_size": 1,
        "block_scope": "runs",
        "block_partial": "floor",
    }
