"""A million rows of any format are a trace within ten seconds of CPU time and 500 MB."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from workloads import FORMATS, Trace, save_trace

# Not ru_maxrss: a child starts with its parent's.
no_proc = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
pytestmark = [pytest.mark.slow, no_proc]
N = 1_000_000
MEASURE = """
import json, re, sys, time
from pathlib import Path
from workloads import load_trace
begun = time.process_time()
loaded = load_trace(sys.argv[1], **json.loads(sys.argv[2]))
taken = time.process_time() - begun
print(loaded.num_read, taken, re.search(r"VmHWM:\\s*(\\d+) kB", Path("/proc/self/status").read_text())[1])
"""
MOST_CPU_S = 10
MOST_KIB = 500_000
OPTIONS = {
    "timed_trace": {"format": "timed-trace"},
    "sharegpt": {"recipe": "first-human-pair", "tokenizer": "words"},
    "vllm_custom": {"tokenizer": "words"},
}
WORDS = ("a", "tree", "of", "pages", "and", "of", "what", "is", "on", "them")
TEXTS = [" ".join(WORDS[i % len(WORDS)] for i in range(count)) for count in range(1, 61)]


@pytest.fixture(scope="module")
def columns():
    rng = np.random.default_rng(0)
    arrival_us = np.cumsum(rng.exponential(2e5, N)).astype(np.int64)
    prompt, output = (np.clip(rng.lognormal(mu, 1, N), 1, 8000).astype(np.int64) for mu in (5, 4))
    return arrival_us, prompt, output


def azure(columns):
    dates = np.datetime64("2030-01-01T00:00:00") + columns[0].astype("timedelta64[us]")
    rows = (f"{d}0,{p},{o}".replace("T", " ") for d, p, o in zip(dates.astype(str), *columns[1:], strict=True))
    return "\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows])


def burstgpt(columns):
    head = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type"
    rows = (
        f"{us // 10**6}.{us // 10**5 % 10},aaaaaaaa-0000-4000-8000-{us % 5000:012},4,ChatGPT,{p},{o},{p + o},API log"
        for us, p, o in zip(*(column.tolist() for column in columns), strict=True)
    )
    return "\n".join([head, *rows])


def id_rows(columns, size):
    """(row number, microseconds, prompt, output, ids as text) with new ids for every prompt."""
    last = 0
    for i, (us, p, o) in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
        first, last = last, last - (-p // size)
        yield i, us, p, o, ", ".join(map(str, range(first, last)))


def mooncake(columns):
    return "\n".join(
        f'{{"timestamp": {us // 1000}, "input_length": {p}, "output_length": {o}, "hash_ids": [{ids}]}}'
        for _, us, p, o, ids in id_rows(columns, 512)
    )


def mooncake_sessions(columns):
    def when(i, us):
        return f'"delay": {us % 9000}' if i % 4 else f'"timestamp": {us / 1000}'

    return "\n".join(
        f'{{{when(i, us)}, "session_id": "aaaaaaaa-0000-4000-8000-{i // 4:012}", '
        f'"input_length": {p}, "output_length": {o}, "hash_ids": [{ids}]}}'
        for i, us, p, o, ids in id_rows(columns, 512)
    )


def timed_trace(columns):
    return "\n".join(
        f'{{"timestamp": {us / 1e6:.3f}, "input_length": {p}, "output_length": {o}, "hash_ids": [{ids}]}}'
        for _, us, p, o, ids in id_rows(columns, 16)
    )


def bailian(columns):
    return "\n".join(
        f'{{"chat_id": {i}, "parent_chat_id": {i - 5000 if i % 3 and i > 5000 else -1}, "timestamp": {us / 1e6:.3f}, '
        f'"input_length": {p}, "output_length": {o}, "type": "text", "turn": 1, "hash_ids": [{ids}]}}'
        for i, us, p, o, ids in id_rows(columns, 16)
    )


def vidur(columns):
    rows = (f"{us / 1e6:.6f},{p},{o}" for us, p, o in zip(*(column.tolist() for column in columns), strict=True))
    return "\n".join(["arrived_at,num_prefill_tokens,num_decode_tokens", *rows])


def length_list(columns):
    rows = (f"{p},{o}" for p, o in zip(*(column.tolist() for column in columns[1:]), strict=True))
    return "\n".join(["input_len,output_len", *rows])


def blis(columns):
    head = "request_id,tenant_id,session_id,round_index,prefix_group,prefix_length,input_tokens,output_tokens,"
    rows = (
        f"{i},t{i % 3},s{i // 4},{i % 4},{'g,20' if i % 2 else ','},{p},{o},{p + 7},{us},{'ok' if i % 9 else 'error'}"
        for i, (us, p, o) in enumerate(zip(*(column.tolist() for column in columns), strict=True))
    )
    return "\n".join([f"{head}server_input_tokens,arrival_time_us,status", *rows])


def texts(columns):
    """Two texts of 30 words in the mean for each row."""
    return ((TEXTS[p % len(TEXTS)], TEXTS[o % len(TEXTS)]) for p, o in zip(*columns[1:], strict=True))


def vllm_custom(columns):
    return "\n".join(f'{{"prompt": "{prompt}", "output_tokens": {len(answer)}}}' for prompt, answer in texts(columns))


def sharegpt(columns):
    talks = (
        f'{{"id": "x{i}", "conversations": [{{"from": "{"human" if i % 9 else "gpt"}", "value": "{prompt}"}}, '
        f'{{"from": "gpt", "value": "{answer}"}}]}}'
        for i, (prompt, answer) in enumerate(texts(columns))
    )
    return f"[{', '.join(talks)}]"


FOREIGN = {
    made.__name__: made
    for made in (
        azure,
        bailian,
        blis,
        burstgpt,
        length_list,
        mooncake,
        mooncake_sessions,
        sharegpt,
        timed_trace,
        vidur,
        vllm_custom,
    )
}


def test_no_format_is_left_out():
    assert {name.removesuffix("_sessions").replace("_", "-") for name in FOREIGN} == {
        name.replace("lengths", "length-list") for name in FORMATS
    } - {"auto", "pagelab"}


@pytest.mark.parametrize("name", [*FOREIGN, "own.csv", "own.jsonl", "own.parquet"])
def test_a_million_rows_are_read_in_ten_seconds_and_500_mb(name: str, columns, tmp_path: Path, record_property):
    path = tmp_path / name
    if name in FOREIGN:
        path.write_text(FOREIGN[name](columns), encoding="utf-8")
    else:
        save_trace(Trace.build(columns[0] * 1000, *columns[1:]), path)

    command = [sys.executable, "-c", MEASURE, str(path), json.dumps(OPTIONS.get(name, {}))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    path.unlink()

    num_rows, seconds, kib = done.stdout.split()
    record_property("measured", f"{float(seconds):.1f} s of CPU, {int(kib) // 1000} MB")
    assert int(num_rows) == N
    assert float(seconds) < MOST_CPU_S
    assert int(kib) < MOST_KIB
