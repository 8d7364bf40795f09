"""`ranks_main` keeps what a part has said before it ended, stops what hangs, and its exit code says what was missed."""

from __future__ import annotations

import json
import sys
import time

import pytest

from experiments import exits
from experiments.bench import ranks_main
from experiments.bench.ranks_main import PartDone, derived, exit_code, main, report

HELD = {"model": "small", "ranks": 2, "measure": "tables", "value": 1, "unit": "", "must": "1", "holds": True}
MISSED = {**HELD, "holds": False}
PLAIN = {**HELD, "measure": "output", "value": 1234.5678, "unit": "tok/s", "must": "", "holds": None}
KERNELS = [
    {"case": "8B", "step": "decode", "part": "collectives", "kernel": "nccl", "num_calls": 64.0, "time_s": 0.002},
    {"case": "8B", "step": "decode", "part": "GEMMs", "kernel": "gemm", "num_calls": 128.0, "time_s": 0.006},
]


@pytest.mark.parametrize(
    "parts,code",
    [
        ([PartDone("equal", 1.0, "ok", [HELD, PLAIN], [])], exits.OK),
        ([PartDone("equal", 1.0, "ok", [HELD, MISSED], [])], exits.INVALID),
        ([PartDone("kill", 1.0, "stopped after 60 s", [HELD], [])], exits.FAILED_CELLS),
        ([PartDone("kill", 1.0, "stopped after 60 s", [MISSED], [])], exits.INVALID),
    ],
)
def test_the_exit_code_says_what_was_missed_before_what_was_not_measured(parts, code):
    assert exit_code(parts) == code


def test_the_report_has_every_row_with_what_must_hold_and_the_parts_of_a_step():
    lines = report([PartDone("scale", 2.0, "ok", [HELD, MISSED, PLAIN], KERNELS)])
    text = "\n".join(lines)
    assert "(1: holds)" in text
    assert "(1: MISSED)" in text
    assert "output: 1,234.57 tok/s" in text
    assert "collectives        2.000 ms  25.0%" in text


def test_ratios_are_made_of_what_both_parts_have_measured():
    def row(ranks, measure, value):
        return {**PLAIN, "ranks": ranks, "measure": measure, "value": value}

    scale = [
        row(2, "output", 900.0),
        row(2, "decode step at 256, median", 0.008),
        row(2, "decode step without collectives, median", 0.006),
    ]
    alone = [row(1, "output", 600.0), row(1, "decode step at 256, median", 0.012)]
    parts = [PartDone("scale", 1.0, "ok", scale, []), PartDone("alone", 1.0, "ok", alone, [])]
    assert [one["value"] for one in derived(parts).rows] == pytest.approx([1.5, 1.5, 0.75])
    assert [one["value"] for one in derived(parts[:1]).rows] == pytest.approx([0.75])
    assert derived(parts[1:]).rows == []


def stand_in(monkeypatch, code):
    """Each part runs this instead."""
    real = ranks_main.subprocess.Popen
    monkeypatch.setattr(
        ranks_main.subprocess, "Popen", lambda command, **options: real([sys.executable, "-c", code], **options)
    )


def test_what_a_part_said_is_kept_when_it_dies(monkeypatch, tmp_path, capsys):
    stand_in(monkeypatch, f"print('row ' + {json.dumps(json.dumps(PLAIN))}, flush=True); raise SystemExit(7)")
    assert main(["--device", "cpu", "--only", "equal", "-o", str(tmp_path)]) == exits.FAILED_CELLS
    assert "equal: ended with exit code 7" in capsys.readouterr().out
    assert "1234.5678" in (tmp_path / "ranks.csv").read_text()
    kept = json.loads((tmp_path / "ranks.json").read_text())
    assert kept["rows"] == [PLAIN]
    assert kept["parts"][0]["ended"] == "ended with exit code 7"


def test_a_part_that_hangs_is_stopped_and_the_rest_is_not_begun_without_time(monkeypatch, capsys):
    stand_in(monkeypatch, "import time; time.sleep(600)")
    monkeypatch.setattr(ranks_main, "LEAST_S", 0.1)
    began = time.monotonic()
    code = main(["--device", "cpu", "--only", "equal", "--only", "kill", "--seconds", "1"])
    assert (code, time.monotonic() - began < 30) == (exits.FAILED_CELLS, True)
    out = capsys.readouterr().out
    assert "equal: stopped after 1 s" in out
    assert "kill: not run: no time was left" in out


def test_without_devices_nothing_is_measured(capsys):
    torch = pytest.importorskip("torch")
    if torch.cuda.device_count() > 1:
        pytest.skip("there are two devices")
    assert main([]) == exits.NO_DEVICE
    assert "2 ranks need one each" in capsys.readouterr().err


@pytest.mark.slow
def test_on_a_cpu_all_that_must_hold_holds(tmp_path, capsys):
    pytest.importorskip("torch")
    assert main(["--device", "cpu", "--only", "equal", "--only", "kill", "-o", str(tmp_path)]) == exits.OK
    out = capsys.readouterr().out
    assert "MISSED" not in out
    assert out.count("holds)") == 6
