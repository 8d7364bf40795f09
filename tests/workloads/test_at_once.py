"""Files read at once, in pieces, give what rows read one by one give; and no bad row slips through."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.workloads.formats import FILES
from tests.workloads.test_round_trips import outcome
from workloads import content, load, load_trace, tables
from workloads.readers import id_lists, turns
from workloads.readers.json_array import elements

few = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
TALK = '{"from": "human", "value": "hello there"}, {"from": "gpt", "value": "yes"}'
BLIS = (
    "vllm_priority,session_id,round_index,prefix_group,prefix_length,input_tokens,output_tokens,"
    "server_input_tokens,arrival_time_us,status"
)
CIRCLE = """{"chat_id": 6, "parent_chat_id": 7, "timestamp": 9, "input_length": 5, "output_length": 5}
{"chat_id": 7, "parent_chat_id": 6, "timestamp": 9, "input_length": 5, "output_length": 5}"""
PLAIN = {
    "mooncake": [
        '{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2], "session_id": "a"}',
        '{"timestamp": 1.5, "input_length": 600, "output_length": 0, "hash_ids": [1, 2], "session_id": "a"}',
        '{"delay": 7, "input_length": 9, "output_length": 5, "session_id": "a"}',
        '{"delay": 0.25, "input_length": 9, "output_length": 5, "session_id": "a"}',
        '{"timestamp": 9, "input_length": 0, "output_length": 0, "hash_ids": [], "session_id": ""}',
        '{"timestamp": 9, "input_length": 1030, "output_length": 1, "hash_ids": [1, 3, 4]}',
    ],
    "aliases": ['{"created_time": 3, "input_tokens": 5, "output_tokens": 1}'] * 3,
    "timed-trace": ['{"timestamp": 0.5, "input_length": 20, "output_length": 5, "hash_ids": [1, 2]}'] * 2,
    "bailian": [
        '{"chat_id": 5, "parent_chat_id": -1, "timestamp": 1, "input_length": 20, "output_length": 5, "type": "1e5x"}',
        '{"chat_id": 3, "parent_chat_id": 8, "timestamp": 1.5, "input_length": 3, "output_length": 0, "hash_ids": [7]}',
        '{"chat_id": 4, "timestamp": 2, "input_length": 3, "output_length": 5}',
        '{"chat_id": 9, "parent_chat_id": 5, "timestamp": 2, "input_length": 3, "output_length": 5, "hash_ids": [9]}',
        '{"chat_id": 1, "parent_chat_id": 9, "timestamp": 3.5, "input_length": 3, "output_length": 5, "hash_ids": [9]}',
    ],
    "blis": [
        BLIS,
        "1,a,0,,,9,5,0,1700000000000000,ok",
        "0,a,1,g,20,9,5,70,1700000000000001.5,",
        ",,,,,9,,7,1700000000000002,error",
        "2,b,,g,,9,5,,1700000000000003,ok",
        "2,a,2,,,9,5,8,1700000000000004,ok",
    ],
    "vllm-custom": [
        '{"prompt": "a b\\u00a0c", "output_tokens": 7, "x": [1e5, null]}',
        '{"prompt":"ä","output_tokens":1}',
    ],
    "sharegpt": [f'[{{"conversations": [{TALK}]}},', '{"conversations": []},', f'{{"conversations": [{TALK}]}}]'],
}
OPTIONS = {
    "vllm-custom": {"tokenizer": "words"},
    "sharegpt": {"tokenizer": "words", "recipe": "first-human-pair"},
    "timed-trace": {"format": "timed-trace"},
}
FALLS_BACK = {
    "mooncake": [
        '{"timestamp": 9, "input_length": 5}',
        '{"timestamp": 9, "input_length": -5, "output_length": 5}',
        '{"timestamp": -0.0000000001, "input_length": 5, "output_length": 5}',
        '{"timestamp": 1e3, "input_length": 5, "output_length": 5}',
        '{"timestamp": 1.5e3, "input_length": 5, "output_length": 5}',
        '{"timestamp": NaN, "input_length": 5, "output_length": 5}',
        '{"timestamp": "1e3", "input_length": 5, "output_length": 5}',
        '{"timestamp": "x", "input_length": 5, "output_length": 5}',
        '{"timestamp": 9, "input_length": 5, "output_length": 5, "x": 1}',
        '{"timestamp": 9, "timestamp": 9, "input_length": 5, "output_length": 5}',
        '{"timestamp": 9, "created_time": 9, "input_length": 5, "output_length": 5}',
        '{"timestamp": 9, "delay": 9, "input_length": 5, "output_length": 5, "session_id": "a"}',
        '{"input_length": 5, "output_length": 5, "session_id": "a"}',
        '{"delay": 9, "input_length": 5, "output_length": 5, "session_id": "new"}',
        '{"delay": -9, "input_length": 5, "output_length": 5, "session_id": "a"}',
        '{"delay": 9, "input_length": 5, "output_length": 5}',
        '{"timestamp": 0, "input_length": 5, "output_length": 5, "session_id": "b"}\n{"delay": 1e2, "session_id": "b"}',
        '{"timestamp": 9, "input_length": 5, "output_length": 5, "session_id": ["a"]}',
        '{"timestamp": 9, "input_length": 5, "output_length": 5, "session_id": 5}',
        '{"timestamp": 9, "input_length": 5, "output_length": 5, "hash_ids": []}',
        '{"timestamp": 9, "input_length": 5, "output_length": 5, "hash_ids": [5, 6]}',
        '{"timestamp": 9, "input_length": 5, "output_length": 5, "hash_ids": [-5]}',
        '{"timestamp": 9, "input_length": 5, "output_length": 5, "hash_ids": [5.0]}',
        '{"timestamp": 9, "input_length": 512, "output_length": 5, "hash_ids": [2]}',
        '{"timestamp": 9, "input_length": 5, "output_length": 5, "hash_ids": null}',
        '{"timestamp": 9, "input_length": 0, "output_length": 5}',
        '{"timestamp": 9, "input_length": 3000000000, "output_length": 5}',
        '{"timestamp": 9, "input_length": 5, "output_length": 5} {"timestamp": 9}',
        '{"timestamp": 9, "input_length": 5, "output_',
        "\n",
    ],
    "bailian": [
        '{"chat_id": 5, "timestamp": 9, "input_length": 5, "output_length": 5}',
        '{"chat_id": 6, "parent_chat_id": 6, "timestamp": 9, "input_length": 5, "output_length": 5}',
        CIRCLE,
        '{"chat_id": -1, "timestamp": 9, "input_length": 5, "output_length": 5}',
        '{"chat_id": 6, "parent_chat_id": 1, "timestamp": 3, "input_length": 5, "output_length": 5}',
        '{"chat_id": 6, "timestamp": 9, "input_length": 5, "output_length": 5, "hash_ids": []}',
        '{"chat_id": 6, "timestamp": 9, "input_length": 17, "output_length": 5, "hash_ids": [1]}',
        '{"chat_id": "6", "timestamp": 9, "input_length": 5, "output_length": 5}',
        '{"chat_id": 6, "timestamp": 9, "input_length": 5}',
        '{"chat_id": 6, "timestamp": 9, "input_length": 5, "output_length": 5, "x": NaN}',
        '{"chat_id": 6, "timestamp": 9, "input_length": 5, "output_length": 5, "x": {}}',
        '{"chat_id": 6, "timestamp": 9, "input_length": 5, "output_length": 5, "x": 1e99999999999999999999}',
        '{"chat_id": 6, "timestamp": 9, "input_length": 5, "output_length": 5, "x": "a\tb"}',
        '{"chat_id": 6, "timestamp": 9, "input_length": 5, "output_length": 5, "x": "\\q"}',
        '{"chat_id": 6, "timestamp": 9, "input_length": 5, "output_length": 5, "x": 01}',
        '{"chat_id": 6, "timestamp": 9, "input_length": 5, "output_length": 5, "x": [[]]}',
        '{"chat_id": 6, "timestamp": 9, "input_length": 5, "output_length": 5, "x": Inf}',
        '{"chat_id": 6, "timestamp": 9, "input_length": 5, "output_length": 5, "chat_id": 6}',
    ],
    "blis": [
        "1,a,2,,,9,5,0,1700000000000009,ok",
        "1,a,4,,,9,5,0,1700000000000009,ok",
        "1,b,1,,,9,5,0,1700000000000001,ok",
        "1,c,1,,,9,5,0,1700000000000009,ok\n1,c,0,,,9,5,0,1700000000000009,ok",
        "-1,,,,,9,5,0,1700000000000009,ok",
        "1.0,,,,,9,5,0,1700000000000009,ok",
        "1,,,,,9,,0,1700000000000009,ok",
        "1,,,,,9,5,0,1700000000000009, ok",
        "1, a,3,,,9,5,0,1700000000000009,ok",
        "1,,,,,9,5,0,ok",
        '1,,,"g",,9,5,0,1700000000000009,ok',
        "1,,,,,9,5,0,-1,ok",
    ],
    "vllm-custom": [
        '{"prompt": 5, "output_tokens": 1}',
        '{"prompt": "a"}',
        '{"prompt": "a", "output_tokens": 1.0}',
        '{"prompt": "a", "output_tokens": true}',
        '{"prompt": "a", "output_tokens": -1}',
        '{"prompt": "", "output_tokens": 1}',
        '{"prompt": "a", "output_tokens": 1, "x": NaN}',
        '{"prompt": "a"',
    ],
    "sharegpt": ["[]]", '{"conversations": [5]}]', '{"conversations": [{"from": "human", "value": 5}]}]'],
}


@pytest.fixture
def in_small_pieces(monkeypatch):
    """A few rows, or less than one, at a time."""
    monkeypatch.setattr(content, "FIRST_CHUNK", 64)
    monkeypatch.setattr(content, "PIECE", 16)
    monkeypatch.setattr(id_lists, "ROOM", 1)
    monkeypatch.setattr(id_lists, "COMPARED_AT_ONCE", 2)
    monkeypatch.setattr(tables, "MOVED_AT_ONCE", 2)
    monkeypatch.setattr(load, "AT_ONCE_BYTES", 0)


def lines_of(name: str, bad: str) -> str:
    if name == "sharegpt":
        return "\n".join([*PLAIN[name][:-1], bad])
    return "\n".join([*PLAIN[name], bad, ""])


@pytest.mark.parametrize("name", PLAIN)
def test_plain_rows_of_every_kind_are_read_at_once(name: str, in_small_pieces, monkeypatch, tmp_path: Path):
    path, options = tmp_path / "file", OPTIONS.get(name, {})
    path.write_text("\n".join(PLAIN[name]), encoding="utf-8")
    one_by_one = outcome(path, options, 1 << 60, monkeypatch)
    assert "num_read" in one_by_one, one_by_one

    reader = load.READERS["mooncake" if name == "aliases" else name]
    monkeypatch.setattr(reader, "read", None)

    assert outcome(path, options, 0, monkeypatch) == one_by_one


@pytest.mark.parametrize("name,bad", [(name, bad) for name, all_bad in FALLS_BACK.items() for bad in all_bad])
def test_a_row_that_is_not_plain_is_looked_at_by_itself(
    name: str, bad: str, in_small_pieces, monkeypatch, tmp_path: Path
):
    path, options = tmp_path / "file", OPTIONS.get(name, {})
    path.write_text(lines_of(name, bad), encoding="utf-8")
    reader, looked = load.READERS[name], []
    read = reader.read
    monkeypatch.setattr(reader, "read", lambda *of: (looked.append(1), read(*of))[1])

    for policy in ("refuse", "drop"):
        at_once = outcome(path, options, 0, monkeypatch, on_bad_row=policy)
        # No JSON array at all is refused by both in the same words.
        assert looked.pop() if looked else "not JSON" in at_once
        assert at_once == outcome(path, options, 1 << 60, monkeypatch, on_bad_row=policy)
        looked.clear()


@pytest.mark.parametrize("name", FILES)
@few
@given(data=st.data())
def test_pieces_of_any_size_give_the_same_trace(name: str, data, in_small_pieces, tmp_path: Path):
    monkeypatch = pytest.MonkeyPatch()
    text, options = data.draw(FILES[name])
    path = tmp_path / "file"
    path.write_bytes(text.encode())

    with monkeypatch.context():
        one_by_one = outcome(path, options, 1 << 60, monkeypatch)
        monkeypatch.setattr(content, "PIECE", data.draw(st.integers(1, 400)))
        assert outcome(path, options, 0, monkeypatch) == one_by_one
    monkeypatch.undo()


@pytest.mark.parametrize("name", ["bailian", "mooncake", "timed-trace", "blis", "sharegpt", "vllm-custom"])
@few
@given(data=st.data())
def test_what_a_sound_file_may_hold_is_plain(name: str, data, in_small_pieces, tmp_path: Path):
    monkeypatch = pytest.MonkeyPatch()
    text, options = data.draw(FILES[name])
    path = tmp_path / "file"
    path.write_bytes(text.encode())
    loaded = outcome(path, options, 1 << 60, monkeypatch)
    monkeypatch.undo()
    if isinstance(loaded, str) or ("input_length" in text and "1e" in text):
        return  # a row refers to a parent that came later, or a float was written with an exponent

    with monkeypatch.context():
        monkeypatch.setattr(load.READERS[name], "read", None)
        assert outcome(path, options, 0, monkeypatch) == loaded
    monkeypatch.undo()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4) | st.sampled_from([1.5, -2e-9, 1e300]), st.lists
)


@settings(max_examples=60, deadline=None)
@given(values=st.lists(JSON, max_size=6), size=st.integers(1, 9), cut=st.integers(0, 60), blank=st.booleans())
def test_an_array_is_read_element_by_element_as_it_is_at_once(values, size: int, cut: int, blank: bool):
    text = json.dumps(values, ensure_ascii=blank, indent=2 if blank else None).encode()
    for part in (text, text[:-cut], text + b" 1", text.replace(b",", b"", 1), text.replace(b"]", b",]", 1)):
        chunks = (part[i : i + size] for i in range(0, len(part), size))
        try:
            expected = json.loads(part)
        except ValueError:
            expected = None
        if isinstance(expected, list):
            assert list(elements(chunks)) == expected
        else:
            with pytest.raises(ValueError, match=r"^(no |more)"):
                list(elements(chunks))


@few
@given(data=st.data(), n=st.integers(0, 12))
def test_turns_follow_the_latest_that_can_be_followed(data, n: int):
    session = data.draw(st.lists(st.integers(-1, 2), min_size=n, max_size=n))
    output = data.draw(st.lists(st.booleans(), min_size=n, max_size=n))
    expected, last = [], {}
    for row, (key, can) in enumerate(zip(session, output, strict=True)):
        expected.append(last.get(key, -1) if key >= 0 else -1)
        last |= {key: row} if can else {}

    found = turns.latest_before(np.array(session, np.int64), np.array(output, np.bool_))

    assert found.tolist() == expected
    roots = [row if parent < 0 else None for row, parent in enumerate(expected)]
    for row, parent in enumerate(expected):
        roots[row] = roots[parent] if parent >= 0 else row
    assert turns.origins(found).tolist() == roots


def test_a_trace_takes_over_the_columns_that_were_read(tmp_path: Path, in_small_pieces):
    path = tmp_path / "file"
    path.write_text("\n".join(PLAIN["mooncake"]), encoding="utf-8")

    trace = load_trace(path).trace

    assert not trace.block_ids.flags.writeable
    assert trace.block_ids.tolist() == [1, 2, 1, 2, 1, 3, 4]
