"""What a trace is like: rate, burstiness, lengths and the prefix hits that an endless cache would give."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from workloads.columns import Trace
from workloads.stamps import NS_PER_S

Int64s = NDArray[np.int64]


def describe(trace: Trace) -> dict[str, float | int | None]:
    """Statistics of all rows, failed ones included; None where a statistic is not defined.

    rate_per_s = (n - 1) / span. iat_cv = standard deviation / mean of the gaps. fano_Xs = variance / mean of
    the counts in the whole X-second bins from the first arrival. tie_frac = rows with their predecessor's
    stamp / n. Gap CV sees bursts from one request to the next, Fano at 60 s a slow drift of the rate: read
    both. Percentiles interpolate linearly. best_prefix_hit_frac = ids that continue a prefix seen before /
    all ids; of runs, prompt tokens that continue a prefix seen before, answers included / all of these rows.
    """
    span_ns = int(trace.arrival_ns[-1] - trace.arrival_ns[0]) if len(trace) else 0
    gaps_ns = np.diff(trace.arrival_ns)
    result: dict[str, float | int | None] = {
        "num_requests": len(trace),
        "num_failed": int((trace.status == 1).sum()),
        "span_s": span_ns / NS_PER_S,
        "rate_per_s": (len(trace) - 1) * NS_PER_S / span_ns if span_ns else None,
        "iat_cv": float(gaps_ns.std() / gaps_ns.mean()) if span_ns else None,
    }
    result |= {f"fano_{width_s}s": _fano(trace.arrival_ns, width_s) for width_s in (1, 10, 60)}
    result["tie_frac"] = float((gaps_ns == 0).sum() / len(trace)) if len(trace) else None
    result |= _lengths("prompt", trace.num_prompt_tokens) | _lengths("output", trace.num_output_tokens)
    return result | _sharing(trace)


def _fano(arrival_ns: Int64s, width_s: int) -> float | None:
    """Variance over mean of counts; a cut last bin is left out. None with fewer than two whole bins."""
    if not len(arrival_ns):
        return None
    bins = (arrival_ns - arrival_ns[0]) // (width_s * NS_PER_S)
    num_bins = int(bins[-1])
    if num_bins < 2:
        return None
    # By unique bin, not by bincount: a week at 1 s would be fine, a year of sparse rows would not.
    _, counts = np.unique(bins[bins < num_bins], return_counts=True)
    mean = counts.sum() / num_bins
    return float((np.square(counts).sum() / num_bins - mean**2) / mean)


def _lengths(name: str, tokens: Int64s) -> dict[str, float | int | None]:
    names = [f"{name}_{statistic}" for statistic in ("mean", "p50", "p90", "p99", "max")]
    if not len(tokens):
        return dict.fromkeys(names)
    p50, p90, p99 = np.percentile(tokens, [50, 90, 99]).tolist()
    return dict(zip(names, (float(tokens.mean()), p50, p90, p99, int(tokens.max())), strict=True))


def _sharing(trace: Trace) -> dict[str, float | int | None]:
    """Runs count tokens in place of ids."""
    if trace.block_scope == "runs":
        refs = int(trace.block_ids[1::2].sum())
        distinct, hits = refs - _run_hits(trace, answers=False), _run_hits(trace, answers=True)
    else:
        refs, distinct, hits = len(trace.block_ids), len(np.unique(trace.block_ids)), _prefix_hits(trace)
    return {
        "num_block_refs": refs,
        "num_distinct_blocks": distinct,
        "best_prefix_hit_frac": hits / refs if refs else None,
    }


def _run_hits(trace: Trace, *, answers: bool) -> int:
    """Prompt tokens whose whole prefix was in an earlier row's prompt, or in its answer too."""
    seen: dict[tuple[int, int], int] = {}
    """Tokens known of a text after a prefix: the prefixes are numbered."""
    prefixes: dict[tuple[int, int, int], int] = {}
    hits = 0
    for row, output in enumerate(trace.num_output_tokens.tolist()):
        runs = trace.block_ids_of(row).tolist()
        prefix, known = -1, True
        for place in range(0, len(runs), 2):
            text, tokens = runs[place : place + 2]
            before = seen.get((prefix, text), 0)
            hits += min(before, tokens) if known else 0
            known = known and before >= tokens
            last = answers and place + 2 == len(runs)
            seen[prefix, text] = max(before, tokens + output * last)
            prefix = prefixes.setdefault((prefix, text, tokens), len(prefixes))
    return hits


def _prefix_hits(trace: Trace) -> int:
    """Ids whose whole prefix was there in an earlier row: a walk down a trie, right for content ids too."""
    children: dict[tuple[int, int], int] = {}
    hits = 0
    for ids in np.split(trace.block_ids, trace.block_offsets[1:-1]):
        node, num_nodes = 0, len(children)
        for block in ids.tolist():
            node = children.setdefault((node, block), len(children) + 1)
            hits += node <= num_nodes  # nodes above num_nodes are of this very row
    return hits
