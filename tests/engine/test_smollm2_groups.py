"""A real language model: prefix cache, forks, beams and swap under evictions and preemptions give transformers' tokens.

A differing token is right only where the two best of transformers' logits are within 1e-3 of each other there.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="the engine computes on torch tensors")
pytest.importorskip("transformers", reason="what the model should say is transformers' answer")

from engine.llm import LLM  # noqa: E402
from engine.sampling_params import SamplingParams  # noqa: E402
from tests.engine import smollm2_matrix as matrix  # noqa: E402
from tests.engine.model import smollm2  # noqa: E402

pytestmark = [smollm2.needed, pytest.mark.xdist_group("smollm2")]
LENGTH, WIDTH = 8, 2
PROMPTS = matrix.PROMPTS[:3]
GREEDY = SamplingParams(max_tokens=LENGTH, temperature=0, ignore_eos=True)
LIVELY = SamplingParams(max_tokens=LENGTH, temperature=0.9, seed=11, ignore_eos=True)
MEMORY = {
    "paged, swap": {"num_blocks": 11, "block_size": 4, "preemption": "swap"},
    "paged, little host memory": {"num_blocks": 9, "block_size": 8, "preemption": "auto", "host_blocks": 4},
    "paged, recompute": {"num_blocks": 36, "block_size": 1},
    "copies": {"num_blocks": 16, "block_size": 16, "allocator": "orca-max"},
}


@pytest.fixture(scope="module")
def engine():
    return matrix.engines()["kv-first"]


@pytest.fixture(scope="module")
def roomy(engine):
    """Samples of an LLM that shares nothing and is short of nothing, and transformers' beams and margins."""
    llm = LLM(engine, block_size=16, num_blocks=64, enable_prefix_caching=False)
    samples = [llm.generate([one], LIVELY, n=WIDTH, samples="requests")[0].outputs for one in PROMPTS]
    return [[one.token_ids for one in outputs] for outputs in samples], [beams_of(engine, one) for one in PROMPTS]


@torch.inference_mode()
def beams_of(engine, prompt):
    """transformers' beams, best first, and their scores."""
    model = smollm2.as_hugging_face(engine.model)
    ids = torch.tensor([engine.model.tokenizer.encode(prompt)])
    made = model.generate(
        ids, do_sample=False, max_new_tokens=LENGTH, num_beams=WIDTH, num_return_sequences=WIDTH,
        return_dict_in_generate=True, output_scores=True,
    )  # fmt: skip
    return made.sequences[:, ids.shape[1] :].tolist(), made.sequences_scores.tolist()


CASES = [next(iter(MEMORY)), *(pytest.param(name, marks=pytest.mark.slow) for name in list(MEMORY)[1:])]


@pytest.mark.parametrize("name", CASES)
def test_groups_say_the_same_whatever_memory_is_like(engine, roomy, name):
    samples, beams = roomy
    llm = LLM(engine, max_num_seqs=4, **MEMORY[name])
    answers = llm.generate(PROMPTS, LIVELY, n=WIDTH)
    assert [[one.token_ids for one in answer.outputs] for answer in answers] == samples
    preempted = llm.memory_use.num_preemptions
    answers = llm.generate(PROMPTS, GREEDY, beam_width=WIDTH)  # with what the cache has kept of the samples
    for answer, (tokens, scores) in zip(answers, beams, strict=True):
        assert [one.score for one in answer.outputs] == pytest.approx(scores, abs=1e-3)
        assert [one.token_ids for one in answer.outputs] == tokens
    paged = "paged" in name
    assert (preempted + llm.memory_use.num_preemptions > 0) == paged
    assert (llm.memory_use.hit_tokens > 0) == paged
