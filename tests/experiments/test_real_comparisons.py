"""Comparisons on real traces, where PAGELAB_DATA names a folder with them: every request is accounted for."""

import os
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ALLOCATORS = ("paged", "orca-max", "orca-pow2", "orca-oracle")


@pytest.fixture
def data():
    root = os.environ.get("PAGELAB_DATA")
    if not root:
        pytest.skip("PAGELAB_DATA is not set: no real traces")
    return Path(root).resolve()


@pytest.mark.parametrize("words,rejected", [((), 1612), (("--max-model-len", "16384"), 0)])
def test_azure_conversations_are_all_accounted_for(data, pagelab, strict_object, words, rejected):
    trace = data / "azure2023/AzureLLMInferenceTrace_conv.csv.gz"
    done = pagelab(
        "compare", "--trace", trace, "--model", "llama-2-13b", "--gpu", "a100-80g", *words, "--json", "-j", 2
    )
    assert done.code == 0, done.err
    runs = strict_object(done.out)["runs"]
    assert tuple(run["allocator"] for run in runs) == ALLOCATORS
    for run in runs:
        assert (run["num_requests"], run["num_rejected"]) == (19_366, rejected)
        assert run["num_finished"] + run["num_rejected"] == 19_366


def test_mooncake_conversations_are_all_accounted_for_and_hit_prefixes(data, pagelab, strict_object):
    trace = data / "mooncake/conversation_trace.jsonl.gz"
    done = pagelab("compare", "--trace", trace, "--model", "llama-3.1-8b", "--json", "-j", 2)
    assert done.code == 0, done.err
    runs = strict_object(done.out)["runs"]
    states = ("finished", "truncated", "rejected", "failed", "unfinished")
    for run in runs:
        assert sum(run[f"num_{state}"] for state in states) == run["num_requests"] == 12_031
    assert runs[0]["prefix_hit_frac"] > 0.01
