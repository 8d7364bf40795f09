"""Whatever happens to a file, it is read with every row counted, or refused by name: never another exception."""

from pathlib import Path

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from workloads import Loaded, TraceError, load_trace

SAMPLES = [path.read_bytes() for path in sorted((Path(__file__).parent / "faults").glob("[0-9]*"))]
SAMPLES.append(b'{"pagelab_trace": {"block_size": 4, "block_scope": "content", "block_partial": "ceil"}}\n')
SAMPLES[-1] += b'{"arrival_ns": 5, "num_prompt_tokens": 5, "num_output_tokens": 1, "block_ids": [1, 2]}\n' * 2
SAMPLES.append(
    b"# pagelab-trace {}\narrival_ns,num_prompt_tokens,num_output_tokens,parent,delay_ns\n0,1,1,,\n5,1,1,0,7\n"
)
BYTES = [b"", b"0", b"-", b"9" * 25, b'"', b"}", b",", b"\n", b"e9", b"\xc3", b"[", b"null"]


def outcome(path: Path, policy) -> Loaded | str:
    talks = b'"conversations"' in path.read_bytes()
    words = {"recipe": "first-human-pair", "tokenizer": "words"} if talks else {}
    try:
        return load_trace(path, on_bad_row=policy, **words)
    except TraceError as error:
        return str(error)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sample=st.sampled_from(SAMPLES),
    edits=st.lists(st.tuples(st.integers(0, 250), st.sampled_from(BYTES)), max_size=4),
    policy=st.sampled_from(["refuse", "drop"]),
)
@example(
    sample=b'{"timestamp": 0e9999999999999999999999999, "input_length": 1, "output_length": 1}',
    edits=[],
    policy="refuse",
)
def test_a_damaged_file_is_read_or_refused_and_nothing_else(sample: bytes, edits: list, policy, tmp_path: Path):
    for at, text in edits:
        sample = sample[:at] + text + sample[at + 1 :]
    path = tmp_path / "trace"
    path.write_bytes(sample)

    loaded = outcome(path, policy)

    if isinstance(loaded, str):
        assert loaded.startswith(str(path))
    else:
        assert loaded.num_read == len(loaded.trace) + sum(loaded.dropped.values())
