"""Beam search against transformers: the same completions in the same order, token for token, with the same scores.

PAGELAB_BEAMS=all compares every combination of width, length penalty, early stopping and ends.
"""

from __future__ import annotations

import itertools
import os
from functools import cache

import pytest

torch = pytest.importorskip("torch", reason="the engine computes on torch tensors")
pytest.importorskip("transformers", reason="what beam search should find is transformers' answer")

from engine.llm import LLM  # noqa: E402
from engine.sampling_params import SamplingParams  # noqa: E402
from tests.engine.attention.kernels.pairwise import pairwise  # noqa: E402
from tests.engine.model import tiny  # noqa: E402

MODELS = ("llama", "qwen3", "opt")
LENGTH = 12
PROMPTS = [tiny.text(5, 1), tiny.text(11, 2), tiny.text(17, 3)]
FACTORS = {
    "beam_width": (2, 4),
    "length_penalty": (1.0, 0.0, 2.0, -1.0),
    "early_stopping": (False, True, "never"),
    "ends": ((), (2,), tuple(range(8))),
    "memory": ("roomy", "swap", "blocks of one", "copies"),
}
MEMORY = {
    "roomy": {"num_blocks": 60},
    "swap": {"num_blocks": 24, "preemption": "swap"},
    "blocks of one": {"num_blocks": 90, "block_size": 1},
    "copies": {"num_blocks": 128, "allocator": "orca-max"},
}
ROWS = (
    [dict(zip(FACTORS, values, strict=True)) for values in itertools.product(*FACTORS.values())]
    if os.environ.get("PAGELAB_BEAMS") == "all"
    else pairwise(FACTORS)
)


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """By name: transformers' model, and LLMs over the same weights by what memory is like."""

    @cache
    def saved(name):
        model, folder = tiny.hugging_face(name), tmp_path_factory.mktemp(name)
        model.save_pretrained(folder)
        return model, str(folder)

    @cache
    def llm(name, memory):
        options = {"block_size": 4, "max_num_seqs": 16, "max_model_len": 40} | MEMORY[memory]
        return LLM(saved(name)[1], **options)

    return lambda name, memory: (saved(name)[0], llm(name, memory))


@torch.inference_mode()
def expected(model, prompt, beam_width, length_penalty, early_stopping, ends):
    """transformers' completions of a prompt, best first, with their scores."""
    made = model.generate(
        torch.tensor([prompt]), do_sample=False, max_new_tokens=LENGTH, num_beams=beam_width,
        num_return_sequences=beam_width, length_penalty=length_penalty, early_stopping=early_stopping,
        eos_token_id=list(ends) or None, pad_token_id=tiny.VOCAB - 1, return_dict_in_generate=True, output_scores=True,
    )  # fmt: skip
    rows = []
    for tokens in made.sequences[:, len(prompt) :].tolist():
        stops = [place for place, token in enumerate(tokens) if token in ends]
        rows.append(tokens[: stops[0] + 1] if stops else tokens)
    return rows, made.sequences_scores.tolist()


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: "-".join(map(str, row.values())))
def test_the_beams_are_transformers(models, name, row):
    model, llm = models(name, row["memory"])
    search = {key: row[key] for key in ("beam_width", "length_penalty", "early_stopping")}
    params = SamplingParams(max_tokens=LENGTH, temperature=0, ignore_eos=True, stop_token_ids=row["ends"])
    answers = llm.generate(PROMPTS, params, **search)  # together: searches share steps, and the pool
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        tokens, scores = expected(model, prompt, **search, ends=row["ends"])
        assert [one.token_ids for one in answer.outputs] == tokens
        assert [one.score for one in answer.outputs] == pytest.approx(scores, rel=1e-5, abs=1e-5)
        for one in answer.outputs:
            assert one.score == pytest.approx(one.cumulative_logprob / len(one.token_ids) ** row["length_penalty"])
            assert one.finish_reason == ("stop" if one.token_ids[-1] in row["ends"] else "length")


def test_some_completions_end_early_and_some_searches_do(models):
    _, llm = models("llama", "roomy")
    params = SamplingParams(max_tokens=LENGTH, temperature=0, ignore_eos=True, stop_token_ids=tuple(range(8)))
    lengths, steps = set(), []
    for early in (False, True, "never"):
        answers = llm.generate(PROMPTS[:1], params, beam_width=4, early_stopping=early)
        lengths |= {len(one.token_ids) for one in answers[0].outputs}
        steps.append(llm.memory_use.num_steps)
    assert len(lengths) > 2
    assert steps[1] < LENGTH


def test_cumulative_logprobs_are_those_of_the_model(models):
    model, llm = models("qwen3", "roomy")
    params = SamplingParams(max_tokens=6, temperature=0, ignore_eos=True)
    for one in llm.generate(PROMPTS[1], params, beam_width=3)[0].outputs:
        tokens = [*PROMPTS[1], *one.token_ids]
        logprobs = tiny.logits_of(model, tokens).log_softmax(-1)
        total = sum(float(logprobs[place - 1, tokens[place]]) for place in range(len(PROMPTS[1]), len(tokens)))
        assert one.cumulative_logprob == pytest.approx(total, rel=1e-5)


def test_one_beam_is_the_greedy_continuation(models):
    _, llm = models("opt", "roomy")
    params = SamplingParams(max_tokens=LENGTH, temperature=0, ignore_eos=True)
    greedy = [answer.outputs[0].token_ids for answer in llm.generate(PROMPTS, params)]
    assert [answer.outputs[0].token_ids for answer in llm.generate(PROMPTS, params, beam_width=1)] == greedy
