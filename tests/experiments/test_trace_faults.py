"""Every case of the fault index, from the command line: arguments, outcome, exit code, rows, offsets, tokens."""

import csv
import runpy
from decimal import Decimal
from pathlib import Path

import pytest

FAULTS = Path(__file__).parent.parent / "workloads" / "faults"
with (FAULTS / "INDEX.tsv").open(newline="", encoding="utf-8") as table:
    CASES = list(csv.DictReader(table, delimiter="\t"))

SAID = {
    "06": "1 rows arrive before the row above them: sorted stably",
    "07": "csv:2: no prompt tokens: 0 in, 10 out (read 4 = kept 1 + dropped 3: negative token count x2",
    "07 --on-bad-row drop": "read 4 = kept 1 + dropped 3",
    "13 --num-requests 2": "2 asked for, the trace holds 1; ask for fewer, or say --repeat",
    "14": "a ramp-up: the first 2 of 8 rows take 6000 of 6002 s",
    "15": "csv:1: a Git LFS pointer",
    "21 --trace-block-size 16": "3 blocks of 16 cannot hold 1100 tokens",
    "22": "jsonl:1: too few block ids: 2000 tokens need 4 ids of 512 tokens, 1 given",
    "24": "jsonl:2: partial and full block under one id: id 1 was partial (188 tokens) and is now full (512)",
    "29": "jsonl:2: parent cycle: between 2 and 3",
    "29 --on-bad-row drop": "1 rows name a parent that is not in the file: now roots",
    "30": "jsonl:3: neither timestamp nor delay",
    "31": "jsonl:1: not finite",
    "34": "jsonl:3: not JSON",
    "37": "csv:1: no known format; the first line is 'arrival_time,PromptTokenCount,GeneratedTokenCount'",
    "40 --recipe first-human-pair --tokenizer words": "not a human turn and its answer x1, fewer than two turns x1",
    "42 (run it, then inspect the .pkl)": "pickles are never loaded, because they run code; convert it",
}
"""What must be said on stderr, by number and arguments."""
FAILED = {"07 --on-bad-row drop": 1, "10": 2}
DELAYED = {"30 --on-bad-row drop": [None, 2_000_000_000]}


def key_of(case):
    return f"{case['file'][:2]} {case['args']}".strip()


@pytest.fixture(params=CASES, ids=key_of)
def case(request, tmp_path, monkeypatch):
    """A line of the index, with the file to name and the words that follow it."""
    file, words = FAULTS / request.param["file"], request.param["args"].split()
    if file.suffix == ".py":
        monkeypatch.setattr("sys.argv", [str(file), str(tmp_path / "lengths.pkl")])
        runpy.run_path(str(file))
        file, words = tmp_path / "lengths.pkl", []
    return request.param, file, words


def test_the_index_has_all_cases_and_every_fault_file_is_in_it():
    named = {case["file"] for case in CASES}

    assert (len(CASES), len(named)) == (31, 26)
    assert named == {path.name for path in FAULTS.glob("[0-9]*")}
    assert SAID.keys() | FAILED.keys() | DELAYED.keys() <= {key_of(case) for case in CASES}
    assert {key_of(case) for case in CASES if case["outcome"] == "refuse"} <= SAID.keys()


def test_a_fault_does_what_the_index_says(case, pagelab, strict_object, tmp_path):
    expected, file, words = case
    inspected = pagelab("trace", "inspect", file, *words, "--json")
    converted = pagelab("trace", "convert", file, "out.csv", *words)

    assert (inspected.code, converted.code) == (int(expected["exit"]),) * 2
    said = SAID.get(key_of(expected), "")
    assert said in converted.err
    if expected["outcome"] == "refuse":
        assert said in strict_object(inspected.out)["error"]
        assert not (tmp_path / "out.csv").exists()
        return
    facts = strict_object(inspected.out)
    assert (facts["num_requests"], facts["num_dropped"]) == (int(expected["rows_kept"]), int(expected["rows_dropped"]))
    assert facts["num_read"] == facts["num_requests"] + facts["num_dropped"]
    assert facts["num_failed"] == FAILED.get(key_of(expected), 0)
    assert any(said in note for note in facts["notes"]) or not said
    _compare(expected, (tmp_path / "out.csv").read_text(encoding="utf-8").splitlines()[1:])


def _compare(expected, lines):
    rows = list(csv.DictReader(lines))
    assert len(rows) == int(expected["rows_kept"])
    delays = [int(row.get("delay_ns", -1)) for row in rows]
    assert [None if d < 0 else d for d in delays] == DELAYED.get(key_of(expected), [None] * len(rows))
    if expected["offsets_s"]:
        offsets = [int(Decimal(text) * 10**9) if text else None for text in expected["offsets_s"].split(";")]
        stamps = [int(row["arrival_ns"]) for row in rows]
        assert [None if d >= 0 else ns for ns, d in zip(stamps, delays, strict=True)] == offsets
    if expected["prompt,output tokens"]:
        pairs = ";".join(f"{row['num_prompt_tokens']},{row['num_output_tokens']}" for row in rows)
        assert pairs == expected["prompt,output tokens"]


def test_what_the_notes_of_the_index_say_beside_the_numbers(pagelab, tmp_path):
    pagelab("trace", "convert", FAULTS / "11_burstgpt_v3_inserted_columns.csv", "sessions.csv")
    pagelab("trace", "convert", FAULTS / "28_int_timestamp_strict_double.jsonl", "bailian.csv")
    pagelab("trace", "convert", FAULTS / "20_mooncake_ms_vs_s.jsonl", "mooncake.csv")
    words = ("--recipe", "first-human-pair", "--tokenizer", "words")
    pagelab("trace", "convert", FAULTS / "40_sharegpt_gpt_first.json", "talks.csv", *words)
    named = pagelab("trace", "inspect", FAULTS / "37_vidur_column_names.csv").err

    def table(name):
        return list(csv.DictReader((tmp_path / name).read_text(encoding="utf-8").splitlines()[1:]))

    assert [row["session"] for row in table("sessions.csv")] == ["0", "-1"]
    assert [(row["parent"], row["block_ids"]) for row in table("bailian.csv")] == [("-1", "1 2"), ("0", "1 3 4")]
    assert '"block_size": 16, "block_scope": "content"' in (tmp_path / "bailian.csv").read_text(encoding="utf-8")
    assert [row["block_ids"] for row in table("mooncake.csv")] == ["0 1", "0 2"]
    assert [(r["num_prompt_tokens"], r["num_output_tokens"], r["source_row"]) for r in table("talks.csv")] == [
        ("4", "6", "2"),
        ("1", "1", "4"),
    ]
    assert '"recipe": "first-human-pair", "tokenizer": "words"' in (tmp_path / "talks.csv").read_text(encoding="utf-8")
    assert "arrived_at (or arrival_time),num_prefill_tokens,num_decode_tokens" in named
