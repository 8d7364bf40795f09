"""The lengths of what arrived, kept beside the results: for the figure, and for readers without the trace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from experiments.arriving import Arriving
    from workloads import Trace

MOST_ROWS = 100_000
SAMPLE_SEED = 0


def rows_of(trace: Trace) -> Any:
    """Indices of the rows that are kept, in the trace's order: all, or a random sample with a fixed seed."""
    if len(trace) <= MOST_ROWS:
        return np.arange(len(trace))
    return np.sort(np.random.default_rng(SAMPLE_SEED).choice(len(trace), MOST_ROWS, replace=False))


def lengths_csv(arriving: Arriving) -> str:
    """Prompt and output tokens of the first seed's trace, failed and rejected requests included."""
    trace = first_of(arriving)
    rows = rows_of(trace)
    pairs = zip(trace.num_prompt_tokens[rows].tolist(), trace.num_output_tokens[rows].tolist(), strict=True)
    return "\n".join(["num_prompt_tokens,num_output_tokens", *(f"{p},{n}" for p, n in pairs), ""])


def entry_of(arriving: Arriving) -> dict[str, Any]:
    """For the manifest: which rows these are."""
    num_requests = len(first_of(arriving))
    num_rows = min(num_requests, MOST_ROWS)
    whole = num_rows == num_requests
    rows = "all" if whole else f"a random sample without replacement, NumPy default_rng seed {SAMPLE_SEED}"
    return {"seed": min(arriving.traces), "num_requests": num_requests, "num_rows": num_rows, "rows": rows}


def first_of(arriving: Arriving) -> Trace:
    """The trace of the smallest seed."""
    return arriving.traces[min(arriving.traces)]
