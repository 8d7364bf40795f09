"""What a trace refuses to be, and what it promises about its columns."""

import pickle
import subprocess
import sys
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest

from workloads import Trace

BLOCKS = {"block_size": 4, "block_scope": "chained", "block_partial": "ceil"}


@pytest.mark.parametrize(
    "change,message",
    [
        ({"arrival_ns": [5, 3]}, "arrival_ns: row 1 is earlier than the row before"),
        ({"arrival_ns": [-1, 3]}, "arrival_ns: row 0 is below 0"),
        ({"arrival_ns": [0.5, 1.5]}, "arrival_ns: need integers, got dtype float64"),
        ({"arrival_ns": [0, 2**70]}, "arrival_ns: need integers|does not fit"),
        ({"num_prompt_tokens": [1, -1]}, "num_prompt_tokens: row 1 is below 0"),
        ({"num_prompt_tokens": [0, 1]}, "num_prompt_tokens: row 0 is 0 on a row with output tokens"),
        ({"num_prompt_tokens": [1]}, "num_prompt_tokens: need 2 rows as in arrival_ns, got 1"),
        ({"num_output_tokens": [1, 2**31]}, "num_output_tokens: row 1 is over"),
        ({"limit_tokens": [0, 1]}, "limit_tokens: row 0 is 0"),
        ({"parent": [-1, 1]}, "parent: row 1 is not an earlier row"),
        ({"delay_ns": [-1, 5]}, "delay_ns: row 1 is set on a row without a parent"),
        (
            {"num_output_tokens": [0, 1], "parent": [-1, 0], "delay_ns": [-1, 5]},
            "delay_ns: row 1 counts from a failed parent",
        ),
        ({"block_ids": [1], "block_offsets": [0, 1, 1]}, "block_size: 0 means no block ids"),
        ({"block_ids": [1], "block_offsets": [0, 0, 0], **BLOCKS}, "block_offsets: must rise from 0"),
        ({"block_ids": [1], "block_offsets": [0, 1, 1], **BLOCKS}, "block_ids: row 0 has the wrong number"),
        ({"block_ids": [-1] * 3, "block_offsets": [0, 3, 3], **BLOCKS}, "block_ids: need at least 0, got -1"),
        ({**BLOCKS, "block_scope": "local"}, "block_scope and block_partial"),
        ({"block_size": -4}, "block_size: need at least 0, got -4"),
    ],
)
def test_a_contradiction_is_refused_by_column_and_row(change: dict, message: str):
    plain = {"arrival_ns": [0, 9], "num_prompt_tokens": [9, 5], "num_output_tokens": [2, 2]}

    with pytest.raises(ValueError, match=message):
        Trace.build(**plain | change)


def test_columns_are_read_only_copies():
    stamps = np.array([0, 1])
    trace = Trace.build(stamps, [1, 1], [1, 1])

    stamps[0] = 1
    assert trace.arrival_ns.tolist() == [0, 1]
    with pytest.raises(ValueError, match="read-only"):
        trace.arrival_ns[0] = 1
    with pytest.raises(FrozenInstanceError):
        trace.name = "other"


def test_the_constructor_wants_int64_columns_and_says_so():
    trace = Trace.build([0], [1], [1])

    with pytest.raises(ValueError, match=r"arrival_ns: need a one-dimensional int64 array, got int32 \(1,\)"):
        replace(trace, arrival_ns=np.zeros(1, np.int32))


def test_block_ids_of_a_row_are_its_own():
    trace = Trace.build(
        [0, 1, 2], [9, 3, 4], [1, 1, 1], block_ids=[7, 8, 9, 7, 5], block_offsets=[0, 3, 4, 5], **BLOCKS
    )

    assert [trace.block_ids_of(i).tolist() for i in range(3)] == [[7, 8, 9], [7], [5]]
    assert trace.slice(1, 3).block_ids.tolist() == [7, 5]


def test_a_row_without_output_has_failed_and_is_kept():
    trace = Trace.build([0, 0], [0, 5], [0, 1])

    assert trace.status.tolist() == [1, 0]


def test_a_turn_whose_parent_is_cut_away_becomes_a_root_at_the_parents_time():
    trace = Trace.build([0, 40, 40], [1, 1, 1], [1, 1, 1], parent=[-1, -1, 1], delay_ns=[-1, -1, 9])

    cut = trace.slice(2, 3)

    assert (cut.parent.tolist(), cut.delay_ns.tolist(), cut.arrival_ns.tolist()) == ([-1], [-1], [0])


def test_a_trace_travels_to_another_process_unchanged():
    trace = Trace.build([0, 3], [1, 2], [3, 4], source={"seed": "1"})

    assert pickle.loads(pickle.dumps(trace)).sha256() == trace.sha256()


def test_the_hash_does_not_depend_on_the_machine_or_the_version():
    trace = Trace.build([0, 3], [1, 2], [3, 0], limit_tokens=[-1, 7])

    assert trace.sha256() == "338601698d1cf8f4dd4301f0620d0ece6e02665ad4672f7d1099c65c1930878b"


def test_the_frame_has_a_row_a_request():
    frame = Trace.build([0, 3], [9, 2], [3, 0], block_ids=[1, 2, 3, 4], block_offsets=[0, 3, 4], **BLOCKS).to_frame()

    assert frame["arrival_ns"].tolist() == [0, 3]
    assert [ids.tolist() for ids in frame["block_ids"]] == [[1, 2, 3], [4]]
    assert frame["status"].tolist() == [0, 1]


def test_importing_workloads_imports_no_table_library():
    code = "import sys, workloads; print([m for m in ('pandas', 'pyarrow', 'torch') if m in sys.modules])"

    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
