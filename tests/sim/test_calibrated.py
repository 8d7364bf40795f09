"""Calibrated step models: interpolation by hand, refusals, the file, and skipping that equals stepping."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.limits import SchedulerConfig
from engine.core.registry import PoolConfig
from sim.calibrated import (
    CalibratedModel,
    Curve,
    MixedCost,
    OutsideGrid,
    Overheads,
    parse_calibration,
    read_calibration,
)
from sim.cost import Features, decode_features, parse_step_model
from sim.cost_executor import CostExecutor
from sim.simulate import RunSpec, simulate
from workloads import synthetic_trace

CURVES = (Curve(1, (10, 110), (1_000, 2_000)), Curve(4, (40, 440), (1_500, 3_500)), Curve(8, (80, 880), (2_000, 6_000)))
MOST = {"most_seqs": 8, "most_kv_tokens": 1_000, "most_pairs": 20_000, "most_longest_tokens": 500}
MIXED = MixedCost((16, 64), (10_000, 30_000), 100, 10, 1, 5, 2, **MOST)
HOST = Overheads(7, 1, 50, 3, 20, 2, 1)
MODEL = CalibratedModel(CURVES, MIXED, padded=True, overheads=HOST)
BARE = replace(MODEL, overheads=Overheads())


@pytest.mark.parametrize(
    "seqs,kv,expected",
    [(1, 10, 1_000), (1, 60, 1_500), (1, 5, 1_000), (2, 240, 2_500), (3, 440, 3_500), (5, 480, 4_000)],
)
def test_a_decode_step_costs_what_its_bucket_cost_there(seqs, kv, expected):
    assert BARE.duration(decode_features(seqs, kv)) == expected


def test_without_padding_batches_lie_between_their_neighbours():
    model = replace(BARE, padded=False)
    assert model.duration(decode_features(4, 440)) == 3_500
    assert model.duration(decode_features(6, 240)) == (2_500 + 2_800) // 2


def test_a_step_with_chunks_costs_its_bucket_and_its_rates():
    features = Features(3, 20, 200, 900, 150)
    assert BARE.duration(features) == 30_000 + 300 + 2_000 + 900 + 750 + 2 * 60
    assert MODEL.duration(features) == BARE.duration(features) + 20 + 6 + 20
    assert replace(BARE, padded=False).duration(features) == 10_000 + 20_000 * 4 // 48 + 3_200 + 870


def test_gaps_of_decode_steps_and_of_a_change_of_rows():
    assert MODEL.duration(decode_features(4, 40)) == 1_500 + 7 + 4
    assert MODEL.turn(4) == 50 + 12


@pytest.mark.parametrize(
    "features,what",
    [
        (decode_features(9, 90), "sequences in a decode step"),
        (decode_features(1, 122), "attended tokens in a decode step of 1 sequences"),
        (Features(3, 65, 200, 900), "tokens in a step with chunks"),
        (Features(9, 20, 200, 900), "sequences in a step with chunks"),
        (Features(3, 20, 1_101, 1_200), "attended tokens in a step with chunks"),
        (Features(3, 20, 200, 22_001), "attended pairs in a step with chunks"),
        (Features(3, 20, 900, 2_000, 551), "attended tokens of one chunk"),
    ],
)
def test_what_was_not_measured_is_refused_unless_it_is_asked_for(features, what):
    with pytest.raises(OutsideGrid, match=rf"{what} lie outside the calibration"):
        MODEL.duration(features)
    assert replace(MODEL, extrapolate=True).duration(features) > 0


@given(kv=st.integers(1, 968), seqs=st.integers(1, 8), padded=st.booleans())
def test_more_attended_tokens_never_cost_less(kv, seqs, padded):
    model = replace(MODEL, padded=padded, extrapolate=True)
    assert model.duration(decode_features(seqs, kv + 1)) >= model.duration(decode_features(seqs, kv))


def test_a_file_says_the_same_as_the_model_it_was_written_from(tmp_path):
    path = tmp_path / "h200.json"
    path.write_text(json.dumps(replace(MODEL, about={"rows_sha256": "ab"}).to_dict()))
    read = read_calibration(path)
    assert read == replace(MODEL, source="h200.json", about={"rows_sha256": "ab"})
    assert parse_step_model(f"calibrated:{path}") == read
    assert parse_calibration(f"calibrated:{path},extrapolate") == replace(read, extrapolate=True)
    assert read.coefficients()["rows_sha256"] == "ab"


@pytest.mark.parametrize(
    "change,told",
    [
        (lambda d: d.update(kind="linear"), "not a calibration"),
        (lambda d: d.update(schema_version=9), "schema_version 9"),
        (lambda d: d.pop("mixed"), "key 'mixed' is missing"),
        (lambda d: d["mixed"].pop("per_pair_ps"), "key 'per_pair_ps' is missing"),
        (lambda d: d["decode"][0].update(kv_tokens=[5, 4]), "kv_tokens: expected at least 2 ascending"),
        (lambda d: d["decode"].reverse(), "num_seqs of the curves"),
        (lambda d: d["overheads"].update(turn_ps=-1), "overheads: none is below 0"),
        (lambda d: d["overheads"].update(typo=1), "typo"),
    ],
)
def test_a_damaged_file_is_refused_by_name(tmp_path, change, told):
    found = MODEL.to_dict()
    found = json.loads(json.dumps(found))
    change(found)
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(found))
    with pytest.raises(ValueError, match=told) as caught:
        read_calibration(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("text", ["calibrated:", "calibrated:,extrapolate", "calibrated:nowhere.json"])
def test_a_model_without_a_file_is_refused(text):
    with pytest.raises(ValueError, match=r"name the file|no such calibration"):
        parse_step_model(text)


@settings(derandomize=True, deadline=None, max_examples=25)
@given(seed=st.integers(0, 10**6), blocks=st.integers(15, 40), rate=st.sampled_from((5.0, 100.0, 10**6)))
def test_skipping_is_stepping_where_a_change_of_rows_costs_time(seed, blocks, rate):
    trace = synthetic_trace("poisson", "uniform:1-60,1-40", 30, seed, rate_per_s=rate)
    spec = RunSpec("paged", PoolConfig(blocks, 8, 120), SchedulerConfig(120, max_num_seqs=8, max_num_batched_tokens=64))
    model = replace(MODEL, extrapolate=True, overheads=replace(HOST, turn_ps=10**9, decode_ps=10**8))
    runs = [simulate(replace(spec, skip=skip), trace, CostExecutor(model)) for skip in (True, False)]
    assert runs[0].requests().equals(runs[1].requests())
    assert runs[0].summary == runs[1].summary
