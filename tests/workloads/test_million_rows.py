"""A million rows of any format are a trace within ten seconds and 500 MB."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from workloads import Trace, save_trace

# Not ru_maxrss: a child starts with its parent's.
no_proc = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
pytestmark = [pytest.mark.slow, no_proc]
N = 1_000_000
MEASURE = """
import re, sys, time
from pathlib import Path
from workloads import load_trace
begun = time.perf_counter()
trace = load_trace(sys.argv[1]).trace
taken = time.perf_counter() - begun
print(len(trace), taken, re.search(r"VmHWM:\\s*(\\d+) kB", Path("/proc/self/status").read_text())[1])
"""


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


def mooncake(columns):
    rows, last = [], 0
    for us, p, o in zip(*(column.tolist() for column in columns), strict=True):
        first, last = last, last - (-p // 512)
        ids = ", ".join(map(str, range(first, last)))
        rows.append(f'{{"timestamp": {us // 1000}, "input_length": {p}, "output_length": {o}, "hash_ids": [{ids}]}}')
    return "\n".join(rows)


@pytest.mark.parametrize("name", ["azure", "burstgpt", "mooncake", "own.csv", "own.jsonl", "own.parquet"])
def test_a_million_rows_are_read_in_ten_seconds_and_500_mb(name: str, columns, tmp_path: Path):
    path = tmp_path / name
    if name in globals():
        path.write_text(globals()[name](columns), encoding="utf-8")
    else:
        save_trace(Trace.build(columns[0] * 1000, *columns[1:]), path)

    done = subprocess.run([sys.executable, "-c", MEASURE, str(path)], capture_output=True, text=True, check=True)

    num_rows, seconds, kib = done.stdout.split()
    assert int(num_rows) == N
    assert float(seconds) < 10
    assert int(kib) < 500_000
