"""What a system sustains: the rate of requests at which loads below and above saturation are measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pandas as pd

    from workloads import Trace

FILLING_FRAC: Final = 0.25
"""Of the steps after which somebody waits, the first ones, which fill the pool, are left out."""
FEWEST_STEPS: Final = 20


def sustained_rate_per_s(steps: pd.DataFrame, trace: Trace) -> float:
    """Requests a second, from the engine's steps in a run in which all requests are there at the start.

    Tokens that sequences decode while somebody still waits, by the time that passes and by those of a mean request,
    whose first token its prompt brings.
    Without the end of the run, where fewer and fewer are left and the pool is empty for the most part: requests over
    the whole run's time would be a half of it. Where hardly anybody waits it is that, as then nothing else is known.
    """
    busy = steps.loc[steps["num_waiting"] > 0]
    busy = busy.iloc[int(len(busy) * FILLING_FRAC) :]
    if len(busy) < FEWEST_STEPS:
        last = steps.iloc[-1]
        return float(len(trace) / (last["time_s"] + last["duration_s"]))
    tokens_per_s = busy["num_decodes"].sum() / busy["duration_s"].sum()
    return float(tokens_per_s / max(trace.num_output_tokens.mean() - 1, 1))
