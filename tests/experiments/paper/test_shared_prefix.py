"""The claims about decode over a shared prefix, on rows made by hand."""

from pathlib import Path

import pytest

from experiments.bench.cases import shapes_of
from experiments.bench.rows import row_of, with_ratios
from experiments.bench.stored import read
from experiments.bench.timing import Timing
from experiments.paper.kernels import KernelLab
from experiments.paper.runs import Lab
from experiments.paper.shared_prefix import CASE, judge, tables


def lab_of(times_us, **statuses):
    """Every shape takes these microseconds, by peer."""
    rows = []
    for shape in shapes_of(CASE):
        for peer, time_us in times_us.items():
            status = statuses.get(peer.replace("-", "_"), "ok")
            timing = Timing(time_us * 1e-6, 0.0, 0.0, 2, 7) if status == "ok" else None
            rows.append(row_of(shape, peer, contiguous=False, status=status, timing=timing, device="a device"))
    kernels = KernelLab()
    kernels._done[CASE] = with_ratios(rows)
    kernels.lacking = lambda: ""
    return Lab({}, 1, True, 1, kernels)


def verdicts(lab):
    return {result.claim.id: result.verdict for result in judge(lab)}


GOAL = "shared-prefix-decode/fa3/64x(8k+512)"


@pytest.mark.parametrize("ours_us,goal,plain", [(100, "pass", "pass"), (164, "miss", "pass"), (400, "miss", "miss")])
def test_half_of_flash_attention_3_and_never_slower_than_plain(ours_us, goal, plain):
    lab = lab_of({"pagelab-shared": ours_us, "pagelab": 340, "fa3": 326})
    found = verdicts(lab)

    assert found.pop(GOAL) == goal
    assert len(found) == 7
    assert set(found.values()) == {plain}


def test_without_flash_attention_3_its_claim_is_not_measured_and_the_others_are():
    found = verdicts(lab_of({"pagelab-shared": 100, "pagelab": 340}))

    assert found.pop(GOAL) == "not here"
    assert set(found.values()) == {"pass"}


def test_a_wrong_kernel_misses_everything():
    assert set(
        verdicts(lab_of({"pagelab-shared": 1, "pagelab": 340, "fa3": 326}, pagelab_shared="wrong")).values()
    ) == {"miss"}


def test_the_curve_says_how_many_times_as_fast():
    latency, curve = tables(lab_of({"pagelab-shared": 100, "pagelab": 340, "fa3": 326}))

    assert latency.columns == ("shape", "pagelab-shared", "pagelab", "fa3")
    assert len(latency.rows) == 7
    assert curve.columns == ("shared tokens", "pagelab", "fa3")
    assert [row[0] for row in curve.rows] == [1024, 2048, 4096, 8192, 16384]
    assert curve.rows[0][1:] == pytest.approx((3.4, 3.26))


def test_a_stored_result_without_the_case_is_no_success_either():
    lab = Lab({}, 1, True, 1, KernelLab(Path("results/reference/kernels")))
    if not any(row["case"] == CASE for row in read(lab.kernels.stored).table()):
        assert set(verdicts(lab).values()) == {"not here"}
        assert "run bench kernel --case shared-prefix" in judge(lab)[0].lacking


def test_without_a_device_nothing_is_measured():
    lab = Lab({}, 1, True, 1, KernelLab())
    if lab.kernels.lacking():
        assert set(verdicts(lab).values()) == {"not here"}
        assert tables(lab) == []
