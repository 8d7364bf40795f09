"""Several ranks serve what one serves, from the same block tables; a rank that dies ends the run and says so.

Ranks take seconds to start, so a group of them is started once and shown every case in turn.
"""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import closing, contextmanager

import pytest

torch = pytest.importorskip("torch", reason="the engine computes on torch tensors")

from engine.llm import LLM  # noqa: E402
from engine.sampling_params import SamplingParams  # noqa: E402
from engine.worker.budget import EngineError  # noqa: E402
from engine.worker.engine import DeviceUnavailable, Engine, EngineConfig  # noqa: E402
from engine.worker.peers import GRACE_S, RankDied  # noqa: E402
from engine.worker.rank_engine import LeadingEngine, open_engine  # noqa: E402
from tests.engine.worker.tiny import CONFIG  # noqa: E402

BLOCK = 4
LIMITS = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "max_model_len": 48, "weights_seed": 1}
SHARED = list(range(20, 33))
PROMPTS = [[*SHARED, 5], [2, 3, 4], [*SHARED, 7, 8], [40, 41, 42, 43, 44, 45, 46, 47, 48], [*SHARED, 5, 6]]
GREEDY = SamplingParams(max_tokens=9, temperature=0)
LIVELY = SamplingParams(max_tokens=7, temperature=1.1, top_k=30, seed=3)
BIASES = {**CONFIG, "vocab_size": 97, "attention_bias": True, "mlp_bias": True}
TIED = {**CONFIG, "model_type": "qwen3", "vocab_size": 97, "head_dim": 8, "tie_word_embeddings": True}

pytestmark = pytest.mark.usefixtures("one_thread")


def folder_of(path, config):
    """A folder with a configuration and no weights: they are drawn from a seed, a share by each rank."""
    (path / "config.json").write_text(json.dumps(config))
    return str(path)


@contextmanager
def ranks(folder, size, **options):
    """An engine of several ranks, whose processes are gone afterwards, whatever happens."""
    engine = open_engine(EngineConfig(folder, tensor_parallel_size=size, **LIMITS, **options))
    processes = list(engine.peers._processes)
    try:
        yield engine
    finally:
        began = time.monotonic()
        engine.close()
        assert time.monotonic() - began < GRACE_S  # else they had to be killed
    assert not any(process.is_alive() for process in processes)


def ids(answers):
    return [[one.token_ids for one in answer.outputs] for answer in answers]


CASES = {
    "preempted": ({"num_blocks": 14}, {}, lambda llm: llm.num_preemptions > 0),
    "cached prefixes": ({"num_blocks": 40}, {}, lambda llm: llm.memory_use.hit_tokens > 0),
    "chunked prompts": (
        {"num_blocks": 40, "max_num_batched_tokens": 5, "enable_prefix_caching": False},
        {},
        lambda llm: sum(step.num_chunk_tokens > 0 for step in llm.executor.steps) > len(PROMPTS) + 5,
    ),
    "swapped": (
        {"num_blocks": 14, "preemption": "swap"},
        {},
        lambda llm: llm.memory_use.swapped_out_blocks > 0 and llm.memory_use.swapped_in_blocks > 0,
    ),
    "forked samples": (
        {"num_blocks": 60},
        {"params": LIVELY, "n": 2},
        lambda llm: llm.memory_use.copied_blocks > 0,
    ),
    "beams": ({"num_blocks": 60}, {"beam_width": 2}, lambda llm: llm.memory_use.copied_blocks > 0),
    "adjacent blocks that move": (
        {"num_blocks": 40, "allocator": "contiguous-chunk(8)-first-fit", "kernel": "contiguous"},
        {"params": LIVELY},
        lambda llm: llm.memory_use.copied_blocks > 0,
    ),
}


def serve(engine, name):
    """Tokens of a case."""
    options, call, happened = CASES[name]
    llm = LLM(engine, block_size=BLOCK, **options)
    tables = watch_tables(llm) if isinstance(engine, LeadingEngine) else None
    given = {"params": GREEDY} | call
    tokens = ids(llm.generate(PROMPTS, **given))
    assert happened(llm), f"{name}: what the case is about did not happen"
    if tables is not None:
        assert all(len(digests) == 1 for digests in tables), f"{name}: ranks have different block tables"
        assert len({*map(frozenset, tables)}) > 1, f"{name}: the tables never changed"
    return tokens


def watch_tables(llm):
    """Digests of all ranks' block tables after each step, as they come."""
    tables, finish = [], llm.executor.finish

    def finish_and_look(*step):
        result = finish(*step)
        tables.append({survey.block_table for survey in llm.engine.surveys()})
        return result

    llm.executor.finish = finish_and_look
    return tables


def test_two_ranks_serve_what_one_serves_from_the_same_block_tables(tmp_path):
    folder = folder_of(tmp_path, BIASES)
    alone = Engine(EngineConfig(folder, **LIMITS))
    with ranks(folder, 2, kv_limit_bytes=(81 * 512, 65 * 512)) as engine:
        assert engine.block_bytes(BLOCK) == 512 == alone.block_bytes(BLOCK) // 2
        for name in CASES:
            assert serve(engine, name) == serve(alone, name), name
        the_rank_with_the_fewest_blocks_decides(engine)
        a_pool_that_one_rank_has_no_room_for_is_refused(engine)
        assert serve(engine, "preempted") == serve(alone, "preempted")
        a_rank_that_is_gone_is_noticed_at_the_next_call(engine)


def test_an_fp8_cache_over_ranks_holds_what_one_rank_holds(tmp_path):
    """Each rank has scales for its own KV heads."""
    config = {**CONFIG, "num_key_value_heads": 2}
    folder, fp8 = folder_of(tmp_path, config), {**LIMITS, "kv_cache_dtype": "fp8"}
    alone = LLM(Engine(EngineConfig(folder, **fp8)), block_size=BLOCK, num_blocks=60).generate(PROMPTS, GREEDY)
    with closing(open_engine(EngineConfig(folder, tensor_parallel_size=2, **fp8))) as engine:
        together = LLM(engine, block_size=BLOCK, num_blocks=60).generate(PROMPTS, GREEDY)
    assert ids(together) == ids(alone)


def the_rank_with_the_fewest_blocks_decides(engine):
    llm = LLM(engine, block_size=BLOCK)
    assert (llm.pool.capacity_blocks, llm.budget.num_blocks) == (64, 65)
    before = llm.generate(PROMPTS, SamplingParams(max_tokens=20, temperature=0))
    first, second = engine.surveys()
    assert (first.num_kv_blocks, first.idle_blocks) == (81, 16)
    assert (second.num_kv_blocks, second.idle_blocks) == (65, 0)
    assert first.idle_untouched
    assert first.block_table == second.block_table
    llm.engine.executor_in_use.kv.caches[-1].select(llm.executor.kv.layout.block_axis, 70).fill_(1.0)
    assert not engine.surveys()[0].idle_untouched
    assert len(before) == len(PROMPTS)


def a_pool_that_one_rank_has_no_room_for_is_refused(engine):
    with pytest.raises(EngineError, match=r"rank 1 of 2: cpu: 70 KV blocks .* 64 blocks fit"):
        LLM(engine, block_size=BLOCK, num_blocks=70)
    with pytest.raises(EngineError, match=r"^cpu: 90 KV blocks .* 80 blocks fit"):
        LLM(engine, block_size=BLOCK, num_blocks=90)


def a_rank_that_is_gone_is_noticed_at_the_next_call(engine):
    llm = LLM(engine, block_size=BLOCK, num_blocks=40)
    os.kill(engine.peers.pids[0], signal.SIGKILL)
    with pytest.raises(RankDied, match=rf"rank 1 of 2 \(process {engine.peers.pids[0]}\) was killed by SIGKILL"):
        llm.generate(PROMPTS, GREEDY)


def test_four_ranks_repeat_two_kv_heads_and_end_with_an_error_when_one_is_killed(tmp_path):
    folder = folder_of(tmp_path, TIED)
    alone = Engine(EngineConfig(folder, **LIMITS))
    with ranks(folder, 4) as engine:
        assert engine.block_bytes(BLOCK) == alone.block_bytes(BLOCK) // 2  # one of two heads, on two ranks
        assert serve(engine, "preempted") == serve(alone, "preempted")
        llm = LLM(engine, block_size=BLOCK, num_blocks=40)
        finish, number = llm.executor.finish, 0

        def finish_and_kill(*step):
            nonlocal number
            number += 1
            if number == 3:
                os.kill(engine.peers.pids[0], signal.SIGKILL)
            return finish(*step)

        llm.executor.finish = finish_and_kill
        began = time.monotonic()
        with pytest.raises(
            RankDied, match=r"rank 1 of 4 .* was killed by SIGKILL; the other ranks were ended"
        ) as found:
            llm.generate(PROMPTS, GREEDY)
        assert found.value.rank == 1
        assert time.monotonic() - began < 20
        with pytest.raises(RankDied, match="make a new one"):
            llm.generate(PROMPTS, GREEDY)


@pytest.mark.skipif(torch.cuda.device_count() > 1, reason="there are two devices")
def test_more_ranks_than_devices_are_refused_before_any_is_started(tmp_path):
    with pytest.raises(DeviceUnavailable, match=r"tensor_parallel_size=2: torch sees [01] CUDA device.*need one each"):
        LLM(folder_of(tmp_path, CONFIG), device="cuda", tensor_parallel_size=2)


@pytest.mark.parametrize("size", [0, -1, 2.0])
def test_a_number_of_ranks_that_cannot_be_is_refused(tmp_path, size):
    with pytest.raises(EngineError, match="tensor_parallel_size: expected a whole number of at least 1"):
        LLM(folder_of(tmp_path, CONFIG), tensor_parallel_size=size)


def test_a_model_that_does_not_divide_is_refused_before_any_rank_is_started(tmp_path, monkeypatch):
    monkeypatch.setattr("engine.worker.rank_engine.Peers", None)
    with pytest.raises(ValueError, match=r"tensor_parallel_size=1000: \d+ query heads cannot be divided evenly"):
        LLM(folder_of(tmp_path, CONFIG), tensor_parallel_size=1000)


def test_limits_for_another_number_of_ranks_are_refused(tmp_path):
    with pytest.raises(EngineError, match=r"kv_limit_bytes: expected one for all or one for each of 2 ranks, got \(1,"):
        LLM(folder_of(tmp_path, CONFIG), tensor_parallel_size=2, kv_limit_bytes=(1, 2, 3))
