"""Invented bad files, one for each fault seen in public traces. What INDEX.tsv says of each is tested through the
command line, in tests/experiments/test_trace_faults.py; here is what it does not say."""

import pickle
from pathlib import Path

import pytest

from workloads import load_trace

FAULTS = Path(__file__).parent / "faults"


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
