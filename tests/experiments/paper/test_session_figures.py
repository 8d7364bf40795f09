"""Figs 16 and 17: what a shared prefix saves, and that reservations of full prompts are all alike."""

from __future__ import annotations

import pytest

from experiments.paper import fig16, fig17, verb
from experiments.paper.runs import Lab
from experiments.paper.session_curves import SessionKey


def verdicts(results):
    return {result.claim.id: result.verdict for result in results}


def curves(lab, panel, knees):
    """Made-up points: quick below each system's rate, slow above."""
    for key in panel.runs(lab):
        late = key.rate_per_s >= knees[key.system]
        point = {"mean_normalized_latency_s": 2.0 if late else 0.1, "mean_batch_size": 1.0, "prefix_hit_tokens": 336.0}
        lab._done[key] = {**point, "iter_sharing_saving_frac": 0.5, "num_finished": 1.0, "prefix_hit_frac": 0.5}
    return lab


def lab_of(**knees):
    systems = {name.replace("_", "-"): rate for name, rate in knees.items()}
    return curves(Lab(num_seeds=1, quick=True), fig17.PANEL, systems)


def test_the_three_orcas_run_seven_full_prompts_and_end_alike():
    lab = lab_of(paged=1.05, orca_oracle=0.6, orca_pow2=0.6, orca_max=0.6)

    found = verdicts(fig17.FIG17.judge(lab))

    exact = {name for name in found if name.endswith(("concurrent", "coincide"))}
    assert len(exact) == 4
    assert {found[name] for name in exact} == {"pass"}
    assert found["fig17/order"] == "pass"
    assert found["fig17/paged-over-orca-max"] == "reported"


def test_paging_that_carries_nothing_is_a_miss():
    lab = lab_of(paged=0.5, orca_oracle=0.6, orca_pow2=0.6, orca_max=0.6)  # below the first of its rates

    assert verdicts(fig17.FIG17.judge(lab))["fig17/order"] == "miss"


def test_shorter_prompts_are_not_alike(monkeypatch):
    monkeypatch.setattr(fig17, "PROMPT", 200)

    found = verdicts(fig17.FIG17.judge(lab_of(paged=1.05, orca_oracle=0.6, orca_pow2=0.6, orca_max=0.6)))

    assert found["fig17/orca-max/concurrent"] == "pass"
    assert found["fig17/orca-oracle/concurrent"] == found["fig17/orcas-coincide"] == "miss"


def test_a_longer_prefix_must_gain_more():
    lab = Lab(num_seeds=1, quick=True)
    curves(lab, fig16.PANELS["1-shot"], {"paged": 70.0, "orca-oracle": 36.0})
    curves(lab, fig16.PANELS["5-shot"], {"paged": 60.0, "orca-oracle": 12.0})
    assert set(verdicts(fig16.FIG16.judge(lab)).values()) == {"pass", "reported"}

    curves(lab, fig16.PANELS["5-shot"], {"paged": 40.0, "orca-oracle": 12.0})  # no rate at all
    assert verdicts(fig16.FIG16.judge(lab))["fig16/longer-gains-more"] == "miss"


def test_a_shared_prefix_is_stored_and_computed_once():
    shared, alone = (
        SessionKey("paper-fig16-5shot", "paged", 4.0, 0, 20, shares=shares).run({}) for shares in (True, False)
    )

    found = shared["prefix_hit_tokens"] / (336 * shared["num_finished"])
    assert found == pytest.approx(1 - 1 / shared["num_finished"])
    assert alone["prefix_hit_tokens"] == alone["sharing_saving_frac"] == 0
    assert shared["sharing_saving_frac"] > 0.3
    assert shared["mean_normalized_latency_s"] < alone["mean_normalized_latency_s"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fig16", "fig17", "fig14"])
def test_the_quick_ones_from_the_stand_ins(name):
    results = verb.measure([name], Lab(num_seeds=1, quick=True))[0].results

    assert {result.verdict for result in results} <= {"pass", "reported"}
