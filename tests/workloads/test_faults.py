"""Invented bad files, one for each fault seen in public traces; INDEX.tsv says what must happen."""

import csv
import pickle
from decimal import Decimal
from pathlib import Path

import pytest

from workloads import load_trace

FAULTS = Path(__file__).parent / "faults"
with (FAULTS / "INDEX.tsv").open(newline="", encoding="utf-8") as table:
    CASES = list(csv.DictReader(table, delimiter="\t"))
READ = [case for case in CASES if case["outcome"] == "read"]
SAID = {
    "07": r"csv:2: no prompt tokens: 0 in, 10 out \(read 4 = kept 1 \+ dropped 3: negative token count x2",
    "15": "Git LFS pointer",
    "21": "3 blocks of 16 cannot hold 1100 tokens",
    "22": "2000 tokens need 4 ids of 512 tokens, 1 given",
    "24": r"jsonl:2: .*id 1 was partial \(188 tokens\) and is now full \(512\)",
    "30": "jsonl:3: neither timestamp nor delay",
    "31": "jsonl:1: not finite",
    "34": "jsonl:3: not JSON",
    "37": r"csv:1: .*arrived_at \(or arrival_time\),num_prefill_tokens,num_decode_tokens",
}


def options(case: dict[str, str]) -> dict:
    words = case["args"].split()
    given = dict(zip(words[::2], words[1::2], strict=True)) if case["args"].startswith("--") else {}
    names = {"--on-bad-row": ("on_bad_row", str), "--trace-block-size": ("block_size", int)}
    return {names[key][0]: names[key][1](value) for key, value in given.items()}


def title(case: dict[str, str]) -> str:
    return f"{case['file']} {case['args']}"


@pytest.mark.parametrize("case", READ, ids=title)
def test_what_can_be_read_is_read_exactly(case: dict[str, str]):
    loaded = load_trace(FAULTS / case["file"], **options(case))

    trace = loaded.trace
    assert (len(trace), sum(loaded.dropped.values())) == (int(case["rows_kept"]), int(case["rows_dropped"]))
    stamps = zip(trace.arrival_ns.tolist(), trace.delay_ns.tolist(), strict=True)
    pairs = [f"{p},{o}" for p, o in zip(trace.num_prompt_tokens, trace.num_output_tokens, strict=True)]
    expected = [int(Decimal(text) * 10**9) if text else None for text in case["offsets_s"].split(";")]
    assert [ns if delay < 0 else None for ns, delay in stamps] == expected
    assert ";".join(pairs) == case["prompt,output tokens"]


@pytest.mark.parametrize("case", [c for c in CASES if c["outcome"] == "refuse" and c["file"][:2] != "42"], ids=title)
def test_what_cannot_be_read_is_refused_with_the_reason(case: dict[str, str]):
    with pytest.raises(ValueError, match=SAID[case["file"][:2]]):
        load_trace(FAULTS / case["file"], **options(case))


@pytest.mark.parametrize("name", ["lengths.pkl", "lengths.csv"])
def test_a_pickle_is_never_loaded_whatever_its_name(name: str, tmp_path: Path):
    (tmp_path / name).write_bytes(pickle.dumps([(12, 34), ([1, 2, 3], [4, 5])], protocol=2))

    with pytest.raises(ValueError, match=r"never loaded.*convert it.*input_len,output_len"):
        load_trace(tmp_path / name)


def test_whole_nanoseconds_survive_where_floats_would_not():
    azure = load_trace(FAULTS / "01_azure_7digit_crlf_no_final_newline.csv").trace
    vidur = load_trace(FAULTS / "38_second_floor.csv").trace

    assert azure.arrival_ns.tolist() == [0, 5_000_000, 76_544_000]
    assert vidur.arrival_ns.tolist() == [0, 100_000_000, 800_000_000, 950_000_000]


def test_a_dropped_file_keeps_the_failed_row_and_says_what_went():
    loaded = load_trace(FAULTS / "07_zero_negative_tokens.csv", on_bad_row="drop")

    assert loaded.trace.status.tolist() == [1]
    assert loaded.trace.source_row.tolist() == [3]
    assert loaded.dropped == {"no prompt tokens": 1, "negative token count": 2}


def test_rows_out_of_order_are_sorted_stably_and_said():
    loaded = load_trace(FAULTS / "06_non_monotonic.csv")

    assert loaded.trace.source_row.tolist() == [3, 2, 4]
    assert any("1 rows arrive before the row above them" in note for note in loaded.notes)


def test_a_turn_with_a_delay_waits_for_its_parent():
    trace = load_trace(FAULTS / "30_missing_timestamp_turn.jsonl", on_bad_row="drop").trace

    assert trace.delay_ns.tolist() == [-1, 2_000_000_000]
    assert (trace.parent.tolist(), trace.session.tolist()) == ([-1, 0], [0, 0])


def test_mooncake_ids_are_chained_512_token_blocks():
    trace = load_trace(FAULTS / "21_mooncake_wrong_block_size.jsonl").trace

    assert (trace.block_size, trace.block_scope, trace.block_partial) == (512, "chained", "ceil")
    assert trace.block_ids_of(0).tolist() == [0, 1, 2]
