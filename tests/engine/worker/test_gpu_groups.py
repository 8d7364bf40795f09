"""Forks, beams, copies and swaps on a CUDA device: with graphs as without, in tight pools as in roomy ones.

PAGELAB_GPU=1 python -m pytest tests/engine/worker/test_gpu_groups.py tests/engine/worker/test_host_memory.py
"""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch", reason="the engine computes on torch tensors")

from engine.llm import LLM  # noqa: E402
from engine.sampling_params import SamplingParams  # noqa: E402
from engine.worker.engine import Engine, EngineConfig  # noqa: E402
from tests.engine.worker.test_gpu_engine import SHAPE  # noqa: E402
from tests.engine.worker.tiny import ON_DEVICE  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not (ON_DEVICE and torch.cuda.is_available()), reason="no CUDA device, or not PAGELAB_GPU=1"),
]
LENGTH, WIDTH, SEQS = 40, 4, 16
LIVELY = SamplingParams(max_tokens=LENGTH, temperature=0.8, seed=5, ignore_eos=True)
GREEDY = SamplingParams(max_tokens=LENGTH, temperature=0, ignore_eos=True)
ROOMY = {"num_blocks": 2000}
TIGHT = {"num_blocks": 28, "preemption": "swap", "host_blocks": 60}
"""Of blocks of 16 tokens: less than half of what the groups would take."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    (path / "config.json").write_text(json.dumps(SHAPE))
    return str(path)


def prompts():
    """Six, of which three begin alike; ids that every model here has."""
    rng = torch.Generator().manual_seed(3)
    draw = lambda count: torch.randint(0, SHAPE["vocab_size"], (count,), generator=rng).tolist()  # noqa: E731
    shared = draw(64)
    return [[*shared, *draw(9)], draw(50), [*shared, *draw(30)], draw(7), draw(130), [*shared, *draw(1)]]


def served(folder, memory, *, graphs=True, dtype="bfloat16"):
    """(samples, beams with scores, what both did to memory)"""
    limits = {"max_num_seqs": SEQS, "max_num_batched_tokens": 128, "max_model_len": 256}
    engine = Engine(EngineConfig(folder, device="cuda", weights_seed=0, graphs=graphs, dtype=dtype, **limits))
    llm = LLM(engine, block_size=16, max_num_seqs=SEQS, max_num_batched_tokens=128, **memory)
    samples = [[one.token_ids for one in answer.outputs] for answer in llm.generate(prompts(), LIVELY, n=WIDTH)]
    uses = [llm.memory_use]
    searched = llm.generate(prompts(), GREEDY, beam_width=WIDTH)
    uses.append(llm.memory_use)
    beams = [[(one.token_ids, one.score) for one in answer.outputs] for answer in searched]
    assert llm.allocator.stats().num_free == llm.allocator.capacity_blocks
    return samples, beams, uses


@pytest.mark.parametrize("memory", [ROOMY, TIGHT], ids=["roomy", "tight"])
def test_graphs_and_single_commands_give_the_same_groups(folder, memory):
    """Same batches, hence the same tokens and scores to the bit."""
    by_graph, by_command = served(folder, memory), served(folder, memory, graphs=False)
    assert by_graph == by_command
    for use in by_graph[2]:
        assert use.copied_blocks > 0
        assert use.most_shared_blocks > 0
        assert (use.swapped_out_blocks > 0) == ("host_blocks" in memory)
        assert use.swapped_in_blocks >= use.swapped_out_blocks


MEMORY = [TIGHT, {"num_blocks": 28}, {"num_blocks": 512, "allocator": "orca-max"}]


@pytest.mark.parametrize("model", ["", "llama-3.2-1b"], ids=["four layers", "a billion parameters"])
def test_in_float32_memory_changes_no_token(folder, model):
    """Other batches round differently, so that a near tie may fall otherwise: in one of 48 sequences, no more."""
    first = served(model or folder, ROOMY, dtype="float32")
    expected = sequences(first)
    for memory in MEMORY:
        found = served(model or folder, memory, dtype="float32")
        assert sum(left != right for left, right in zip(expected, sequences(found), strict=True)) <= 1, memory
        preempted = sum(use.num_preemptions for use in found[2])
        assert (preempted > 0) == ("allocator" not in memory)


def sequences(answer):
    """Tokens of every sample and beam, in order."""
    samples, beams, _ = answer
    return [tokens for one in samples for tokens in one] + [tokens for one in beams for tokens, _ in one]


def test_steps_of_samples_ask_the_device_for_no_memory_after_the_first(folder):
    limits = {"max_num_seqs": SEQS, "max_num_batched_tokens": 128, "max_model_len": 256}
    engine = Engine(EngineConfig(folder, device="cuda", weights_seed=0, **limits))
    llm = LLM(engine, block_size=16, max_num_seqs=SEQS, max_num_batched_tokens=128, **TIGHT)
    counts = []
    for _ in range(3):
        llm.generate(prompts(), LIVELY, n=WIDTH)
        assert llm.memory_use.swapped_out_blocks > 0
        counts.append(torch.cuda.memory_stats()["segment.all.allocated"])
    assert counts[1] == counts[2]
