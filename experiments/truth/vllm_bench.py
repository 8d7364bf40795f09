"""What `vllm bench serve` measured of each request, beside the trace that it sent.

Times are the client's: they hold the way to the server and back, and its tokenizer. TTFT is the first chunk's, end to
end the last one's; TPOT = (end to end - TTFT) / (output tokens - 1), as vLLM prints it and `sim.metrics` has it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sim.metrics import PS
from sim.rows import RequestRow
from workloads import Trace, TraceError, load_trace
from workloads.content import Content, open_content
from workloads.readers.reader import Record
from workloads.readers.vllm_bench import list_of, result_of

FORMAT: Final = "vllm-bench"


@dataclass(frozen=True, slots=True)
class Measured:
    """An engine's run, request by request in order of arrival."""

    trace: Trace
    rows: list[RequestRow]
    """Status `finished`, or `failed` where the engine gave nothing; only arrival, first token and finish are times."""
    model: str
    notes: list[str]


def read_vllm_bench(path: Path) -> Measured:
    """A detailed result. TraceError, a ValueError, with the place and what to do."""
    loaded = load_trace(path, FORMAT)
    content = open_content(path)
    result = result_of(content)
    first = list_of(content, result, "ttfts")
    if len(first) != len(loaded.trace):
        raise TraceError(f"{path}: {len(first)} ttfts of {len(loaded.trace)} requests: the lists are not of one run")
    last = _ends(content, result, first)
    rows = [_row(loaded.trace, index, first, last, str(path)) for index in range(len(loaded.trace))]
    return Measured(loaded.trace, rows, str(result.get("model_id", "")), loaded.notes)


def _ends(content: Content, result: Record, first: Sequence[Any]) -> Sequence[Any]:
    """Seconds from sending to the last token: as saved, or (before vLLM saved them) TTFT and the gaps behind it."""
    if isinstance(saved := result.get("latencies"), list) and len(saved) == len(first):
        return saved
    gaps = list_of(content, result, "itls")
    if len(gaps) != len(first) or not all(isinstance(each, list) for each in gaps):
        raise TraceError(f"{content.path}: {len(gaps)} itls of {len(first)} ttfts: need a list a request")
    ends = []
    for index, (start, behind) in enumerate(zip(first, gaps, strict=True)):
        assert isinstance(behind, list)
        ends.append(_sum([start, *behind], content.path, index))
    return ends


def _sum(values: Sequence[Any], path: str, index: int) -> float:
    try:
        return math.fsum(map(float, values))
    except (TypeError, ValueError):
        raise TraceError(f"{path}: itls of request {index} are not all numbers of seconds") from None


def _row(trace: Trace, index: int, first: Sequence[Any], last: Sequence[Any], path: str) -> RequestRow:
    place = int(trace.source_row[index]) - 1
    arrival, prompt = int(trace.arrival_ns[index]) * 1_000, int(trace.num_prompt_tokens[index])
    output = int(trace.num_output_tokens[index])
    if not output:
        return RequestRow(index, "failed", arrival, -1, -1, -1, prompt, 0, 0, 0, 0, 0, 0, 0, 0)
    try:
        ttft, e2e = float(first[place]), float(last[place])
    except (TypeError, ValueError):
        raise TraceError(f"{path}: ttft or latency of request {place} is no number of seconds") from None
    if not 0 < ttft <= e2e:
        raise TraceError(
            f"{path}: request {place}: first token after {ttft} s and last after {e2e} s of {output} tokens: need "
            "0 < ttft <= latency (was the answer streamed?)"
        )
    begun, done = arrival + round(ttft * PS), arrival + round(e2e * PS)
    return RequestRow(index, "finished", arrival, arrival, begun, done, prompt, output, output, 0, 0, 0, 0, 0, 0)
