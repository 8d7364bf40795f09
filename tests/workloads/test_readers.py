"""Readers: what each recognises, what it refuses, and what it says."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from workloads import Trace, TraceError, load_trace, save_trace

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
VIDUR = "arrived_at,num_prefill_tokens,num_decode_tokens\n"
OWN = "arrival_ns,num_prompt_tokens,num_output_tokens\n"


def written(tmp_path: Path, content: str | bytes, name: str = "trace.csv") -> Path:
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize(
    "content,message",
    [
        (b"", "the file is empty"),
        (b"\n  \n", "the file is empty"),
        (b"\x1f\x8b", "gzip stream ends early"),
        (gzip.compress(b"a,b\n1,2\n" * 50, mtime=0)[:-9], "gzip stream ends early"),
        (gzip.compress(b"", mtime=0), "the file is empty"),
        (b"<!DOCTYPE html>\n<html>", "an HTML page.*curl -L"),
        (b"\n<html>", "an HTML page"),
        (gzip.compress(b"version https://git-lfs.github.com/spec/v1\n", mtime=0), "Git LFS pointer"),
        (b"PK\x03\x04rest", "a zip archive"),
        (b"\x28\xb5\x2f\xfdrest", "zstd"),
        ("a,b\n".encode("utf-16"), "UTF-16"),
        (b"a,b\n1,\xff\n", "csv:2: not UTF-8"),
        (b"a,b\n1,\x00\n", "csv:2: binary data"),
        (b"PAR1 and no more", "damaged Parquet"),
        (b"x,y\n1,2\n", "csv:1: no known format; the first line is 'x,y'.*azure: .*vidur: .*lengths: "),
    ],
    ids=lambda value: "content" if isinstance(value, bytes) else value,
)
def test_what_is_no_trace_is_named_for_what_it_is(content: bytes, message: str, tmp_path: Path):
    with pytest.raises(TraceError, match=message):
        load_trace(written(tmp_path, content))


def test_a_directory_and_a_missing_file_are_refused(tmp_path: Path):
    with pytest.raises(TraceError, match="a directory"):
        load_trace(tmp_path)
    with pytest.raises(TraceError, match="no such file"):
        load_trace(tmp_path / "none.csv")


def test_gzip_is_recognised_by_content_not_by_name(tmp_path: Path):
    text = VIDUR + "0.5,10,2\n0.7,10,2\n"
    plain = load_trace(written(tmp_path, text, "a.csv.gz")).trace
    packed = load_trace(written(tmp_path, gzip.compress(text.encode()), "b.csv")).trace

    assert plain.sha256() == packed.sha256()
    assert packed.source == {"format": "vidur", "file": "b.csv"}


def test_a_byte_order_mark_is_skipped_and_said(tmp_path: Path):
    loaded = load_trace(written(tmp_path, b"\xef\xbb\xbf" + (OWN + "0,1,1\n").encode()))

    assert len(loaded.trace) == 1
    assert any("byte order mark" in note for note in loaded.notes)


@pytest.mark.parametrize(
    "text,message",
    [
        (AZURE + "2030-02-30 00:00:00,1,1\n", "csv:2: not a date and time: TIMESTAMP is on 2030-02-30"),
        (AZURE + "2030-01-01 24:00:00,1,1\n", "csv:2: not a date and time"),
        (AZURE + "2030-01-01 00:00:00,1,1\n2030-01-01 00:00:01Z,1,1\n", "csv:3: zone on some rows only"),
        (AZURE + "2030-01-01 00:00:00,1\n", "csv:2: wrong number of fields"),
        (AZURE + "2030-01-01 00:00:00,1.5,1\n", "csv:2: not a whole number: ContextTokens is 1.5"),
        (AZURE + "2030-01-01 00:00:00,9e30,1\n", "csv:2: number out of range"),
        (AZURE + "2030-01-01 00:00:00,9999999999,1\n", "csv:2: token count out of range"),
        (AZURE, "no row is left"),
        (VIDUR + "nan,1,1\n", "csv:2: not finite: arrived_at is nan"),
        (VIDUR + "-0.1,1,1\n", "csv:2: time out of range"),
        (VIDUR + "1e300,1,1\n", "csv:2: time out of range"),
        (VIDUR + "soon,1,1\n", "csv:2: not a number: arrived_at is 'soon'"),
        ("arrived_at,arrival_time,num_prefill_tokens,num_decode_tokens\n0,0,1,1\n", "both arrived_at and"),
        ("input_len,input_len,output_len\n1,1,1\n", "column 'input_len' appears twice"),
        ("input_len,output_len\n7564.5,1\n", "csv:2: not a whole number"),
        (OWN + "5,1,1,1\n", "csv:2: wrong number of fields"),
        (OWN + ",1,1\n", "csv:2: missing value: arrival_ns"),
        (OWN.replace("\n", ",parent\n") + "0,1,1,0\n", "csv:2: parent is not an earlier row"),
        (OWN.replace("\n", ",parent\n") + "5,1,1,\n4,1,1,0\n", "csv:3: earlier than its parent"),
        (OWN.replace("\n", ",block_ids\n") + "0,1,1,7\n", "block_ids without block_size"),
        (OWN.replace("\n", ",session\n") + "0,1,1,-2\n", "csv:2: session out of range: -2"),
        ("# pagelab-trace {oops\n" + OWN + "0,1,1\n", "csv:1: the pagelab-trace line holds no JSON object"),
        ("# pagelab-trace {}\narrival_ns,x\n0,1\n", "csv:2: no column 'num_prompt_tokens'"),
    ],
)
def test_a_bad_row_is_refused_with_its_line(text: str, message: str, tmp_path: Path):
    with pytest.raises(TraceError, match=message):
        load_trace(written(tmp_path, text))


def test_azure_dates_cross_midnight_leap_days_and_zones(tmp_path: Path):
    rows = "2024-02-28T23:59:59.9Z,1,1\n2024-02-29T00:00:00Z,1,1\n2024-03-01T01:00:00+01:00,1,1\n"

    trace = load_trace(written(tmp_path, AZURE + rows)).trace

    assert trace.arrival_ns.tolist() == [0, 10**8, 10**8 + 86_400 * 10**9]


def test_vidur_takes_float_residue_exponents_and_dates(tmp_path: Path):
    rows = "0.30000000000000004,1,1\n5e-1,1,1\n0.054696,1,1\n"
    seconds = load_trace(written(tmp_path, VIDUR + rows)).trace
    dates = VIDUR.replace("arrived_at", "arrival_time") + "2030-01-01 00:00:00.25,1,1\n2030-01-01 00:00:01,1,1\n"

    assert seconds.arrival_ns.tolist() == [0, 245_304_000, 445_304_000]
    assert load_trace(written(tmp_path, dates)).trace.arrival_ns.tolist() == [0, 750_000_000]


def test_lengths_have_no_arrivals_and_ignore_columns_they_do_not_need(tmp_path: Path):
    loaded = load_trace(written(tmp_path, "index,input_len,output_len,has_input\n0,7564.0,3,1\n1,2,1,0\n"))

    assert loaded.trace.num_prompt_tokens.tolist() == [7564, 2]
    assert loaded.trace.arrival_ns.tolist() == [0, 0]
    assert any("every request arrives at 0" in note for note in loaded.notes)


def mooncake(*rows: str) -> str:
    return "\n".join(rows) + "\n"


@pytest.mark.parametrize(
    "row,message",
    [
        ('{"timestamp": 0, "input_length": 10}', "missing key: output_length or output_tokens"),
        ('{"timestamp": 0, "input_length": true, "output_length": 1}', "not a number: input_length is True"),
        (
            '{"timestamp": 0, "input_length": "9", "input_tokens": 9, "output_length": 1}',
            "two keys for one value",
        ),
        ('{"timestamp": 0, "delay": 1, "input_length": 9, "output_length": 1}', "both timestamp and delay"),
        ('{"delay": 1, "input_length": 9, "output_length": 1, "session_id": "a"}', "delay without a parent"),
        ('{"timestamp": 0, "input_length": 9, "output_length": 1, "hash_ids": []}', "too few block ids"),
        ('{"timestamp": 0, "input_length": 9, "output_length": 1, "hash_ids": [1, 2]}', "too many block ids"),
        ('{"timestamp": 0, "input_length": 9, "output_length": 1, "hash_ids": [1.5]}', "not block ids"),
        (
            '{"timestamp": 0, "input_length": 9, "output_length": 1, "hash_ids": [-1]}',
            "block id out of range",
        ),
        ("[1, 2]", "not a JSON object"),
    ],
)
def test_a_bad_mooncake_row_is_refused_with_its_line(row: str, message: str, tmp_path: Path):
    good = '{"timestamp": 0, "input_length": 10, "output_length": 5}'

    with pytest.raises(TraceError, match=f"jsonl:2: {message}.*read 2 = kept 1 \\+ dropped 1"):
        load_trace(written(tmp_path, mooncake(good, row), "m.jsonl"))


def test_bailian_keys_are_not_taken_for_mooncake(tmp_path: Path):
    row = '{"chat_id": 1, "timestamp": 2, "input_length": 20, "output_length": 5, "hash_ids": [1, 2]}'

    trace = load_trace(
        written(tmp_path, f"{row}\n{row.replace('1,', '7,', 1).replace('2,', '3.5,', 1)}", "b.jsonl")
    ).trace

    assert trace.source["format"] == "bailian"
    assert trace.arrival_ns.tolist() == [0, 1_500_000_000]
    assert (trace.block_size, trace.block_scope, trace.block_partial) == (16, "content", "ceil")


def test_ids_that_are_not_chained_are_called_content_ids(tmp_path: Path):
    rows = [f'{{"timestamp": {t}, "input_length": 1024, "output_length": 5, "hash_ids": [{t}, 7]}}' for t in (1, 2)]

    loaded = load_trace(written(tmp_path, mooncake(*rows), "m.jsonl"))

    assert loaded.trace.block_scope == "content"
    assert any("not prefix-chained" in note for note in loaded.notes)


def test_a_turn_waits_for_the_last_turn_that_ends(tmp_path: Path):
    turn = '{{"session_id": "s", {when}, "input_length": 9, "output_length": {out}}}'
    rows = [turn.format(when='"timestamp": 5', out=3), turn.format(when='"delay": 1', out=0)]
    rows.append(turn.format(when='"delay": 2.5', out=4))

    trace = load_trace(written(tmp_path, mooncake(*rows), "m.jsonl")).trace

    assert trace.parent.tolist() == [-1, 0, 0]
    assert trace.delay_ns.tolist() == [-1, 1_000_000, 2_500_000]
    assert trace.status.tolist() == [0, 1, 0]


def test_children_of_dropped_rows_become_roots_and_delayed_ones_are_dropped(tmp_path: Path):
    text = OWN.replace("\n", ",parent,delay_ns\n") + "0,-4,1,,\n1,1,1,0,\n2,1,1,0,9\n3,1,1,1,\n"

    loaded = load_trace(written(tmp_path, text), on_bad_row="drop")

    assert loaded.trace.parent.tolist() == [-1, 0]
    assert loaded.dropped == {"negative token count": 1, "delay without a parent": 1}
    assert any("1 rows lost their parent" in note for note in loaded.notes)


def test_own_files_keep_their_clock_and_sort_parents_along(tmp_path: Path):
    text = OWN.replace("\n", ",parent\n") + "700,1,1,\n500,2,1,\n800,3,1,1\n"

    trace = load_trace(written(tmp_path, text)).trace

    assert trace.arrival_ns.tolist() == [500, 700, 800]
    assert trace.parent.tolist() == [-1, -1, 0]
    assert trace.source_row.tolist() == [3, 2, 4]


def test_a_broken_line_of_an_own_file_is_counted(tmp_path: Path):
    row = '{"arrival_ns": 0, "num_prompt_tokens": 1, "num_output_tokens": 1}'

    loaded = load_trace(written(tmp_path, f"{row}\n{row[:-9]}\n{row}\n", "t.jsonl"), on_bad_row="drop")

    assert (loaded.num_read, loaded.dropped) == (3, {"not JSON": 1})
    assert loaded.trace.source_row.tolist() == [1, 3]


def test_a_stated_block_size_must_agree(tmp_path: Path):
    blocks = {
        "block_ids": [1, 2],
        "block_offsets": [0, 2],
        "block_scope": "content",
        "block_partial": "floor",
    }
    save_trace(Trace.build([0], [9], [1], block_size=4, **blocks), tmp_path / "t.csv")

    assert load_trace(tmp_path / "t.csv", block_size=4).trace.block_size == 4
    with pytest.raises(TraceError, match="the file says blocks of 4 tokens, 16 asked for"):
        load_trace(tmp_path / "t.csv", block_size=16)
    with pytest.raises(ValueError, match="has no block ids"):
        load_trace(written(tmp_path, AZURE + "2030-01-01 00:00:00,1,1\n"), block_size=16)


def test_the_caller_may_name_the_format_but_not_bend_it(tmp_path: Path):
    path = written(tmp_path, VIDUR + "0,1,1\n")

    assert load_trace(path, "vidur").trace.source["format"] == "vidur"
    with pytest.raises(TraceError, match="csv:1: not in the format 'azure', which is CSV TIMESTAMP"):
        load_trace(path, "azure")
    with pytest.raises(ValueError, match="format: need one of auto, pagelab"):
        load_trace(path, "csv")
    with pytest.raises(ValueError, match="on_bad_row"):
        load_trace(path, on_bad_row="skip")


def test_most_rows_on_shared_stamps_are_said(tmp_path: Path):
    loaded = load_trace(written(tmp_path, VIDUR + "0,1,1\n" * 5 + "3,1,1\n" * 5))

    assert any("8 of 10 rows share their stamp" in note for note in loaded.notes)


def test_a_row_with_very_many_block_ids_fits_in_a_csv_field(tmp_path: Path):
    ids = np.arange(10**6, 10**6 + 40_000)
    blocks = {"block_size": 1, "block_scope": "content", "block_partial": "ceil"}
    trace = Trace.build([0], [40_000], [1], block_ids=ids, block_offsets=[0, 40_000], **blocks)
    save_trace(trace, tmp_path / "t.csv")

    assert load_trace(tmp_path / "t.csv").trace.sha256() == trace.sha256()


def test_quoted_csv_is_read_and_broken_quotes_are_refused(tmp_path: Path):
    quoted = '"arrived_at","num_prefill_tokens","num_decode_tokens"\r\n"1.5","10","2"\r\n\r\n2,3,4\r\n'

    assert load_trace(written(tmp_path, quoted)).trace.source_row.tolist() == [2, 4]
    with pytest.raises(TraceError, match=r"csv:\d+: not CSV"):
        load_trace(written(tmp_path, VIDUR + '1,2,"' + "3" * 140_000 + "\n"))
    with pytest.raises(TraceError, match="no known format"):
        load_trace(written(tmp_path, "x" * 140_000))


def test_an_unknown_suffix_is_refused_before_anything_is_written(tmp_path: Path):
    with pytest.raises(ValueError, match=r"saved as \.csv"):
        save_trace(Trace.build([0], [1], [1]), tmp_path / "trace.txt")
    assert list(tmp_path.iterdir()) == []


def test_other_tools_can_read_what_was_saved(tmp_path: Path):
    pd = pytest.importorskip("pandas")
    trace = Trace.build(np.arange(3), [4, 5, 6], [1, 0, 2])
    save_trace(trace, tmp_path / "t.csv")
    save_trace(trace, tmp_path / "t.parquet")

    csv, parquet = pd.read_csv(tmp_path / "t.csv", comment="#"), pd.read_parquet(tmp_path / "t.parquet")

    assert csv["num_prompt_tokens"].tolist() == parquet["num_prompt_tokens"].tolist() == [4, 5, 6]
