"""`mooncake-hit-rate`: what it says without a trace, on a made-up one, and on the public one."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from experiments.cli import main
from experiments.paper import verb
from experiments.paper.cache_lab import CacheLab

NAME = "mooncake-hit-rate"
POLICIES = ("fifo", "lru", "optimal", "vllm")
REAL = Path(os.environ.get("PAGELAB_DATA", "")) / "mooncake/conversation_trace.jsonl.gz"


@pytest.fixture
def trace(tmp_path) -> Path:
    """Three talks that take turns, each with a system prompt and a block more every turn; 512-token blocks."""
    rows, fresh = [], iter(range(1, 10_000))
    talks = [[0, next(fresh)] for _ in range(3)]
    for turn in range(20):
        for talk in talks:
            talk.append(next(fresh))
            row = {"timestamp": 1000 * turn, "input_length": 512 * len(talk), "output_length": 5, "hash_ids": talk}
            rows.append(json.dumps(row))
    path = tmp_path / "talks.jsonl"
    path.write_text("\n".join(rows) + "\n")
    return path


def reproduced(capsys, *words: str) -> tuple[int, dict]:
    code = main(["reproduce", NAME, *words, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_without_a_trace_nothing_is_measured_and_it_says_what_is_needed(capsys):
    code, document = reproduced(capsys)

    assert code == 3
    assert {claim["verdict"] for claim in document["claims"]} == {"not here"}
    assert {claim["got"] for claim in document["claims"]} == {None}
    assert all("not measured: needs a trace with block ids (--trace FILE" in c["note"] for c in document["claims"])
    assert f"{NAME}/lru/1756" in [claim["id"] for claim in document["claims"]]


def test_another_trace_is_reported_at_the_sizes_that_were_asked_for(capsys, trace):
    code, document = reproduced(capsys, "--trace", str(trace), "--cache-blocks", "30,60,1_000")

    got = {claim["id"]: claim["got"] for claim in document["claims"]}
    assert code == 0
    assert document["trace"] == "talks"
    assert {claim["verdict"] for claim in document["claims"]} == {"reported"}
    assert sorted(got) == sorted(f"{NAME}/{policy}/{size}" for policy in POLICIES for size in (30, 60, 1_000))
    assert got[f"{NAME}/fifo/1000"] == got[f"{NAME}/lru/1000"] == got[f"{NAME}/optimal/1000"]
    asked = range(13, 23)  # blocks in the turns of the last half: each finds all but its own last one
    assert got[f"{NAME}/lru/1000"] == pytest.approx(100 * sum(blocks - 1 for blocks in asked) / sum(asked))
    assert got[f"{NAME}/lru/30"] < got[f"{NAME}/optimal/30"] < got[f"{NAME}/optimal/60"]


def test_prompts_beyond_vllms_pool_are_counted(capsys, trace):
    _, document = reproduced(capsys, "--trace", str(trace), "--cache-blocks", "12")

    note = {claim["id"]: claim["note"] for claim in document["claims"]}[f"{NAME}/vllm/12"]
    assert "30 prompts larger than the pool" in note


@pytest.mark.parametrize(
    "words,said",
    [
        (["--cache-blocks", "5"], "name one with --trace"),
        (["--trace", "{trace}", "--cache-blocks", "0"], "at least one block, got 0"),
        (["--trace", "{trace}", "--cache-blocks", "many"], "whole numbers, got 'many'"),
        (["--trace", "{trace}x"], "no such file"),
    ],
)
def test_bad_usage_says_what_is_wrong(capsys, trace, words, said):
    code, document = reproduced(capsys, *(word.format(trace=trace) for word in words))

    assert code == 2
    assert said in document["error"]


def test_a_missing_file_does_not_hide_a_missing_device():
    from experiments.paper.claims import Claim, not_here, without_file

    claim = Claim("a/b", "something", 1.0)
    assert verb.exit_code([without_file(claim, "a file")]) == 3
    assert verb.exit_code([without_file(claim, "a file"), not_here(claim, "no device")]) == 6


def test_each_cache_is_measured_once(trace):
    lab = CacheLab.of(trace, (30,))
    first = lab.found([("lru", 30), ("lru", 30)])
    assert lab.found([("lru", 30)])[0] is first[0] is first[1]


@pytest.mark.skipif("PAGELAB_DATA" not in os.environ, reason="PAGELAB_DATA names no folder")
def test_the_public_trace_passes_by_its_facts_not_by_its_name(capsys, tmp_path):
    path = tmp_path / "renamed.jsonl.gz"
    path.write_bytes(REAL.read_bytes())

    code, document = reproduced(capsys, "--trace", str(path), "--cache-blocks", "1756,7027")

    verdicts = {claim["id"]: claim["verdict"] for claim in document["claims"]}
    assert code == 0
    assert [name for name, verdict in verdicts.items() if verdict != "pass"] == [f"{NAME}/vllm/1756"]
