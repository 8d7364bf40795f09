"""The chapter's judgements: they hold, and what contradicts them is a miss."""

import pytest

from experiments.paper import alignment, concurrency, table_bytes, trials, upper_bound, waste_vs_variance
from experiments.paper.runs import SYSTEMS, Lab
from experiments.paper.trials import Shares, Trial, run_trial


def verdicts(results):
    return {result.claim.id: result.verdict for result in results}


@pytest.fixture(scope="module")
def lab() -> Lab:
    return Lab(num_seeds=1, quick=True)


@pytest.mark.parametrize(
    "experiment", [upper_bound.UPPER_BOUND, concurrency.CONCURRENCY, alignment.ALIGNMENT, table_bytes.TABLE_BYTES]
)
def test_the_judgement_holds(lab, experiment):
    results = experiment.judge(lab)

    assert set(verdicts(results).values()) <= {"pass", "not here"}
    assert sum(result.verdict == "pass" for result in results) >= 6
    assert all(table.rows for table in experiment.tables(lab))


@pytest.mark.slow
def test_waste_grows_with_the_spread_of_lengths_and_pagings_does_not():
    lab = Lab(num_seeds=3, quick=True)

    assert set(verdicts(waste_vs_variance.judge(lab)).values()) == {"pass"}


def made_up(change=lambda trial, shares: shares):
    """A lab in which contiguous pools lose a fifth per spread, and paged ones nothing."""
    lab = Lab(num_seeds=2, quick=True)
    found = {}
    for load, rate in waste_vs_variance.RATES.items():
        for name in waste_vs_variance.JUDGED:
            for cv in waste_vs_variance.CVS:
                for seed in (0, 1):
                    trial = waste_vs_variance._trial(load, name, cv, seed)
                    live = 0.98 if name == "paged" else 0.5 - 0.1 * cv
                    full = load == "saturated"
                    found[trial] = change(trial, Shares(live, 1.0, 0.0, 9.0, 0, full))
                    assert trial.rate_per_s == rate
    lab._once["waste_vs_variance"] = found
    return lab


def test_made_up_shares_that_are_as_claimed_pass():
    assert set(verdicts(waste_vs_variance.judge(made_up())).values()) == {"pass"}


@pytest.mark.parametrize(
    "change,missed",
    [
        (
            lambda t, s: s._replace(live=0.6) if (t.allocator, t.cv, t.seed) == ("orca-oracle", 1.0, 1) else s,
            {"waste_vs_variance/saturated/orca-oracle/falls", "waste_vs_variance/below/orca-oracle/falls"},
        ),
        (
            lambda t, s: s._replace(live=0.95) if t.allocator == "paged" and t.cv == 2 and s.saturated else s,
            {"waste_vs_variance/saturated/paged/range"},
        ),
        (
            lambda t, s: s._replace(saturated=True) if t.allocator == "paged" else s,
            {"waste_vs_variance/loads"},
        ),
    ],
    ids=["a rise in one seed", "paging loses three points", "a load that is too high"],
)
def test_what_contradicts_the_chapter_is_a_miss(change, missed):
    found = verdicts(waste_vs_variance.judge(made_up(change)))

    assert {name for name, verdict in found.items() if verdict == "miss"} == missed


def test_a_trial_is_the_same_in_another_process_and_saturates_as_it_should():
    slow = Trial("paged", 512, 2048, 60, 60, 0.5, 0.2, 40, 0)
    fast = slow._replace(rate_per_s=200.0, num_requests=300)

    assert trials.in_processes(run_trial, [slow, fast], 2) == [run_trial(slow), run_trial(fast)]
    assert (run_trial(slow).saturated, run_trial(fast).saturated) == (False, True)
    assert run_trial(fast).live > 0.7 > run_trial(slow).live


def test_33_is_what_a_reservation_of_the_longest_holds_whatever_arrives(lab):
    held = upper_bound.measured(lab)
    running = {name: held["sharegpt", name][0].mean_running for name in SYSTEMS}

    assert running["orca-max"] == pytest.approx(33)
    assert 33 < running["orca-pow2"] < running["orca-oracle"] < running["paged"]


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_pool_with_one_block_less_holds_one_sequence_less(monkeypatch, name):
    assert upper_bound.whole_sequences(name) == 33
    monkeypatch.setattr(upper_bound, "NUM_BLOCKS", upper_bound.NUM_BLOCKS - 1)
    assert upper_bound.whole_sequences(name) == 32


def test_a_pool_of_2111_blocks_does_not_hold_32(monkeypatch):
    monkeypatch.setattr(concurrency, "NUM_BLOCKS", 2111)
    found = verdicts(concurrency.judge(Lab(num_seeds=1, quick=True)))

    assert found["concurrency/pool"] == "miss"
    assert found["concurrency/paged/running"] == "miss" or found["concurrency/paged/preemptions"] == "miss"


@pytest.mark.parametrize("length,slots", [(1, 64), (63, 64), (64, 64), (65, 128), (100, 128), (129, 192)])
def test_both_ways_of_rounding_up_are_the_same(length, slots):
    held = {alignment.held_by(name, size, length) for name, size in ((alignment.GROWING, 16), ("paged", 64))}

    assert held == {slots}


def test_a_table_has_an_entry_a_block_and_halves_with_the_block_size():
    small, large = (table_bytes.weigh("llama-2-13b", "a100-80g", 1, size) for size in (16, 32))

    assert small.used_bytes == 64 * 4 * 32 == 2 * large.used_bytes
    assert small.kv_bytes == large.kv_bytes == 64 * 499 * 819_200
    assert small.table_bytes == 2 * large.table_bytes == 128 * 4096 // 16 * 4


@pytest.mark.parametrize("change", ["NUM_SEQS", "ENTRY_BYTES"])
def test_a_table_of_more_rows_or_wider_entries_is_not_small(monkeypatch, change):
    monkeypatch.setattr(table_bytes, change, 16 * getattr(table_bytes, change))
    found = verdicts(table_bytes.judge(Lab(num_seeds=1, quick=True)))

    assert found["table-bytes/llama-3.1-8b/whole"] == "miss"


def test_a_request_with_a_block_too_many_is_noticed(monkeypatch):
    honest = table_bytes.weigh

    def wasteful(*words):
        weighed = honest(*words)
        return weighed._replace(used_bytes=weighed.used_bytes + table_bytes.ENTRY_BYTES)

    monkeypatch.setattr(table_bytes, "weigh", wasteful)
    found = verdicts(table_bytes.judge(Lab(num_seeds=1, quick=True)))

    assert {found[f"table-bytes/{model}/at_16"] for model, *_ in table_bytes.MODELS} == {"miss"}
