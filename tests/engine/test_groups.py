"""Several completions of a prompt: forked or not, swapped or not, cached or not, the tokens are the same."""

from __future__ import annotations

import json
from functools import cache

import pytest

torch = pytest.importorskip("torch", reason="the engine computes on torch tensors")

from engine.core.paged import PagedAllocator  # noqa: E402
from engine.llm import LLM  # noqa: E402
from engine.sampling_params import SamplingParams  # noqa: E402
from engine.worker.budget import EngineError  # noqa: E402
from engine.worker.engine import Engine  # noqa: E402
from engine.worker.kv_memory import KVMemory  # noqa: E402
from engine.worker.shared_prefix import SharingRule  # noqa: E402
from tests.engine.attention.kernels.pairwise import pairwise  # noqa: E402
from tests.engine.worker.tiny import CONFIG  # noqa: E402

SHARED = list(range(20, 41))
PROMPTS = [[*SHARED, 5], [2, 3, 4], [*SHARED, 7, 8], [*SHARED, 5]]
LIVELY = SamplingParams(max_tokens=10, temperature=1.1, seed=3)
GREEDY = SamplingParams(max_tokens=10, temperature=0)
PLAIN = {"enable_prefix_caching": False, "num_blocks": 400}
TIGHT = {
    "paged": {"num_blocks": 22},
    "paged, no cache": {"num_blocks": 22, "enable_prefix_caching": False},
    "blocks of one": {"num_blocks": 86, "block_size": 1},
    "blocks of sixteen": {"num_blocks": 8, "block_size": 16},
    "swap": {"num_blocks": 22, "preemption": "swap"},
    "little host memory": {"num_blocks": 22, "preemption": "swap", "host_blocks": 9},
    "swap of groups": {"num_blocks": 22, "preemption": "auto"},
    "chunks of three": {"num_blocks": 15, "max_num_batched_tokens": 6, "preemption": "auto"},
    "maximum": {"allocator": "orca-max", "num_blocks": 64},
    "powers of two": {"allocator": "orca-pow2", "num_blocks": 50},
    "oracle": {"allocator": "orca-oracle", "num_blocks": 50, "kernel": "contiguous"},
    "best fit": {"allocator": "contiguous-limit-best-fit", "num_blocks": 50},
}


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A folder with a configuration and no weights: they are drawn from a seed."""
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return str(folder)


def made(model, **options):
    options = {"block_size": 4, "num_blocks": 60, "weights_seed": 1, "max_num_seqs": 16, "max_model_len": 48} | options
    return LLM(model, **options)


def ids(answers):
    return [[one.token_ids for one in answer.outputs] for answer in answers]


@pytest.fixture(scope="module")
def alone(model):
    """Tokens of each prompt by a roomy LLM that shares nothing: samples as requests, beams of a lone search."""
    llm = made(model, **PLAIN)
    return {
        "samples": [
            ids(llm.generate([prompt], one, samples="requests"))[0] for prompt, one in zip(*asked(3), strict=True)
        ],
        "beams": [ids(llm.generate([prompt], GREEDY, beam_width=3))[0] for prompt in PROMPTS],
    }


def asked(n):
    """Prompts, and parameters with a seed of each one's own."""
    return PROMPTS, [
        SamplingParams(max_tokens=10, temperature=1.1, seed=100 * place, n=n) for place in range(len(PROMPTS))
    ]


@pytest.fixture(scope="module")
def served(model):
    """By name: an LLM with a tight pool, what it made of samples and of beams, and what that did to memory."""

    @cache
    def serve(name):
        llm = made(model, **TIGHT[name])
        prompts, params = asked(3)
        answers, uses = [], []
        for call in ((prompts, params), (prompts, params), (prompts, GREEDY, 3)):  # twice: what the cache holds then
            answers.append(ids(llm.generate(*call[:2], beam_width=call[2] if call[2:] else None)))
            uses.append(llm.memory_use)
        return llm, answers, uses

    return serve


@pytest.mark.parametrize("name", TIGHT)
def test_memory_changes_no_token(served, name, alone):
    llm, answers, _ = served(name)
    assert answers == [alone["samples"], alone["samples"], alone["beams"]]
    stats = llm.allocator.stats()
    assert stats.num_free == llm.allocator.capacity_blocks
    assert stats.num_extra_references == 0
    assert not llm.executor.rows.requests
    assert not llm.executor.sequences.tokens
    llm.allocator.check()


def test_the_tight_pools_preempt_swap_copy_share_and_evict(served):
    for name in TIGHT:
        llm, _, uses = served(name)
        pages, swaps = "allocator" not in TIGHT[name], "preemption" in TIGHT[name]
        caches = pages and TIGHT[name].get("enable_prefix_caching", True)
        out, back = (sum(getattr(use, f"swapped_{way}_blocks") for use in uses) for way in ("out", "in"))
        evicted = llm.allocator.stats().num_evictions
        seen = name, uses, evicted
        assert (sum(use.num_preemptions for use in uses) > 0) == pages, seen
        assert (sum(use.copied_blocks for use in uses) > 0) == (name != "blocks of one"), seen
        assert (max(use.most_shared_blocks for use in uses) > 0) == pages, seen
        assert (sum(use.hit_tokens for use in uses) > 0) == caches, seen
        assert (evicted > 0) == caches, seen
        assert (out > 0) == swaps, seen
        assert back >= out, seen
    assert sum(use.num_swaps_refused for use in served("little host memory")[2])


def dropped(name):
    """A batch is run as if it had asked for nothing of that."""

    def move(kv, wanted, moves):
        moves(kv, wanted._replace(**{name: ()}))

    return move


@pytest.mark.parametrize("fault", [dropped("copies"), dropped("to_host"), dropped("to_device")])
def test_moves_that_are_left_out_are_seen(model, alone, monkeypatch, fault):
    moves = KVMemory.move_blocks
    monkeypatch.setattr(KVMemory, "move_blocks", lambda kv, wanted: fault(kv, wanted, moves))
    llm = made(model, **TIGHT["swap"])
    for one in (*llm.executor.kv.caches, llm.executor.kv.host.blocks):
        one.fill_(0.5)
    assert ids(llm.generate(PROMPTS, GREEDY, beam_width=3)) != alone["beams"]
    assert llm.memory_use.num_preemptions > 0


def test_fork_and_requests_give_the_same_and_fork_computes_the_prompt_once(model):
    params = SamplingParams(max_tokens=9, temperature=1.2, seed=5, n=4)
    answers, tokens = [], []
    for samples in ("fork", "requests"):
        llm = made(model, **PLAIN)
        answers.append(llm.generate(PROMPTS, params, samples=samples))
        tokens.append(sum(one.num_chunk_tokens for one in llm.executor.steps))
    assert answers[0] == answers[1]
    assert tokens[1] == 4 * tokens[0] == 4 * sum(map(len, PROMPTS))


def test_the_first_tokens_of_samples_differ(model):
    llm = made(model)
    params = SamplingParams(max_tokens=1, temperature=3.0, n=12, seed=1)
    first = [one.token_ids[0] for one in llm.generate(PROMPTS[0], params)[0].outputs]
    assert len(set(first)) > 6


def test_each_sample_ends_by_itself(model):
    llm = made(model)
    params = SamplingParams(max_tokens=12, temperature=1.5, n=6, seed=2)
    whole = ids(llm.generate(PROMPTS[1], params))[0]
    stop = whole[0][2]
    cut = llm.generate(PROMPTS[1], SamplingParams(max_tokens=12, temperature=1.5, n=6, seed=2, stop_token_ids=(stop,)))
    expected = [tokens[: tokens.index(stop) + 1] if stop in tokens else tokens for tokens in whole]
    assert ids(cut)[0] == expected
    assert len({len(tokens) for tokens in expected}) > 1
    reasons = [one.finish_reason for one in cut[0].outputs]
    assert reasons == ["stop" if stop in tokens else "length" for tokens in whole]


def test_a_sample_that_ends_with_its_first_token_leaves_the_others_alone(model):
    llm = made(model)
    params = SamplingParams(max_tokens=8, temperature=3.0, n=5, seed=4)
    whole = ids(llm.generate(PROMPTS[0], params))[0]
    for place in range(5):
        stop = whole[place][0]
        params = SamplingParams(max_tokens=8, temperature=3.0, n=5, seed=4, stop_token_ids=(stop,))
        expected = [tokens[: tokens.index(stop) + 1] if stop in tokens else tokens for tokens in whole]
        assert ids(llm.generate(PROMPTS[0], params))[0] == expected


@pytest.mark.parametrize("name", ["paged", "swap", "blocks of one"])
def test_the_kernel_that_reads_shared_blocks_once_sees_what_forks_share(model, alone, monkeypatch, name):
    """Beams die and start again from others all the time: what rows have in common is looked for anew."""
    found, groups = SharingRule.groups, []

    def noted(rule, *args):
        groups.append(found(rule, *args))
        return groups[-1]

    monkeypatch.setattr(SharingRule, "groups", noted)
    size = TIGHT[name].get("block_size", 4)
    monkeypatch.setattr(Engine, "_sharing", lambda *_: SharingRule(size, 1, least_bytes=0, row_bytes=0))
    llm = made(model, **TIGHT[name])
    prompts, params = asked(3)
    assert ids(llm.generate(prompts, params)) == alone["samples"]
    assert ids(llm.generate(prompts, GREEDY, beam_width=3)) == alone["beams"]
    assert sum(map(bool, groups)) > 10
    assert max(len(one.rows) for some in groups for one in some) >= 3


# The prefix cache on real K and V -------------------------------------------------------------------------------------


def test_a_full_hit_computes_its_last_block_again_and_says_the_same(model):
    llm = made(model)
    prompt = SHARED[:16]
    first = ids(llm.generate([prompt], GREEDY))
    assert (llm.memory_use.queried_tokens, llm.memory_use.hit_tokens) == (16, 0)
    llm.executor.steps.clear()
    assert ids(llm.generate([prompt], GREEDY)) == first
    assert (llm.memory_use.queried_tokens, llm.memory_use.hit_tokens) == (16, 12)
    assert sum(one.num_chunk_tokens for one in llm.executor.steps) == 4


def test_the_cache_really_holds_keys_and_values(model):
    """Blocks that are overwritten behind its back change what a hit reads."""
    llm = made(model)
    first = ids(llm.generate([SHARED], GREEDY))
    for one in llm.executor.kv.caches:
        one.mul_(-3.0)
    assert ids(llm.generate([SHARED], GREEDY)) != first
    assert llm.memory_use.hit_tokens == 20


@pytest.mark.parametrize("key", ["cache_salt", "lora_name"])
def test_salts_and_adapters_keep_blocks_apart(model, key):
    llm = made(model)

    def hits(value):
        llm.generate([SHARED], GREEDY, **{key: value})
        return llm.memory_use.hit_tokens

    assert [hits(value) for value in (None, "a", "b", "a", "b", None)] == [0, 0, 0, 20, 20, 20]
    llm = made(model)
    llm.generate([SHARED] * 3, GREEDY, **{key: ["a", None, "a"]})
    assert llm.memory_use.hit_tokens == 20


def test_events_tell_what_the_cache_holds(model):
    llm = made(model, num_blocks=12, record_events=True)
    held = set()
    for prompt in ([*SHARED], [9] * 20, [*SHARED, 1, 2, 3], [11] * 22):
        llm.generate([prompt], GREEDY)
        for event in llm.take_events():
            (held.add if event.kind == "stored" else held.remove)(event.block_id)
    assert llm.take_events() == []
    assert llm.allocator.stats().num_evictions > 0
    assert len(held) == llm.allocator.stats().num_cached_free


# What cannot be -------------------------------------------------------------------------------------------------------


class Forkless(PagedAllocator):
    """Of somebody who has not heard of groups."""

    fork = property()

    def __init__(self, pool):
        super().__init__(pool.capacity_blocks, pool.block_size, max_model_len=pool.max_model_len)


@pytest.mark.parametrize(
    "options, call, complaint",
    [
        ({}, {"n": 17}, "n=17 sequences run together, and max_num_seqs is 16"),
        ({"max_num_batched_tokens": 3}, {"n": 4}, "max_num_batched_tokens is 3"),
        ({}, {"n": 0}, "n: expected a whole number of at least 1"),
        ({}, {"samples": "both"}, "samples: expected 'fork' or 'requests'"),
        ({}, {"beam_width": 2, "params": LIVELY}, "draws nothing: give temperature=0"),
        ({}, {"beam_width": 2, "n": 2}, "leave n=2 out"),
        ({}, {"beam_width": 0}, "beam_width: expected a whole number of at least 1, got 0"),
        ({}, {"beam_width": 2.0}, "beam_width: expected a whole number of at least 1, got 2.0"),
        ({}, {"beam_width": 60}, "looks at 120 tokens a beam, and the model has 96"),
        ({}, {"beam_width": 2, "early_stopping": "soon"}, "early_stopping: expected True, False or 'never'"),
        ({}, {"beam_width": 2, "length_penalty": float("nan")}, "length_penalty: expected a number"),
        ({}, {"beam_width": 2, "length_penalty": 10**400}, "length_penalty: expected a number"),
        ({}, {"beam_width": 2, "length_penalty": True}, "length_penalty: expected a number"),
        ({}, {"beam_width": 2, "length_penalty": 1e6}, "length_penalty: expected a number"),
        ({}, {"beam_width": 2, "length_penalty": -900.0}, "leave the range of scores"),
        ({}, {"beam_width": 2, "length_penalty": 900.0}, "leave the range of scores"),
        ({}, {"length_penalty": 2.0}, "give a beam_width"),
        ({}, {"cache_salt": ["a", "b"]}, "cache_salt: expected one for each of 1 prompts, got 2"),
        ({}, {"lora_name": [3]}, "lora_name: expected a text or None, got 3"),
        ({"num_blocks": 12}, {"n": 9}, "fewer than the 9 sequences that run together"),
        ({"allocator": "contiguous-chunk(16)-first-fit"}, {"n": 2}, "serves no groups .its reservations grow"),
        ({"allocator": f"{__name__}:Forkless"}, {"n": 2}, "serves no groups .it has no fork"),
    ],
    ids=str,
)
def test_groups_that_cannot_be_are_refused_before_anything_runs(model, options, call, complaint):
    llm = made(model, **options)
    call = {"params": GREEDY} | call
    with pytest.raises(ValueError, match=complaint):
        llm.generate([SHARED[:9]], call.pop("params"), **call)
    assert not llm.executor.steps
    assert not llm.scheduler.has_work


@pytest.mark.parametrize(
    "options, complaint",
    [
        ({"preemption": "swap", "allocator": "orca-max"}, "orca-max swaps nothing"),
        ({"host_blocks": 4}, "with 'recompute' nothing is swapped"),
        ({"preemption": "swap", "host_blocks": 4, "swap_gib": 1.0}, "give one of them"),
        ({"preemption": "swap", "host_blocks": 0}, "host_blocks: expected a whole number of at least 1"),
        ({"preemption": "swap", "swap_gib": float("inf")}, "swap_gib: expected a number, got"),
        ({"preemption": "swap", "swap_gib": float("nan")}, "swap_gib: expected a number, got"),
        ({"preemption": "swap", "swap_gib": 10**400}, "swap_gib: expected at least one block of"),
        ({"preemption": "swap", "swap_gib": True}, "swap_gib: expected a number, got"),
        ({"num_blocks": True}, "num_blocks: expected a whole number of at least 1, got True"),
        ({"preemption": "swap", "swap_gib": 1e-9}, "swap_gib: expected at least one block of"),
        ({"preemption": "swap", "host_blocks": 1 << 40}, "bytes of host memory are free"),
        ({"record_events": True, "allocator": "orca-max"}, "orca-max has no prefix cache"),
        ({"record_events": True, "enable_prefix_caching": False}, "paged has no prefix cache"),
    ],
    ids=str,
)
def test_memory_that_cannot_be_is_refused(model, options, complaint):
    with pytest.raises(EngineError, match=complaint):
        made(model, **options)


def test_events_that_are_not_recorded_are_not_taken(model):
    with pytest.raises(ValueError, match="record_events=True"):
        made(model).take_events()


def test_host_memory_is_as_large_as_the_pool_unless_something_is_said(model):
    assert made(model, preemption="swap").pool.host_blocks == 60
    block = made(model).engine.block_bytes(4)
    assert made(model, preemption="auto", swap_gib=7.5 * block / 2**30).pool.host_blocks == 7


def test_every_combination_of_sharing_gives_the_same(model, alone):
    """Caching, way of sampling, preemption and chunk size, every pair of them, in a pool that is too small."""
    prompts, params = asked(2)
    expected = [samples[:2] for samples in alone["samples"]]
    factors = {
        "enable_prefix_caching": (True, False),
        "samples": ("fork", "requests"),
        "preemption": ("recompute", "swap", "auto"),
        "max_num_batched_tokens": (6, 256),
    }
    for row in pairwise(factors):
        samples = row.pop("samples")
        assert ids(made(model, num_blocks=14, **row).generate(prompts, params, samples=samples)) == expected
