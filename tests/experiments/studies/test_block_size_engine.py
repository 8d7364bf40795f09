"""Block sizes on the engine: judged on its curves, beside the kernel's; nothing is said where nothing was measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.paper import size_runs
from experiments.paper.kernels import KernelLab
from experiments.paper.runs import Lab
from experiments.studies import block_size_engine as study

KERNELS = Path(__file__).resolve().parents[3] / "results" / "reference" / "kernels"
SIZES = (1, 8, 16, 32, 64, 128, 256)


def row(size, latency):
    fixed = {"output_tok_per_s": 8000.0, "mean_batch_size": 40.0, "num_preemptions": size // 64, "trace_sha256": "ab12"}
    return {**fixed, "mean_normalized_latency_s": latency, "kv_internal_frac": size / 1000, "mean_host_gap_s": 2e-4}


@pytest.fixture
def lab(monkeypatch):
    """Curves of the engine by hand; rows of the kernel as they are kept."""
    latency = {size: 0.02 + 1e-5 * size for size in SIZES} | {1: 0.0212}
    monkeypatch.setattr(size_runs, "lacking", lambda lab, model, lengths: "")
    curve = size_runs.Curve(13.0, "Test card", {size: row(size, value) for size, value in latency.items()})
    monkeypatch.setattr(size_runs, "curve", lambda lab, model, lengths: curve)
    lab = Lab(kernels=KernelLab(KERNELS))
    lab.curve = curve
    return lab


def verdicts(lab):
    return {result.claim.id.removeprefix(f"{study.NAME}/"): result for result in study.judge(lab)}


def test_the_good_sizes_are_judged_and_the_ends_are_told_with_what_limits_them(lab):
    found = verdicts(lab)
    assert set(found) == {f"{heads}/{what}" for heads in ("mha", "gqa") for what in ("best", "smallest", "largest")}
    assert found["mha/best"].verdict == "pass"
    assert found["gqa/largest"].verdict == "reported"
    assert found["gqa/largest"].got == pytest.approx(100 * 0.02256 / 0.02016)
    assert "25.6 % of the pool internal against 1.6 %" in found["gqa/largest"].note
    assert "4 preemptions against 0" in found["gqa/largest"].note
    kernel = study.kernel_over_base(lab, "gqa")
    assert tuple(kernel) == (1, 2, 4, 8, 16, 32, 64, 128, 256) or set(SIZES) <= set(kernel)
    assert f"kernel {kernel[1]:.3f} times" in found["gqa/smallest"].note


def test_a_best_size_outside_the_papers_range_is_a_miss(lab):
    lab.curve.by_size[1]["mean_normalized_latency_s"] = 0.018
    assert verdicts(lab)["gqa/best"].verdict == "miss"


def test_both_sides_are_in_table_and_figure(lab):
    import matplotlib.pyplot as plt

    (table,) = study.tables(lab)
    assert len(table.rows) == 2 * len(SIZES)
    (picture,) = study.pictures(lab)
    figure = plt.figure(figsize=(8, picture.height_in), layout="constrained")
    frame = picture.draw(figure)
    plt.close(figure)
    assert set(frame["heads"]) == {"mha", "gqa"}
    assert frame["kernel_over_16"].notna().all()
    assert len(figure.axes) == 3


def test_without_a_device_nothing_is_measured_or_drawn(monkeypatch):
    monkeypatch.setattr(size_runs, "lacking", lambda lab, model, lengths: "no device: torch sees none here")
    assert {result.verdict for result in study.judge(Lab())} == {"not here"}
    assert study.tables(Lab()) == study.pictures(Lab()) == []


def test_without_measurements_of_kernels_their_side_is_left_out(lab, monkeypatch):
    monkeypatch.setattr(KernelLab, "lacking", lambda self: "no device")
    assert study.kernel_over_base(lab, "mha") == {}
    assert "kernel" not in verdicts(lab)["mha/largest"].note
