"""Generation: the same completions whatever is beside them, ends where it should, mistakes said before it runs."""

from __future__ import annotations

import json

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the engine computes on torch tensors")

from engine.asking import seed_of  # noqa: E402
from engine.core.allocator import NO_HIT, Reason, Refusal  # noqa: E402
from engine.core.option_checks import MOST_SEED  # noqa: E402
from engine.core.paged import PagedAllocator  # noqa: E402
from engine.core.progress import LivelockError  # noqa: E402
from engine.core.request import Request  # noqa: E402
from engine.core.step import step  # noqa: E402
from engine.llm import LLM  # noqa: E402
from engine.sampling_params import SamplingParams  # noqa: E402
from engine.worker import budget  # noqa: E402
from engine.worker.budget import EngineError  # noqa: E402
from engine.worker.engine import DeviceUnavailable, Engine, EngineConfig  # noqa: E402
from tests.engine.model import smollm2  # noqa: E402
from tests.engine.worker.tiny import CONFIG  # noqa: E402

PROMPTS = [[5, 7, 11, 13], [2, 3], [40, 41, 42, 43, 44, 45, 46, 47, 48]]
GREEDY = SamplingParams(max_tokens=9, temperature=0)
LIVELY = SamplingParams(max_tokens=9, temperature=1.2)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A folder with a configuration and no weights: they are drawn from a seed."""
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return str(folder)


def made(model, **options):
    options = {"block_size": 4, "num_blocks": 40, "weights_seed": 1, "max_num_seqs": 8} | options
    return LLM(model, **options)


@pytest.fixture(scope="module")
def llm(model):
    return made(model)


def ids(answers):
    return [[one.token_ids for one in answer.outputs] for answer in answers]


def test_prompts_together_give_what_each_gives_alone(llm):
    together = ids(llm.generate(PROMPTS, GREEDY))
    assert together == [ids(llm.generate([prompt], GREEDY))[0] for prompt in PROMPTS]
    assert all(len(tokens) == 9 for (tokens,) in together)


def test_one_prompt_needs_no_list(llm):
    assert ids(llm.generate(PROMPTS[0], GREEDY)) == ids(llm.generate(PROMPTS[:1], GREEDY))


@pytest.mark.parametrize(
    "options",
    [
        {"allocator": "orca-max"},
        {"allocator": "orca-oracle", "kernel": "contiguous"},
        {"num_blocks": 8},
        {"block_size": 1, "num_blocks": 160, "enable_prefix_caching": False},
        {"max_num_batched_tokens": 3, "max_num_seqs": 2},
    ],
    ids=str,
)
def test_sampled_tokens_do_not_depend_on_memory_or_batches(model, llm, options):
    params = SamplingParams(max_tokens=9, temperature=1.2, top_k=30, top_p=0.95, seed=4, n=2)
    assert ids(made(model, **options).generate(PROMPTS, params)) == ids(llm.generate(PROMPTS, params))


def test_prompts_may_be_arrays(llm):
    ids, params = [5, 6, 7], SamplingParams(max_tokens=3, temperature=0)
    expected = llm.generate([ids], params)[0].outputs[0].token_ids
    for prompts in ([np.array(ids)], np.array(ids), np.array([ids]), [tuple(ids)], [np.array(ids, np.int32)]):
        (answer,) = llm.generate(prompts, params)
        assert answer.prompt_token_ids == ids
        assert all(type(token) is int for token in answer.prompt_token_ids)
        assert answer.outputs[0].token_ids == expected


def test_a_seed_decides_whatever_is_beside(llm):
    params = SamplingParams(max_tokens=9, temperature=1.2, seed=77)
    alone = ids(llm.generate(PROMPTS[1], params))[0]
    beside = ids(llm.generate([PROMPTS[0], PROMPTS[1]], [LIVELY, params]))[1]
    assert alone == beside
    other = SamplingParams(max_tokens=9, temperature=1.2, seed=78)
    assert ids(llm.generate(PROMPTS[1], other))[0] != alone


def test_completions_of_one_prompt_differ_and_come_back_in_order(llm):
    params = SamplingParams(max_tokens=9, temperature=1.2, n=3)
    first = llm.generate(PROMPTS[0], params)[0].outputs
    assert [one.index for one in first] == [0, 1, 2]
    assert len({tuple(one.token_ids) for one in first}) == 3
    assert first == llm.generate(PROMPTS[0], params)[0].outputs


def test_a_stop_token_ends_a_completion_and_is_its_last(llm):
    tokens = ids(llm.generate(PROMPTS[0], GREEDY))[0][0]
    stop = tokens[3]
    (one,) = llm.generate(PROMPTS[0], SamplingParams(max_tokens=9, temperature=0, stop_token_ids=(stop,)))[0].outputs
    assert one.token_ids == tokens[: tokens.index(stop) + 1]
    assert one.finish_reason == "stop"


def test_the_models_length_ends_a_completion(model):
    llm = made(model, max_model_len=12)
    (one,) = llm.generate(PROMPTS[2], SamplingParams(max_tokens=50, temperature=0))[0].outputs
    assert len(one.token_ids) == 12 - len(PROMPTS[2])
    assert one.finish_reason == "length"


def test_everything_is_given_back(llm):
    llm.generate(PROMPTS, LIVELY)
    stats = llm.allocator.stats()
    assert stats.num_free == llm.allocator.capacity_blocks
    assert not llm.executor.rows.requests
    assert not llm.executor.outputs


def test_after_an_interruption_generation_starts_afresh(model, monkeypatch):
    llm = made(model)
    right = ids(llm.generate(PROMPTS, GREEDY))
    submit, calls = llm.executor.submit, []

    def interrupted(batch):
        calls.append(batch)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return submit(batch)

    monkeypatch.setattr(llm.executor, "submit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(PROMPTS, GREEDY)
    assert ids(llm.generate(PROMPTS, GREEDY)) == right


def test_on_a_device_that_is_nearly_full_an_interrupted_llm_starts_again(model, monkeypatch):
    engine = Engine(EngineConfig(model, weights_seed=1, max_num_seqs=8))
    block = engine.block_bytes(4)
    held: list[LLM] = []

    def free(device):
        total = 60 * block
        in_use = sum(sum(c.nbytes for c in one.executor.kv.caches) for one in held)
        return total - in_use, total

    monkeypatch.setattr(budget, "memory_of", free)
    llm = LLM(engine, block_size=4, num_blocks=40, max_num_seqs=8)
    held.append(llm)
    right = ids(llm.generate(PROMPTS, GREEDY))
    llm._interrupted = True
    assert ids(llm.generate(PROMPTS, GREEDY)) == right


def test_two_llms_of_one_engine_take_turns_with_its_memory(model):
    engine = Engine(EngineConfig(model, weights_seed=1, max_num_seqs=8))
    first, second = (LLM(engine, block_size=size, num_blocks=160 // size, max_num_seqs=8) for size in (4, 16))
    right = ids(made(model).generate(PROMPTS, GREEDY))
    for llm in (first, second, first):
        assert ids(llm.generate(PROMPTS, GREEDY)) == right
        assert not llm.executor.closed
    assert second.executor.closed


def test_a_closed_executor_says_so(model):
    llm = made(model)
    llm.engine.release()
    llm.scheduler.add(Request("a", 2, 2))
    with pytest.raises(RuntimeError, match="given back"):
        step(llm.scheduler, llm.executor)


class Stingy(PagedAllocator):
    """Refuses everybody."""

    def __init__(self, pool):
        super().__init__(pool.capacity_blocks, pool.block_size, max_model_len=pool.max_model_len)

    def admit(self, request, num_tokens, hit=NO_HIT, *, whole=0, others_running=False):
        return Refusal(Reason.NO_FREE_BLOCKS, 1, 0)


def test_an_allocator_that_refuses_for_ever_is_an_error_and_no_endless_loop(model):
    with pytest.raises(LivelockError, match=r"nothing runs and Request.* is refused for ever"):
        made(model, allocator=f"{__name__}:Stingy").generate(PROMPTS, GREEDY)


def test_many_calls_leave_nothing_behind(llm):
    sizes = []
    for _ in range(6):
        llm.generate(PROMPTS, GREEDY)
        sizes.append((len(llm.executor.steps), len(llm.executor.outputs), len(llm._asked)))
    assert len(set(sizes)) == 1


def test_seeds_of_engines_differ_wherever_their_bits_do():
    """Also beyond the fifteenth bit, and below zero."""
    seeds = [0, *(sign * (1 << bit) for bit in range(64) for sign in (1, -1))]
    found = [seed_of(seed, place) for seed in seeds for place in range(3)]
    assert len(set(found)) == len(found)
    assert all(0 <= seed <= MOST_SEED for seed in found)
    apart = np.diff(sorted(found))
    assert apart.min() > 1 << 32, "completions count up from them"


def test_the_seeds_of_a_call_all_differ(llm):
    params = SamplingParams(max_tokens=1, temperature=1.0, n=300)
    seeds = [llm._ask(place, copy, [1], params).seed for place in range(3) for copy in range(params.n)]
    assert len(set(seeds)) == 900


def test_without_a_pin_a_cpu_gets_what_can_be_used_and_no_more(model):
    llm = made(model, num_blocks=None)
    assert llm.allocator.capacity_blocks == 8 * 64 // 4


@pytest.mark.parametrize(
    "prompts, params, complaint",
    [
        ([[]], GREEDY, "prompt 0: expected at least one token"),
        ([[1], [2, 96]], GREEDY, "prompt 1: token 96 is outside the model's vocabulary of 96"),
        ([[1], [-1]], GREEDY, "prompt 1: token -1"),
        ([[1], [1.5]], GREEDY, "prompt 1: expected token ids, whole numbers, got 1.5"),
        ([[1], [2, True]], GREEDY, "prompt 1: expected token ids, whole numbers, got True"),
        ([[1] * 64], GREEDY, "prompt 0: 64 tokens leave no room in max_model_len=64"),
        ("text", GREEDY, "has no tokenizer: give token ids"),
        ([[1], [2]], [GREEDY], "SamplingParams for each of 2 prompts, got 1"),
        ([[1]], SamplingParams(stop=("x",)), "no tokenizer to find 'x' with"),
    ],
)
def test_a_bad_call_is_refused_before_anything_runs(llm, prompts, params, complaint):
    steps = len(llm.executor.steps)
    with pytest.raises(ValueError, match=complaint):
        llm.generate(prompts, params)
    assert len(llm.executor.steps) == steps
    assert not llm.scheduler.waiting


def test_what_the_pool_can_never_hold_is_refused(model):
    llm = made(model, num_blocks=3)
    with pytest.raises(ValueError, match=r"prompt 0: 9 tokens and up to 9 more need \d blocks of 4"):
        llm.generate(PROMPTS[2], GREEDY)


@pytest.mark.parametrize(
    "options, complaint",
    [
        ({"max_tokens": 0}, "max_tokens: expected a whole number of at least 1 "),
        ({"n": True}, "n: expected a whole number"),
        ({"ignore_eos": 1}, "ignore_eos: expected True or False, got 1"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"stop": "text"}, "expected a tuple of texts"),
        ({"stop": ("",)}, "not empty"),
        ({"top_k": 1 << 40}, "top_k: expected a whole number"),
        ({"temperature": "1"}, "temperature: expected a number"),
        ({"temperature": 10**400}, "temperature: expected a number of 0 to 1e\\+06"),
        ({"temperature": 1e39}, "temperature: expected a number"),
        ({"seed": 1.5}, "seed: expected a whole number"),
        ({"seed": 1 << 70}, "seed: expected a whole number"),
        ({"stop_token_ids": 5}, "stop_token_ids: expected a tuple"),
        ({"stop_token_ids": ("a",)}, "stop_token_ids: expected a whole number"),
    ],
)
def test_impossible_sampling_is_refused(options, complaint):
    with pytest.raises(ValueError, match=complaint):
        SamplingParams(**options)


# The engine's own refusals --------------------------------------------------------------------------------------------


def test_a_pool_of_one_block_more_than_fits_is_refused_with_asked_free_and_fits(model):
    engine = Engine(EngineConfig(model, weights_seed=0))
    block = engine.block_bytes(4)
    assert block == 2 * 2 * 4 * 2 * 8 * 4
    made(model, num_blocks=9, kv_limit_bytes=10 * block).generate(PROMPTS[1], SamplingParams(max_tokens=1))
    with pytest.raises(EngineError, match=rf"10 KV blocks and the null block are {11 * block:,} bytes.*9 blocks fit"):
        made(model, num_blocks=10, kv_limit_bytes=10 * block)


def test_the_pool_is_what_is_left_unless_it_is_pinned(model):
    block = Engine(EngineConfig(model, weights_seed=0)).block_bytes(4)
    llm = made(model, num_blocks=None, kv_limit_bytes=33 * block)
    assert llm.allocator.capacity_blocks == 32
    assert made(model, num_blocks=None, kv_tokens=43).allocator.capacity_blocks == 10


@pytest.mark.parametrize(
    "options, error, complaint",
    [
        ({"device": "cuda"}, DeviceUnavailable, "no CUDA device"),
        ({"device": "tpu"}, ValueError, "unknown device 'tpu'"),
        ({"dtype": "int8"}, ValueError, "unknown dtype 'int8'"),
        ({"attention": "flash"}, ValueError, "unknown attention backend"),
        ({"attention": "reference-mla"}, EngineError, "it keeps latents, and this model caches K and V"),
        ({"layout": "sideways"}, ValueError, "unknown KV layout 'sideways'"),
        ({"allocator": "page"}, ValueError, "unknown allocator 'page'"),
        ({"kernel": "contiguous"}, EngineError, "blocks are not adjacent"),
        ({"max_model_len": 65}, EngineError, "takes at most 64 tokens, got 65"),
        ({"max_model_len": 0}, EngineError, "max_model_len: expected a whole number of at least 1, got 0"),
        (
            {"max_num_seqs": 1 << 31},
            EngineError,
            "max_num_seqs: expected a whole number of at least 1 and at most 16384",
        ),
        (
            {"max_num_batched_tokens": 10**10},
            EngineError,
            "max_num_batched_tokens: expected a whole number of at least 1 and at most",
        ),
        ({"weights_seed": 1 << 70}, EngineError, "weights_seed: expected a whole number of at least 0 and at most"),
        ({"num_blocks": 2.5}, EngineError, "num_blocks: expected a whole number of at least 1, got 2.5"),
        ({"num_blocks": 4, "kv_tokens": 4}, EngineError, "both pin"),
        ({"num_blocks": None, "kv_tokens": 3}, EngineError, "kv_tokens: expected at least one block of 4 tokens, got"),
        ({"attention": "reference-flash-attn", "block_size": 24}, ValueError, "block_size a multiple of 16"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
@pytest.mark.skipif(torch.cuda.is_available(), reason="these are about a machine without a CUDA device")
def test_an_engine_that_cannot_be_is_refused(model, options, error, complaint):
    with pytest.raises(error, match=complaint):
        made(model, **options)


@smollm2.needed
def test_texts_go_in_and_come_out_and_stop_texts_end_them():
    llm = LLM(str(smollm2.find()), block_size=16, num_blocks=16, max_model_len=128, max_num_seqs=2)
    prompt = "The capital of France is"
    (whole,) = llm.generate(prompt, SamplingParams(max_tokens=8, temperature=0))[0].outputs
    assert whole.text.startswith(" Paris.")
    stopping, ends = llm._stopping, llm.engine.architecture.eos_token_ids
    tokenizer = llm.engine.model.tokenizer
    spread = [*tokenizer.encode("ab"), *(ends[0] for _ in range(40)), *tokenizer.encode(" cd")]
    params = SamplingParams(max_tokens=99, stop=("b cd",), ignore_eos=True)
    assert stopping.stops(spread, params)
    assert stopping.finish(spread, params) == ("a", "stop")
    (cut,) = llm.generate(prompt, SamplingParams(max_tokens=8, temperature=0, stop=("ris.",)))[0].outputs
    assert (cut.text, cut.finish_reason) == (" Pa", "stop")
    assert cut.token_ids == whole.token_ids[: len(cut.token_ids)]
