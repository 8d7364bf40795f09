"""Fitting step times: a model that is right is found again, and what is not measured is said."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from experiments.calibrate.fit import KINDS, fit, held_out, misfits, modelled_s
from experiments.calibrate.grid import Limits, decode_points, mixed_points
from experiments.calibrate.rows import CHURN, FOLDS, HELD, StepRow, read_rows, rows_sha256, split, write_rows
from sim.calibrated import CalibratedModel, Curve, MixedCost, Overheads
from sim.cost import Features
from sim.step_rows import LoggedStep, step_rows_csv

PS = 10**12
LIMITS = Limits(max_num_seqs=16, max_num_batched_tokens=256, max_model_len=512, kv_tokens=4096, block_size=16)
DECODES, TOKENS = [1, 2, 4, 6, 8, 10, 12, 14, 16], [64, 128, 256]
TRUTH = CalibratedModel(
    tuple(Curve(size, (8, 4096), (10**9 * size, 10**9 * size + 4 * 10**9)) for size in DECODES),
    MixedCost(
        (64, 128, 256), (2 * 10**9, 3 * 10**9, 5 * 10**9), 10**6, 10**4, 10**3, 10**5, 3 * 10**3, 16, 10**4, 10**6, 512
    ),
    padded=True,
    overheads=Overheads(10**8, 10**6, 10**7, 10**5, 2 * 10**8, 10**6, 10**5),
)


def row(run, features, changed=0, truth=TRUTH):
    """What the truth says of a step; on the grid without gaps."""
    device = replace(truth, overheads=Overheads()).duration(features) / PS
    made = StepRow(run, *features, changed, 0.0, device, 0.0)
    whole = modelled_s(truth, made) if run.startswith(CHURN) else device + 1e-5
    return made._replace(duration_s=whole)


def table(truth=TRUTH):
    """Every point of the grid, and a run in which sequences come and go."""
    rows = []
    for point in decode_points(DECODES, LIMITS, 8, 6, 0):
        count, kv = len(point.contexts), sum(point.contexts)
        for step in range(6):
            features = Features(count, count, kv + count * (step + 1), kv + count * (step + 1))
            rows.append(row(point.name, features, truth=truth))
    for point in mixed_points(TOKENS, LIMITS, 6, 0):
        decoding = sum(point.contexts) + len(point.contexts)
        for one in point.steps:
            new = sum(size for _, size in one.chunks)
            kv = decoding + sum(context + size for context, size in one.chunks)
            pairs = decoding + sum(size * context + size * (size + 1) // 2 for context, size in one.chunks)
            longest = max((context + size for context, size in one.chunks if size > 1), default=0)
            features = Features(len(point.contexts) + len(one.chunks), len(point.contexts) + new, kv, pairs, longest)
            rows.append(row(point.name, features, truth=truth))
    for seqs, name in ((seqs, name) for seqs in range(1, 17) for name in (CHURN, CHURN + HELD)):
        rows += [row(name, Features(seqs, seqs, seqs * 20, seqs * 20), changed, truth) for changed in (0, 1)]
        new = 30 * (1 + seqs % 4)
        kv = seqs * 20 + new
        rows.append(row(name, Features(seqs, seqs + new, kv, kv + new * (new - 1) // 2, new), truth=truth))
    return rows


def test_the_truth_is_found_again():
    rows = table()
    model = fit(rows, DECODES, TOKENS, padded=True)
    for one in misfits(model, rows):
        assert abs(one.mean_signed_frac) < 1e-3, one
        assert one.mape_frac < 2e-3, one
    for name in ("decode_ps", "turn_ps", "turn_per_seq_ps", "mixed_ps", "mixed_per_token_ps"):
        assert getattr(model.overheads, name) == pytest.approx(getattr(TRUTH.overheads, name), rel=0.02), name
    assert model.mixed.rates_ps == pytest.approx(TRUTH.mixed.rates_ps, rel=0.05)
    assert model.about["rows_sha256"] == rows_sha256(rows)


def test_runs_that_were_held_out_are_judged_by_a_model_that_has_not_seen_them():
    rows = table()
    folds = [split(rows, fold) for fold in range(FOLDS)]
    for kept, held in folds:
        assert {one.run for one in kept}.isdisjoint({one.run for one in held})
        assert sorted([*kept, *held]) == sorted(rows)
    assert sorted(one for _, held in folds for one in held) == sorted(rows), "each run is held out once"
    assert min(len({one.run for one in held}) for _, held in folds) > 2
    assert [one.kind for one in held_out(rows, DECODES, TOKENS, padded=True)] == list(KINDS)


def test_a_strange_run_does_not_explain_itself():
    """A bucket's curve has many runs: one of them that is twice as slow is not foreseen by the others."""
    rows, judged = table(), misfits(fit(table(), DECODES, TOKENS, padded=True), table())[0]
    strange = next(one.run for one in rows if one.decodes and not one.churns and split([one], 0)[1])
    slowed = [one._replace(device_s=2 * one.device_s) if one.run == strange else one for one in rows]
    known = misfits(fit(slowed, DECODES, TOKENS, padded=True), slowed)[0]
    unknown = held_out(slowed, DECODES, TOKENS, padded=True)[0]
    assert abs(judged.mape_frac) < 2e-3
    assert known.mape_frac < 0.01, "what was seen is fitted"
    share = len([one for one in rows if one.run == strange]) / unknown.num_steps
    assert unknown.mape_frac > 0.4 * share, "the model has learned from what was held out"


def test_noise_moves_no_clock():
    """Steps scatter by a quarter: what is served, and so a run's clock, sums up to what was measured all the same."""
    rng = np.random.Generator(np.random.Philox(key=3))
    noisy = []
    for one in table():
        factor = float(rng.choice([0.75, 1.25]))
        noisy.append(one._replace(device_s=one.device_s * factor, duration_s=one.duration_s * factor))
    for one in misfits(fit(noisy, DECODES, TOKENS, padded=True), noisy)[2:]:
        assert abs(one.mean_signed_frac) < 2e-2, one


def test_steps_that_the_model_does_not_reach_are_counted_and_not_judged():
    rows, model = table(), fit(table(), DECODES, TOKENS, padded=True)
    far = [row(CHURN, Features(2, 2, 40_000, 40_000), truth=replace(TRUTH, extrapolate=True)) for _ in range(3)]
    before, after = misfits(model, rows), misfits(model, [*rows, *far])
    assert [one._replace(num_outside=0) for one in after] == before
    assert [one.num_outside for one in after] == [0, 0, 3, 0]


def test_rates_that_would_be_negative_are_zero_and_the_rest_is_fitted_without_them():
    falling = replace(TRUTH, mixed=replace(TRUTH.mixed, per_seq_ps=-(10**7)))
    model = fit(table(falling), DECODES, TOKENS, padded=True)
    assert model.mixed.per_seq_ps == 0
    assert min(model.mixed.base_ps) > 0


@pytest.mark.parametrize("wanted", [True, False], ids=["no chunks", "no decodes"])
def test_both_kinds_of_steps_are_needed(wanted):
    rows = [one for one in table() if one.decodes is wanted]
    with pytest.raises(ValueError, match="needs decode steps and steps with chunks"):
        fit(rows, DECODES, TOKENS, padded=True)


def test_without_durations_of_the_device_the_whole_step_is_fitted():
    """As of other engines' logs: no grid, nobody says what the host's share was."""
    rows = [one._replace(device_s=one.duration_s) for one in table() if not one.churns]
    model = fit(rows, DECODES, TOKENS, padded=False)
    assert model.overheads == Overheads()
    assert all(one.mape_frac < 0.2 for one in misfits(model, rows))


def test_a_step_beyond_the_largest_bucket_is_refused():
    far = Features(17, 17, 400, 400)
    with pytest.raises(ValueError, match="17 sequences fits no bucket: the largest is 16"):
        fit([*table(), StepRow("decode-x", *far, 0, 1.0, 1.0, 0.0)], DECODES, TOKENS, padded=True)


def test_a_table_reads_back_as_it_was_written(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text(write_rows(table()))
    assert read_rows(path) == table()


@pytest.mark.parametrize(
    "text,told",
    [
        ("run,num_seqs\na,1\n", ":1: a table of steps needs columns"),
        ("run,num_seqs,num_new_tokens,num_kv_tokens,num_attended_pairs,duration_s\na,1,1,1,1,x\n", ":2: could not"),
        (
            "run,num_seqs,num_new_tokens,num_kv_tokens,num_attended_pairs,duration_s\na,1,1,1,1,0\n",
            ":2: duration_s=0.0",
        ),
        ("run,num_seqs,num_new_tokens,num_kv_tokens,num_attended_pairs,duration_s\na,2,1,1,1,1\n", ":2: expected 1 <="),
    ],
)
def test_a_bad_table_is_refused_with_its_line(tmp_path, text, told):
    path = tmp_path / "rows.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=told) as caught:
        read_rows(path)
    assert str(path) in str(caught.value)


def test_a_log_of_another_engine_becomes_a_step_model(tmp_path, pagelab):
    """Of a vLLM-like log only sums and durations are known; steps of a linear truth are found within its noise."""
    rng = Random(4)
    rows = []
    for _ in range(1500):
        decodes, prefills = rng.randint(0, 40), rng.choice((0, 0, 0, 1, 2))
        if decodes + prefills:
            chunk, context = prefills * rng.randint(1, 400), decodes * rng.randint(20, 800)
            seconds = 4e-3 + 2e-5 * (decodes + prefills) + 1e-8 * context + 2e-5 * chunk
            rows.append(LoggedStep(decodes, prefills, chunk, context, 0, 16, "", seconds * rng.uniform(0.99, 1.01)))
    log = tmp_path / "steps.csv"
    log.write_text(step_rows_csv(rows, "monday", 50))

    done = pagelab("calibrate", "--from", log, "-o", tmp_path / "fitted", "--json")

    assert done.code == 0, done.err
    errors = {(one["rows"], one["kind"]): one for one in json.loads(done.out)["errors"]}
    assert abs(errors["held out", "decode"]["mean_signed_frac"]) < 0.01
    assert errors["held out", "decode"]["mape_frac"] < 0.03
    assert errors["held out", "mixed"]["mape_frac"] < 0.04
    model = f"calibrated:{tmp_path / 'fitted' / 'calibration.json'},extrapolate"
    trace = tmp_path / "t.csv"
    assert pagelab("trace", "synth", trace, "--num-requests", "20", "--lengths", "fixed:50,9").code == 0
    limits = ("--kv-tokens", "8192", "--max-model-len", "1024")
    run = pagelab("run", "--trace", trace, *limits, "--step-model", model, "--json")
    assert run.code == 0, run.err
    assert json.loads(run.out)["step_model"]["kind"] == "calibrated"
