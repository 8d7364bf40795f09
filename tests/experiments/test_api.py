"""The Python interface: frames out, nothing printed, nothing written."""

import pytest

from experiments.api import Config, compare, run
from workloads import synthetic_trace

SMALL = {"kv_tokens": 4000, "step_model": "linear:0.02,0,0,0", "max_model_len": 2048, "map_frames": 3}


def test_run_gives_frames_and_checks(trace_file, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run(Config.of(**SMALL), trace_file)
    assert result.summary.loc[0, "num_finished"] == 40
    assert len(result.requests) == 40
    assert result.memory_map["time_s"].nunique() == 3
    assert {"time_s", "kv_live_frac"} <= set(result.timeline)
    assert all(check["holds"] for check in result.checks)
    assert capsys.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []


def test_compare_takes_a_trace_and_a_plain_dict():
    trace = synthetic_trace("constant", "fixed:100,20", 12, 0)
    made = compare({**SMALL, "block_size": [4, 32], "allocator": ["paged", "orca-max"]}, trace)
    assert list(made.summary["block_size"]) == [4, 32, 4, 32]
    assert set(made.summary["num_finished"]) == {12}


def test_mistakes_are_value_errors():
    with pytest.raises(ValueError, match="did you mean"):
        run({"block_sise": 3})
    with pytest.raises(ValueError, match="unknown allocator"):
        run({**SMALL, "allocator": "peged"}, synthetic_trace("constant", "fixed:10,2", 3, 0))
