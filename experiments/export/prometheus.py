"""A finished run in the text format of Prometheus, under the names that vLLM 0.33 exposes.

Gauges, which a server shows as they are, are means over the run's window here; counters and histograms are those of
the whole run. `_bucket` boundaries are vLLM's, so that its dashboards divide alike. What vLLM has no name for is under
`pagelab:`. Every sample has vLLM's labels `model_name` and `engine` (the run's place in the export), and the cell.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from sim.metrics import METRICS

if TYPE_CHECKING:
    import pandas as pd

    from experiments.export.runs import StoredRun

LATENCY: Final = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0,
                  960.0, 1920.0, 7680.0)  # fmt: skip
FIRST_TOKEN: Final = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
                      40.0, 80.0, 160.0, 640.0, 2560.0)  # fmt: skip
BETWEEN_TOKENS: Final = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
                         40.0, 80.0)  # fmt: skip
GAUGES: Final = {
    "vllm:num_requests_running": ("mean_batch_size", "Requests in execution batches, mean over the window."),
    "vllm:num_requests_waiting": ("mean_num_waiting", "Requests that wait to be processed, mean over the window."),
    "vllm:kv_cache_usage_perc": ("kv_blocks_used_frac", "KV-cache usage, 1 is all of it, mean over the window."),
}
COUNTERS: Final = {
    "vllm:num_preemptions": ("num_preemptions", "Preemptions."),
    "vllm:prefix_cache_queries": ("prefix_query_tokens", "Prefix cache queries, in tokens."),
    "vllm:prefix_cache_hits": ("prefix_hit_tokens", "Prefix cache hits, in tokens."),
}
REASONS: Final = {"finished": "stop", "truncated": "length"}
"""vLLM's reasons by our status."""


class Sample(NamedTuple):
    """One line: a name that may have a suffix, its labels, its value."""

    name: str
    labels: dict[str, str]
    value: float


class Family(NamedTuple):
    """A metric with all its lines."""

    name: str
    kind: str
    """gauge, counter or histogram."""
    text: str
    samples: list[Sample]


def text_of(runs: Sequence[StoredRun]) -> str:
    """The whole exposition; a family's lines stand together, as the format wants it."""
    families: dict[str, Family] = {}
    for index, run in enumerate(runs):
        for family in _families(run, _labels(run, index)):
            families.setdefault(family.name, family._replace(samples=[])).samples.extend(family.samples)
    return "".join(f"{line}\n" for family in families.values() for line in _lines(family))


def _labels(run: StoredRun, index: int) -> dict[str, str]:
    row = run.row
    cell = {"cell": run.folder.name, "allocator": str(row["allocator"]), "block_size": f"{row['block_size']:g}"}
    return {"model_name": run.model, "engine": str(index), **cell}


def _families(run: StoredRun, labels: dict[str, str]) -> Iterator[Family]:
    row = run.row
    for name, (column, text) in GAUGES.items():
        yield Family(name, "gauge", text, _known(name, labels, row.get(column)))
    for name, (column, text) in COUNTERS.items():
        yield Family(name, "counter", text, _known(f"{name}_total", labels, row.get(column)))
    requests = run.requests
    begun = requests[requests["first_token_s"].notna()]
    for name, text, tokens in (
        ("vllm:prompt_tokens", "Prompt tokens of requests that got a first token.", begun["num_prompt_tokens"].sum()),
        ("vllm:generation_tokens", "Tokens generated.", requests["num_output_tokens"][begun.index].sum()),
    ):
        yield Family(name, "counter", text, [Sample(f"{name}_total", labels, float(tokens))])
    success = [
        Sample(
            "vllm:request_success_total", {**labels, "finished_reason": reason}, float((requests.status == ours).sum())
        )
        for ours, reason in REASONS.items()
    ]
    yield Family("vllm:request_success", "counter", "Requests served to their end.", success)
    yield from _histograms(requests[requests["status"].isin(list(REASONS))], labels)
    for metric in METRICS:
        if metric.name.startswith("kv_"):
            name = f"pagelab:{metric.name}"
            text = f"{metric.label}: {metric.formula}; mean over the window."
            yield Family(name, "gauge", text, _known(name, labels, row.get(metric.name)))


def _known(name: str, labels: dict[str, str], value: Any) -> list[Sample]:
    """No line for what the run does not have."""
    return [] if value is None else [Sample(name, labels, float(value))]


def _histograms(done: pd.DataFrame, labels: dict[str, str]) -> Iterator[Family]:
    arrival, scheduled, first, finish = (
        done[f"{name}_s"] for name in ("arrival", "first_scheduled", "first_token", "finish")
    )
    later = done["num_output_tokens"] > 1
    between = (finish - first)[later] / (done["num_output_tokens"][later] - 1)
    longest = int(max(done["num_prompt_tokens"].max(), done["max_tokens"].max())) if len(done) else 1
    tokens = one_two_five(longest)
    for name, values, bounds, text in (
        ("time_to_first_token_seconds", first - arrival, FIRST_TOKEN, "Time to first token."),
        ("request_time_per_output_token_seconds", between, BETWEEN_TOKENS, "Time per output token after the first."),
        ("e2e_request_latency_seconds", finish - arrival, LATENCY, "End-to-end latency."),
        ("request_queue_time_seconds", scheduled - arrival, LATENCY, "Time spent waiting."),
        ("request_inference_time_seconds", finish - scheduled, LATENCY, "Time from first scheduled to last token."),
        ("request_prefill_time_seconds", first - scheduled, LATENCY, "Time from first scheduled to first token."),
        ("request_decode_time_seconds", finish - first, LATENCY, "Time from first to last token."),
        ("request_prompt_tokens", done["num_prompt_tokens"], tokens, "Prompt tokens of a request."),
        ("request_generation_tokens", done["num_output_tokens"], tokens, "Generated tokens of a request."),
        ("request_params_max_tokens", done["max_tokens"], tokens, "The request's limit of output tokens."),
    ):
        yield histogram(f"vllm:{name}", text, labels, values.to_numpy(float), bounds)


def one_two_five(longest: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, ... up to that."""
    steps = (float(mantissa * 10**power) for power in range(12) for mantissa in (1, 2, 5))
    return tuple(value for value in steps if value <= longest)


def histogram(name: str, text: str, labels: dict[str, str], values: Any, bounds: Sequence[float]) -> Family:
    """Cumulative counts up to each bound, and to infinity; sum and number."""
    counts = [int(np.count_nonzero(values <= bound)) for bound in bounds] + [len(values)]
    marks = [f"{bound:g}" if bound < 1e6 else f"{bound:.0f}" for bound in bounds] + ["+Inf"]
    samples = [
        Sample(f"{name}_bucket", {**labels, "le": mark}, float(count))
        for mark, count in zip(marks, counts, strict=True)
    ]
    total = Sample(f"{name}_sum", labels, float(np.sum(values)))
    return Family(name, "histogram", text, [*samples, Sample(f"{name}_count", labels, float(len(values))), total])


def _lines(family: Family) -> Iterator[str]:
    """HELP, TYPE and samples; a counter's lines have the suffix that its family has not."""
    shown = f"{family.name}_total" if family.kind == "counter" else family.name
    yield f"# HELP {shown} {_escaped(family.text)}"
    yield f"# TYPE {shown} {family.kind}"
    for name, labels, value in family.samples:
        pairs = ",".join(f'{key}="{_escaped(text, quotes=True)}"' for key, text in labels.items())
        yield f"{name}{{{pairs}}} {value!r}"


def _escaped(text: str, *, quotes: bool = False) -> str:
    plain = text.replace("\\", "\\\\").replace("\n", "\\n")
    return plain.replace('"', '\\"') if quotes else plain
