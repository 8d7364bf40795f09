"""Verdicts, and the lists of claims and deviations."""

import json
import math

import pytest

from experiments.paper import chapter, verb
from experiments.paper.claims import Claim, Result, exact, not_yet, over_seeds
from experiments.paper.deviations import DEVIATIONS
from experiments.paper.runs import Lab


@pytest.mark.parametrize(
    "got,verdict",
    [(10, "pass"), (12, "pass"), (8, "pass"), (12.01, "miss"), (7.99, "miss"), (math.nan, "miss"), (math.inf, "miss")],
)
def test_a_claim_passes_up_to_its_tolerance(got, verdict):
    result = exact(Claim("a/b", "m", 10, tolerance=2), got)

    assert result.verdict == verdict
    assert result.to_dict()["pass"] is (verdict == "pass")


@pytest.mark.parametrize("got,verdict", [(-3.0, "pass"), (26.0, "pass"), (26.1, "miss"), (float("nan"), "miss")])
def test_a_cost_may_be_anything_up_to_its_limit(got, verdict):
    result = exact(Claim("a", "cost, at most", 26.0, "%", at_most=True), got)
    assert result.verdict == verdict
    assert result.to_dict()["at_most"] is True


def test_a_claim_without_tolerance_is_exact():
    assert exact(Claim("a", "m", 819_200), 819_200).verdict == "pass"
    assert exact(Claim("a", "m", 819_200), 819_201).verdict == "miss"


def test_a_fitted_claim_is_never_passed_but_can_miss():
    claim = Claim("a", "m", 30.42, tolerance=1, fitted=True)

    assert [exact(claim, got).verdict for got in (30.0, 33.0)] == ["calibrated", "miss"]
    assert [exact(claim, got).to_dict()["pass"] for got in (30.0, 33.0)] == [None, False]


def test_a_reported_claim_is_neither_passed_nor_missed_and_says_why():
    claim = Claim("a", "m", 132.44, why_reported="hangs on the step time")

    for got in (132.44, 73.0):
        result = exact(claim, got)
        assert (result.verdict, result.to_dict()["pass"]) == ("reported", None)
        assert "hangs on the step time" in result.to_dict()["note"]
    assert verb.exit_code([exact(claim, 73.0)]) == 0


def test_a_number_that_does_not_exist_is_a_miss_in_plain_json():
    row = exact(Claim("a", "m", 2.0, tolerance=1.0), math.nan).to_dict()

    assert (row["verdict"], row["got"]) == ("miss", None)


@pytest.mark.parametrize("result", [not_yet(Claim("a", "m", 1.0)), exact(Claim("a", "m", None), 1.0)])
def test_what_is_not_measured_or_has_no_number_is_not_yet(result):
    assert result.verdict == "not yet"
    assert result.to_dict()["pass"] is None


def test_mean_and_sd_are_over_seeds():
    result = over_seeds(Claim("a", "m", 2.0), [1.0, 2.0, 3.0])

    assert (result.got, result.sd, result.num_seeds) == (2.0, 1.0, 3)
    assert over_seeds(Claim("a", "m", 2.0), [2.0]).sd is None


def test_exit_codes_follow_the_verdicts():
    passed, missed = (exact(Claim("a", "m", 1.0), got) for got in (1.0, 2.0))
    later_on = not_yet(Claim("b", "m", 1.0))

    assert verb.exit_code([passed, later_on]) == 0
    assert verb.exit_code([later_on]) == 3
    assert verb.exit_code([passed, later_on, missed]) == 4


def test_nothing_later_can_pass():
    assert {not_yet(claim).verdict for claim in chapter.later_claims()} == {"not yet"}


@pytest.fixture(scope="module")
def results() -> list[Result]:
    """Every claim there is, measured as cheaply as possible: one made-up number for all runs."""
    lab = Lab(num_seeds=1, quick=True)
    wanted = {key for experiment in verb.EXPERIMENTS.values() for key in experiment.runs(lab)}
    names = ("iter_paper_{}_frac", "paper_{}_frac")
    made = {name.format(part): 0.5 for name in names for part in ("token", "reserved", "internal", "external")}
    made |= {"iter_mean_batch_size": 1.0, "mean_batch_size": 1.0, "kv_live_frac": 0.5, "kv_tail_frac": 0.5}
    made |= {"kv_blocks_used_frac": 0.5, "output_tok_per_s": 1.0, "mean_normalized_latency_s": 1.0}
    made |= {"num_preemptions": 1.0, "makespan_output_tok_per_s": 1.0}
    made |= {"iter_sharing_saving_frac": 0.5, "sharing_saving_frac": 0.5, "prefix_hit_tokens": 1.0, "num_finished": 1.0}
    made |= dict.fromkeys(("kv_internal_roundup_frac", "num_recomputed_tokens", "mean_tpot_s", "p99_tpot_s"), 1.0)
    made |= dict.fromkeys(
        ("maps_per_request", "makespan_kv_live_frac", "makespan_mean_batch_size", "recomputed_frac"), 1.0
    )
    made |= {"p99_ttft_s": 1.0}
    lab._done.update(dict.fromkeys(wanted, made))
    return [result for experiment in verb.EXPERIMENTS.values() for result in experiment.judge(lab)]


def test_ids_are_unique(results):
    ids = [result.claim.id for result in results]

    assert len(ids) == len(set(ids))


def test_every_claim_says_where_it_stands_and_how_sure_that_is(results):
    assert [r.claim.id for r in results if not r.claim.source or r.claim.confidence not in "ABCR"] == []


def test_every_deviation_is_written_down_and_applies_somewhere(results):
    used = {key for result in results for key in result.claim.deviations}

    assert used == set(DEVIATIONS)


def test_a_claim_is_plain_json(results):
    for result in results:
        row = json.loads(json.dumps(result.to_dict(), allow_nan=False))
        assert {"id", "metric", "expected", "got", "sd", "tolerance", "pass"} <= row.keys()
