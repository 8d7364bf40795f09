"""The worker's kernels compile ahead of time, and its calls work where Triton is missing."""

import subprocess
import sys

from engine.worker.kernels import launch
from tests.engine.model.kernels.compiled import ARCHITECTURES, ROOT, compiled

WITHOUT_TRITON = """
import sys
sys.modules["triton"] = None
import torch
from engine.model.sampling import SamplingTensors, sample
from engine.worker.kernels.prepare import prepare_decode
from engine.worker.kernels.scatter import scatter_int32
words = lambda *values: torch.tensor(values, dtype=torch.int32)
longs = torch.zeros(3, 2, dtype=torch.int64)
lens = words(5, 0)
table = torch.zeros(2, 4, dtype=torch.int32)
scatter_int32(table.view(-1), torch.tensor([[1], [7]], dtype=torch.int32), 1)
prepare_decode(words(9, 0), lens, table, words(1), longs[0], longs[1], longs[2], words(0, 0), 4)
rows = SamplingTensors(torch.zeros(1), torch.zeros(1).long(), words(0), torch.ones(1))
print(longs.tolist(), lens.tolist(), sample(torch.eye(3)[1:2], rows, longs[1, :1]).tolist())
"""


def cases():
    """(name, kernel, types of its arguments, what is compiled into it)."""
    types = dict.fromkeys(("LAST_TOKENS", "SEQ_LENS", "TABLE", "NUM_ROWS", "STEP_LENS"), "*i32")
    types |= dict.fromkeys(("IDS", "POSITIONS", "SLOTS"), "*i64")
    types |= {"batch": "i32", "table_r": "i32"}
    for block_size in (16, 24):
        options = {"BLOCK_SIZE": block_size, "ROWS": launch.ROWS, "num_warps": 4}
        yield f"prepare {block_size}", launch.prepare_kernel, types, options
    pairs = {"TARGET": "*i32", "PAIRS": "*i32", "between": "i32", "count": "i32"}
    yield "scatter", launch.scatter_kernel, pairs, {"BLOCK": launch.PAIRS, "num_warps": 4}


def test_every_kernel_compiles_for_both_architectures_without_spills():
    records = compiled(__name__)
    assert {(record["case"], record["architecture"]) for record in records} == {
        (name, number) for name, *_ in cases() for number in ARCHITECTURES
    }
    assert [record["spill_bytes"] for record in records] == [0] * len(records)


def test_steps_are_prepared_and_sampled_on_the_cpu_where_triton_is_missing():
    command = [sys.executable, "-c", WITHOUT_TRITON]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[[9, 0], [5, 0], [29, -1]] [6, 0] [1]\n"
