"""Traces for other tools: what is written comes back as it was, or is refused with what would be lost."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.workloads.formats import FILES
from workloads import FORMATS_TO_WRITE, Trace, export_trace, load_trace, synthetic_trace
from workloads.exports import TARGETS, losses

few = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
COLUMNS = ["num_prompt_tokens", "num_output_tokens", "limit_tokens", "priority", "parent", "delay_ns", "block_ids"]


def whole_ms(**more):
    return Trace.build(np.array([0, 5, 5, 90]) * 10**6, [600, 20, 1024, 7], [5, 0, 9, 1], **more)


@pytest.mark.parametrize("to", FORMATS_TO_WRITE)
@few
@given(data=st.data())
def test_what_is_not_refused_comes_back_the_same(to: str, data, tmp_path: Path):
    text, options = data.draw(FILES[data.draw(st.sampled_from(sorted(FILES)))])
    (tmp_path / "in").write_bytes(text.encode())
    trace = load_trace(tmp_path / "in", **options).trace
    out = tmp_path / "out"
    out.unlink(missing_ok=True)

    if losses(trace, TARGETS[to].write(trace), to):
        with pytest.raises(ValueError, match=f"{to} would lose "):
            export_trace(trace, out, to)
        assert not out.exists()
        return
    export_trace(trace, out, to)
    size = {"block_size": trace.block_size} if TARGETS[to].has_ids and trace.block_size else {}
    back = load_trace(out, to, tokenizer=TARGETS[to].tokenizer, **size).trace

    assert (back.arrival_ns - back.arrival_ns[0]).tolist() == (trace.arrival_ns - trace.arrival_ns[0]).tolist()
    assert {name: getattr(back, name).tolist() for name in COLUMNS} == {
        name: getattr(trace, name).tolist() for name in COLUMNS
    }
    same = [session[:, None] == session[None, :] for session in (back.session, trace.session)]
    assert (same[0] == same[1]).all()
    assert (back.block_scope, back.block_size) == (trace.block_scope, trace.block_size) or not len(trace.block_ids)


@pytest.mark.parametrize("to", sorted(set(FORMATS_TO_WRITE) - {"vllm-custom"}))
def test_plain_rows_on_whole_milliseconds_fit_everywhere_but_in_a_list_of_prompts(to: str, tmp_path: Path):
    export_trace(whole_ms(), tmp_path / "out", to)

    assert load_trace(tmp_path / "out", to).trace.sha256() == whole_ms().sha256()


@pytest.mark.parametrize(
    "to,trace,lost",
    [
        ("azure", synthetic_trace(num_requests=20), r"arrival_ns of \d+ rows \(row 2: \d+00 instead of \d+\)"),
        ("mooncake", synthetic_trace(num_requests=20), "arrival_ns of 19 rows"),
        ("vidur", whole_ms(session=[0, 0, 1, -1]), r"session of 3 rows \(row 1: -1 instead of 0\)"),
        ("vidur", whole_ms(limit_tokens=[7, -1, -1, -1]), r"limit_tokens of 1 rows \(row 1: -1 instead of 7\)"),
        ("azure", whole_ms(priority=[0, 2, 0, 0]), "priority of 1 rows"),
        ("blis", whole_ms(priority=[0, -2, 0, 0]), "it cannot be read back.*negative priority"),
        ("timed-trace", whole_ms(session=[0, 0, -1, -1], parent=[-1, 0, -1, -1]), "parent of 1 rows"),
        ("vllm-custom", whole_ms(), "arrival_ns of 3 rows"),
        (
            "burstgpt",
            whole_ms(
                block_size=512,
                block_scope="chained",
                block_partial="ceil",
                block_offsets=[0, 2, 2, 4, 4],
                block_ids=[0, 1, 0, 2],
            ),
            r"block_ids \(4 ids of 512 tokens\)",
        ),
        (
            "mooncake",
            whole_ms(
                block_size=512,
                block_scope="content",
                block_partial="ceil",
                block_offsets=[0, 2, 2, 4, 4],
                block_ids=[0, 1, 0, 2],
            ),
            "they would mean 512-token chained ceil blocks instead of 512-token content ceil",
        ),
    ],
)
def test_what_would_be_lost_is_named_and_nothing_is_written(to: str, trace: Trace, lost: str, tmp_path: Path):
    with pytest.raises(ValueError, match=f"{to} would lose .*{lost}.*--lossy"):
        export_trace(trace, tmp_path / "out", to)
    assert list(tmp_path.iterdir()) == []


def test_a_lossy_file_is_written_and_says_what_is_gone(tmp_path: Path):
    said = export_trace(synthetic_trace(num_requests=20), tmp_path / "out.jsonl", "mooncake", lossy=True)

    assert said[0].startswith("lost: arrival_ns of 19 rows")
    first = json.loads((tmp_path / "out.jsonl").read_text().splitlines()[0])
    assert first.keys() == {"timestamp", "input_length", "output_length"}


def test_blis_gets_its_header_beside_the_rows(tmp_path: Path):
    export_trace(whole_ms(), tmp_path / "t.csv", "blis")

    assert "time_unit: microseconds" in (tmp_path / "t.yaml").read_text()


def test_the_size_of_other_blocks_is_said(tmp_path: Path):
    ids = {"block_offsets": [0, 3, 3, 7, 8], "block_ids": [0, 1, 2, 0, 1, 3, 4, 9]}
    trace = whole_ms(block_size=256, block_scope="chained", block_partial="ceil", **ids)

    said = export_trace(trace, tmp_path / "t.jsonl", "timed-trace")

    assert any("ids stand for 256 tokens, which the file does not say" in note for note in said)


def test_an_unknown_format_is_refused_with_the_known_ones(tmp_path: Path):
    with pytest.raises(ValueError, match="need one of azure, burstgpt, mooncake"):
        export_trace(whole_ms(), tmp_path / "x", "parquet")
