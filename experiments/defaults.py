"""What a workload implies when nothing else is said: rules, model, GPU, capacity, step time, end and window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from workloads.named import RECIPES

if TYPE_CHECKING:
    from experiments.settings import Workload

ALLOCATORS = ("paged", "orca-max", "orca-pow2", "orca-oracle")
BLOCK_SIZES = (16,)
SWEEP = (1, 8, 16, 32, 64, 128, 256)
"""Block sizes of `paged` in the default comparison; the reservations are indifferent to all but the rounding."""
MAP_FRAMES = 160
MAP_ROWS = 400_000
"""Most blocks x frames that a run pictures unasked: small blocks get fewer frames."""
WORKLOAD = "paper-fig2"


@dataclass(frozen=True, slots=True)
class WorkloadDefaults:
    """The experiment that a workload belongs to. Every entry can be overridden."""

    preset: str = "vllm"
    model: str = "llama-3.1-8b"
    gpu: str = "a100-80g"
    capacity_rule: str = "default"
    step_model: str = "roofline"
    max_model_len: int | None = None
    """None: the model's own."""
    end_s: float | None = None
    window_s: tuple[float, float] | None = None


def _paper(end_s: float | None, window_s: tuple[float, float] | None) -> WorkloadDefaults:
    return WorkloadDefaults("sosp23", "opt-13b", "a100-40g", "sosp23", "paper-13b", 2048, end_s, window_s)


OF_WORKLOAD: dict[str, WorkloadDefaults] = {
    "paper-fig2": _paper(900.0, (300.0, 900.0)),
    "paper-fig12a": _paper(None, None),
    "paper-fig12d": _paper(None, None),
    "paper-fig13a": _paper(3600.0, (600.0, 3600.0)),
    "paper-fig13b": _paper(900.0, (300.0, 900.0)),
    # The paper serves LLaMA-13B here: a token's K and V are of OPT-13B's size, and the rule counts OPT's weights.
    "paper-fig16-1shot": _paper(None, None),
    "paper-fig16-5shot": _paper(None, None),
    "paper-fig17": _paper(None, None),
}
OF_TRACE_FILES = WorkloadDefaults()
"""For trace files, and for named workloads without an entry above."""
REACHED_FRAC = 0.9
"""Of a workload's own window, which has to be over before fewer requests than the workload's have all arrived."""


def window_of(workload: Workload) -> tuple[float, float] | None:
    """The averaging window that a workload names, as long as its requests arrive in it: what comes behind the last of
    fewer ones is a queue that empties, and then nothing."""
    window = OF_WORKLOAD.get(workload.name or "", OF_TRACE_FILES).window_s
    return None if window is None or _outlasts(window[1], workload) else window


def _outlasts(stop_s: float, workload: Workload) -> bool:
    rate = workload.request_rate or RECIPES[workload.name or ""].rate_per_s
    return bool(workload.num_requests and rate and workload.num_requests / rate < REACHED_FRAC * stop_s)


def window_notes(workload: Workload, window: object) -> list[str]:
    """What is to be said of averages over the time of arrivals where the workload names another window."""
    named = OF_WORKLOAD.get(workload.name or "", OF_TRACE_FILES).window_s
    if named is None or window != "arrivals" or window_of(workload) is not None:
        return []
    span = "[{:g}, {:g}) s".format(*named)
    whose = f"{workload.num_requests:,} requests have all arrived before the window of {workload.name}, {span}, is over"
    return [f"{whose}: averages are over the time of arrivals"]
