"""Session workloads: prompts that grow by what was said, shared prefixes, histories cut to the context."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workloads import SESSION_TRACES, Shape, Trace, describe, export_trace, load_trace, save_trace, session_trace
from workloads.blocks import in_blocks

SEEDS = st.integers(0, 2**32 - 1)
TURNS = st.sampled_from(["fixed:1", "fixed:3", "geometric:2.5", "uniform:1-6"])
RATE = {"rate_per_s": 3.0}


def texts(trace: Trace, row: int, *, answer: bool = False) -> list[tuple[int, int]]:
    """(text, position) of every token: what a row's tokens are, one by one."""
    runs = trace.block_ids_of(row).tolist()
    one_by_one = [text for text, tokens in zip(runs[::2], runs[1::2], strict=True) for _ in range(tokens)]
    one_by_one += [runs[-2]] * (int(trace.num_output_tokens[row]) if answer else 0)
    return list(zip(one_by_one, range(len(one_by_one)), strict=True))


@given(seed=SEEDS, turns=TURNS, prefix=st.sampled_from([0, 1, 40]), count=st.integers(1, 60))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_a_turns_prompt_begins_with_the_prompt_and_answer_before_it(seed, turns, prefix, count):
    shape = Shape(turns=turns, prefix_tokens=prefix, num_prefixes=2, turn_lengths="uniform:1-30,1-20")
    trace = session_trace("chat", seed, shape, num_requests=count)
    assert len(trace) == count
    assert trace.sha256() == session_trace("chat", seed, shape, num_requests=count).sha256()
    for row in range(count):
        own, parent = texts(trace, row), int(trace.parent[row])
        assert len(own) == trace.num_prompt_tokens[row]
        if parent < 0:
            assert trace.delay_ns[row] == -1
            assert 1 <= len(own) - prefix <= 30
            continue
        said = texts(trace, parent, answer=True)
        assert parent == row - 1
        assert own[: len(said)] == said
        assert 1 <= len(own) - len(said) <= 30
        assert (trace.session[row], trace.arrival_ns[row]) == (trace.session[parent], trace.arrival_ns[parent])
        assert trace.delay_ns[row] >= 0
        assert trace.delay_ns[row] % 1_000_000 == 0
    others = {text for row in range(count) for text, _ in texts(trace, row) if text >= 2}
    assert len(others) == len(set(trace.session.tolist()))


def test_the_draws_have_their_means():
    shape = Shape(turns="geometric:4", think_time="exponential:10", prefix_tokens=0)
    trace = session_trace("chat", 3, shape, num_requests=40_000)
    assert len(trace) / len(set(trace.session.tolist())) == pytest.approx(4, rel=0.03)
    assert trace.delay_ns[trace.delay_ns >= 0].mean() / 1e9 == pytest.approx(10, rel=0.03)
    first = trace.num_prompt_tokens[trace.parent < 0]
    assert first.mean() == pytest.approx(161.31, rel=0.05)
    assert trace.num_output_tokens.mean() == pytest.approx(337.99, rel=0.02)
    thinking = session_trace("chat", 3, Shape(think_time="lognormal:1/0.5"), num_requests=20_000)
    seconds = thinking.delay_ns[thinking.delay_ns >= 0] / 1e9
    assert np.median(seconds) == pytest.approx(np.e, rel=0.03)


def test_one_thing_changed_leaves_the_other_draws():
    base = session_trace("chat", 1, Shape(turns="fixed:3"), num_requests=60)
    slow = session_trace("chat", 1, Shape(turns="fixed:3", think_time="constant:99"), num_requests=60)
    bare = session_trace("chat", 1, Shape(turns="fixed:3", prefix_tokens=0), num_requests=60)
    assert base.num_prompt_tokens.tolist() == slow.num_prompt_tokens.tolist()
    assert (base.num_prompt_tokens - 256).tolist() == bare.num_prompt_tokens.tolist()
    assert base.delay_ns.tolist() == bare.delay_ns.tolist()
    assert base.arrival_ns.tolist() == slow.arrival_ns.tolist() == bare.arrival_ns.tolist()
    assert base.sha256() != session_trace("chat", 2, Shape(turns="fixed:3"), num_requests=60).sha256()


def test_a_conversation_ends_before_it_is_too_long():
    shape = Shape(turns="fixed:9", turn_lengths="fixed:10,20", prefix_tokens=5, max_session_tokens=100)
    trace = session_trace("chat", 0, shape, num_requests=90)
    turns = np.bincount(trace.session)
    assert set(turns[turns > 0].tolist()) == {3}
    assert (trace.num_prompt_tokens + trace.num_output_tokens).max() == 95
    assert trace.num_prompt_tokens[:3].tolist() == [15, 45, 75]
    with pytest.raises(ValueError, match="max_session_tokens=30: a conversation's first turn has 35 tokens"):
        session_trace("chat", 0, Shape(**{**_fields(shape), "max_session_tokens": 30}))


def _fields(shape: Shape) -> dict[str, Any]:
    return {name: getattr(shape, name) for name in Shape.__dataclass_fields__}


@pytest.mark.parametrize("name, tokens", [("paper-fig16-1shot", 80), ("paper-fig16-5shot", 341), ("few-shot", 341)])
def test_questions_share_their_examples_and_nothing_else(name, tokens):
    trace = session_trace(name, 0, **RATE)
    runs = trace.block_ids.reshape(-1, 4)
    assert set(map(tuple, runs[:, :2].tolist())) == {(0, tokens)}
    assert len(set(runs[:, 2].tolist())) == len(trace)
    assert (trace.delay_ns < 0).all()
    assert (trace.num_prompt_tokens - tokens).mean() == pytest.approx(28.5, rel=0.05)
    assert (trace.num_output_tokens / (trace.num_prompt_tokens - tokens)).mean() == pytest.approx(1.31, rel=0.03)
    best = describe(trace)["best_prefix_hit_frac"]
    assert best == (len(trace) - 1) * tokens / trace.num_prompt_tokens.sum()


def test_the_chatbots_prompts_are_the_end_of_the_history():
    trace = session_trace("paper-fig17", 0, **RATE)
    assert trace.block_size == 0
    assert trace.num_prompt_tokens.max() == 1024
    assert trace.num_output_tokens.max() == 1016
    assert (trace.num_prompt_tokens == 1024).mean() > 0.7
    short = session_trace("paper-fig17", 0, Shape(turns="fixed:1"), **RATE)
    assert (short.num_prompt_tokens == 1024).mean() < 0.1


def test_real_lengths_stand_in_place_of_the_stand_in():
    pairs = (np.array([7, 8, 9]), np.array([1, 2, 3]))
    trace = session_trace("few-shot", 0, Shape(prefix_tokens=10), {"wmt16": pairs}, num_requests=300)
    assert set(zip(trace.num_prompt_tokens.tolist(), trace.num_output_tokens.tolist(), strict=True)) == {
        (17, 1),
        (18, 2),
        (19, 3),
    }
    assert trace.source["lengths"] == "3 given pairs, shuffled"


@pytest.mark.parametrize(
    "name, shape, says",
    [
        ("chat", {"turns": "fixed:0"}, "turns: 'fixed:0'"),
        ("chat", {"turns": "geometric:0.5"}, "a mean of at least 1, got 'geometric:0.5'"),
        ("chat", {"turns": "fixed:0"}, "at least 1 turn"),
        ("chat", {"turns": "fixed:-3"}, "at least 1 turn"),
        ("chat", {"turns": "uniform:0-3"}, "1 <= LOW <= HIGH"),
        ("chat", {"turn_lengths": "bogus"}, "turn_lengths: 'bogus'.*wmt16"),
        ("few-shot", {"turn_lengths": "fixed:0,1"}, "turn_lengths: .*wmt16"),
        ("chat", {"think_time": "constant:1e11"}, "think_time: 'constant:1e11' gives 1e.11 s; need at most 1e.09 s"),
        ("chat", {"think_time": "constant:1e300"}, "need at most"),
        ("chat", {"think_time": "exponential:1e30"}, "need at most"),
        ("chat", {"think_time": "lognormal:900/1"}, "need at most"),
        ("chat", {"turns": "geometric:1e400"}, "turns: need one of"),
        ("chat", {"turns": "often"}, "turns: need one of fixed:N"),
        ("chat", {"think_time": "constant:-1"}, "of at least 0 s, got 'constant:-1'"),
        ("chat", {"think_time": "lognormal:1/-2"}, "think_time: need one of"),
        ("chat", {"think_time": "exponential:x"}, "think_time: need one of"),
        ("chat", {"think_time": "exponential:nan"}, "think_time: need one of"),
        ("chat", {"turn_lengths": "fixed:1"}, "lengths: 'fixed:1'"),
        ("chat", {"num_prefixes": 0}, "need at least 0 and 1, got 256 and 0"),
        ("few-shot", {"prefix_tokens": -1}, "need at least 0 and 1, got -1 and 1"),
        ("few-shot", {"turns": "fixed:2"}, "turns=fixed:2: few-shot has none; it reads turn_lengths"),
        ("paper-fig16-5shot", {"prefix_tokens": 9}, "prefix_tokens=9: paper-fig16-5shot has none"),
        ("paper-fig17", {"think_time": "constant:1"}, "think_time=constant:1: paper-fig17 has none"),
    ],
)
def test_what_means_nothing_is_refused(name, shape, says):
    with pytest.raises(ValueError, match=says.replace("(", r"\(")):
        session_trace(name, 0, Shape(**shape), **RATE)


def test_a_sweep_needs_a_rate_and_a_workload_a_name():
    with pytest.raises(ValueError, match="paper-fig16-1shot needs a rate_per_s; the artifact's grid"):
        session_trace("paper-fig16-1shot")
    with pytest.raises(ValueError, match="need one of chat, few-shot"):
        session_trace("chatter")
    with pytest.raises(ValueError, match="need at least 1 request, got 0"):
        session_trace("chat", num_requests=0)


@pytest.mark.parametrize("name", SESSION_TRACES)
@pytest.mark.parametrize("suffix", ["csv", "jsonl.gz", "parquet"])
def test_pagelabs_own_format_keeps_all_of_it(name, suffix, tmp_path):
    trace = session_trace(name, 4, num_requests=50, **RATE)
    save_trace(trace, tmp_path / f"a.{suffix}")
    assert load_trace(tmp_path / f"a.{suffix}").trace.sha256() == trace.sha256()


def test_mooncakes_format_keeps_sessions_delays_and_whole_blocks(tmp_path):
    trace = session_trace("chat", 4, num_requests=80)
    with pytest.raises(ValueError, match="512-token blocks do not tell of shared texts"):
        export_trace(trace, tmp_path / "a.jsonl", "mooncake")
    said = export_trace(trace, tmp_path / "a.jsonl", "mooncake", lossy=True)
    assert not any(word in " ".join(said) for word in ("lost: delay_ns", "lost: session", "lost: parent"))
    back = load_trace(tmp_path / "a.jsonl").trace
    for column in ("session", "parent", "delay_ns", "num_prompt_tokens", "num_output_tokens"):
        assert getattr(back, column).tolist() == getattr(trace, column).tolist()
    assert 0 < describe(back)["best_prefix_hit_frac"] < describe(trace)["best_prefix_hit_frac"]


@given(seed=SEEDS, size=st.sampled_from([1, 2, 5, 16]))
@settings(max_examples=30, deadline=None, derandomize=True)
def test_blocks_are_equal_where_their_texts_are(seed, size):
    trace = session_trace("chat", seed, Shape(turn_lengths="uniform:1-9,1-9", prefix_tokens=7), num_requests=12)
    blocks = in_blocks(trace, size)
    meant: dict[int, list[tuple[int, int]]] = {}
    for row in range(len(trace)):
        own = texts(trace, row)
        for index, one in enumerate(blocks.block_ids_of(row).tolist()):
            assert meant.setdefault(one, own[: (index + 1) * size]) == own[: (index + 1) * size]
    assert len({tuple(prefix) for prefix in meant.values()}) == len(meant)


@given(seed=SEEDS)
@settings(max_examples=20, deadline=None, derandomize=True)
def test_the_best_hits_are_those_of_a_cache_that_keeps_everything(seed):
    trace = session_trace("chat", seed, Shape(turn_lengths="uniform:1-9,1-9", prefix_tokens=7), num_requests=15)
    kept: set[tuple[tuple[int, int], ...]] = set()
    hits = 0
    for row in range(len(trace)):
        own, whole = texts(trace, row), texts(trace, row, answer=True)
        hits += sum(tuple(own[:count]) in kept for count in range(1, len(own) + 1))
        kept |= {tuple(whole[:count]) for count in range(1, len(whole) + 1)}
    assert describe(trace)["best_prefix_hit_frac"] == hits / trace.num_prompt_tokens.sum()


RUNS = {"block_size": 1, "block_scope": "runs", "block_partial": "floor"}


@pytest.mark.parametrize(
    "ids, change, says",
    [
        ([0, 3, 1], {}, "odd number of integers"),
        ([0, 3, 1, 1], {}, "runs of more or fewer tokens than its prompt"),
        ([0, 5, 1, 0], {}, "has a run of no tokens"),
        ([0, 5], {"block_size": 16}, "runs count single tokens"),
        ([0, 5], {"block_partial": "ceil"}, "runs count single tokens"),
    ],
)
def test_runs_that_mean_nothing_are_refused(ids, change, says):
    with pytest.raises(ValueError, match=says):
        Trace.build([0], [5], [1], block_ids=ids, block_offsets=[0, len(ids)], **(RUNS | change))


@pytest.mark.parametrize(
    "turns", ["fixed:10000000000000000000000000", "geometric:1e9", "uniform:9-99999999999999999999"]
)
def test_more_turns_than_there_are_requests_are_as_many_as_there_are(turns):
    trace = session_trace("chat", 0, Shape(turns=turns, turn_lengths="fixed:1,1"), num_requests=9)
    assert len(trace) == 9
    assert int(trace.num_prompt_tokens.max()) <= 256 + 2 * 9
    assert len(session_trace("paper-fig17", 0, Shape(turns=turns), rate_per_s=0.01)) > 1
