"""Real traces, where PAGELAB_DATA names a folder with them: published row counts, means, burstiness."""

import os
from pathlib import Path

import numpy as np
import pytest

from workloads import Loaded, Trace, describe, load_trace
from workloads.standins import STANDINS


def load(name: str) -> Loaded:
    root = os.environ.get("PAGELAB_DATA")
    if not root:
        pytest.skip("PAGELAB_DATA is not set: no real traces")
    path = Path(root) / name
    if not path.exists():
        pytest.skip(f"PAGELAB_DATA has no {name}")
    return load_trace(path)


def fitting(trace: Trace, max_total: int) -> tuple[np.ndarray, np.ndarray]:
    fits = trace.num_prompt_tokens + trace.num_output_tokens <= max_total
    return trace.num_prompt_tokens[fits], trace.num_output_tokens[fits]


def kolmogorov_smirnov(one: np.ndarray, two: np.ndarray) -> float:
    """Largest distance of the two distribution functions, in O(n) because tokens are small integers."""
    longest = max(one.max(), two.max()) + 1
    cdf = [np.cumsum(np.bincount(tokens, minlength=longest)) / len(tokens) for tokens in (one, two)]
    return float(np.abs(cdf[0] - cdf[1]).max())


def test_azure_conversation_2023():
    loaded = load("azure2023/AzureLLMInferenceTrace_conv.csv.gz")
    facts = describe(loaded.trace)

    assert (loaded.num_read, loaded.dropped, loaded.notes) == (19_366, {}, [])
    assert facts["span_s"] == pytest.approx(3501.722, abs=5e-4)
    assert facts["rate_per_s"] == pytest.approx(5.530, abs=5e-4)
    assert facts["iat_cv"] == pytest.approx(1.09, abs=0.005)
    assert [facts[f"fano_{s}s"] for s in (1, 10, 60)] == pytest.approx([1.39, 3.86, 16.1], rel=0.005)
    assert (facts["prompt_p50"], facts["prompt_p99"], facts["prompt_max"]) == (1020, 4142, 14_050)
    assert (facts["output_p50"], facts["output_p99"], facts["output_max"]) == (129, 601, 1000)
    assert (facts["prompt_mean"], facts["output_mean"]) == pytest.approx((1154.70, 211.13), abs=0.005)
    total = loaded.trace.num_prompt_tokens + loaded.trace.num_output_tokens
    assert (int((total > 2048).sum()), int((total > 4096).sum())) == (2838, 1612)
    assert (loaded.trace.arrival_ns % 1000 == 0).all()  # microseconds, not one lost to a float
    assert facts["tie_frac"] == 0


def test_mooncake_conversation():
    loaded = load("mooncake/conversation_trace.jsonl.gz")
    facts, trace = describe(loaded.trace), loaded.trace

    assert (loaded.num_read, loaded.dropped) == (12_031, {})
    assert facts["rate_per_s"] == pytest.approx(3.401, abs=5e-4)
    assert [facts[f"fano_{s}s"] for s in (1, 10, 60)] == pytest.approx([7.9, 2.1, 2.9], rel=0.01)
    assert (facts["num_block_refs"], facts["num_distinct_blocks"]) == (288_500, 182_790)
    assert facts["best_prefix_hit_frac"] == pytest.approx(0.366, abs=5e-4)
    assert (trace.block_size, trace.block_scope, trace.block_partial) == (512, "chained", "ceil")
    assert (trace.block_ids[trace.block_offsets[:-1]] == 0).all()
    assert any("10851 of 12031 rows share their stamp" in note for note in loaded.notes)


def test_sharegpt_lengths_of_the_paper_and_how_near_the_stand_in_is():
    trace = load("sosp23_sharegpt/sharegpt_opt_lengths.csv.gz").trace
    prompt, output = fitting(trace, 2048)

    assert (len(trace), len(prompt)) == (84_226, 79_731)
    assert (prompt.mean(), output.mean()) == pytest.approx((161.31, 337.99), abs=0.005)
    head = [column[:3600].mean() for column in fitting(trace, 2047)]
    assert head == pytest.approx([151.62, 333.30], abs=0.005)
    drawn = STANDINS["sharegpt"](1_000_000, 1)
    assert max(kolmogorov_smirnov(drawn[0], prompt), kolmogorov_smirnov(drawn[1], output)) <= 0.03


def test_alpaca_lengths_of_the_paper_and_how_near_the_stand_in_is():
    trace = load("alpaca_lengths/alpaca_opt_lengths.csv.gz").trace

    assert len(trace) == 52_002
    assert trace.num_prompt_tokens.mean() == pytest.approx(19.312, abs=5e-4)
    assert trace.num_output_tokens.mean() == pytest.approx(58.452, abs=5e-4)
    drawn = STANDINS["alpaca"](1_000_000, 1)
    distances = [
        kolmogorov_smirnov(drawn[0], trace.num_prompt_tokens),
        kolmogorov_smirnov(drawn[1], trace.num_output_tokens),
    ]
    assert max(distances) <= 0.03


@pytest.mark.parametrize(
    "name,num_rows,prompt_mean",
    [
        ("arxiv_long_online", 10_111, 29_567),
        ("arxiv_sample", 2895, 10_041),
        ("sync_vs_async_trace", 3965, 1800),
    ],
)
def test_length_lists_written_as_floats_or_cut_at_the_end_are_whole(name: str, num_rows: int, prompt_mean: int):
    trace = load(f"vattention/{name}.csv.gz").trace

    assert len(trace) == num_rows
    assert trace.num_prompt_tokens.mean() == pytest.approx(prompt_mean, abs=1)
