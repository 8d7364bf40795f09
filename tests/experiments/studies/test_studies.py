"""The studies: each judgement passes on numbers that follow its law and misses where they do not, and draws them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from experiments.paper.pictures import PICTURES
from experiments.paper.runs import Lab
from experiments.paper.verb import EXPERIMENTS
from experiments.studies import (
    allocator_load,
    capacity_search,
    kv_capacity,
    page_size,
    placement,
    prefill_budget,
    victims,
)
from experiments.studies.all import FIGURES, STUDIES
from experiments.studies.capacity_search import Search, bisect, meets
from experiments.studies.case import Case
from experiments.style import PAGE_IN, new_figure, style

SEEDS = 2


def settings_of(key: Any) -> dict[str, Any]:
    return dict(key.settings)


def loads(key: Case) -> dict[str, float]:
    rank = allocator_load.ORDER.index(settings_of(key)["allocator"])
    rate = 80.0 if key.rate_per_s < 1 else 100.0 * (rank + 2)
    names = ("kv_live_frac", "mean_normalized_latency_s", "p99_ttft_s", "saturated")
    return {"output_tok_per_s": rate, "mean_batch_size": 7.0 + 3 * rank, **dict.fromkeys(names, 0.5)}


def placed(key: Case) -> dict[str, float]:
    _, reserve, fit = settings_of(key)["allocator"].replace("-fit", " fit").split("-", 2)
    rank = placement.RESERVES.index(reserve)
    hand = placement.roundup_by_hand({}, key.seed)
    values = dict.fromkeys(placement.COLUMNS, 0.01)
    return values | {
        "mean_batch_size": 7.0 + rank * (4 if fit == "buddy" else 5),
        "kv_live_frac": 0.2 + 0.1 * rank,
        "kv_internal_roundup_frac": 0.8 * hand,
        "kv_blocks_used_frac": 0.8,
    }


def budgeted(key: Case) -> dict[str, float]:
    budget = settings_of(key)["max_num_batched_tokens"]
    values = dict.fromkeys(prefill_budget.COLUMNS, 1.0)
    return values | {"mean_tpot_s": budget * 1e-5, "p99_tpot_s": budget * 2e-5, "makespan_output_tok_per_s": 400.0}


def victimised(key: Case) -> dict[str, float]:
    least = settings_of(key)["victim"] == "least-computed"
    values = dict.fromkeys(victims.COLUMNS, 0.2)
    counts = {"num_preemptions": 200.0, "num_recomputed_tokens": 1e4} if least else {}
    return values | {"num_preemptions": 100.0, "num_recomputed_tokens": 2e4} | counts


def held(key: Case) -> dict[str, float]:
    return {
        "mean_batch_size": 1e7 / kv_capacity.token_bytes(settings_of(key)["model"], settings_of(key)["kv_cache_dtype"])
    }


def paged(key: Any) -> dict[str, float]:
    if isinstance(key, page_size.MapsKey):
        return {"maps_per_request": 5.0 if key.deferred else 10.0}
    given = settings_of(key)
    page = given.get("page_bytes") or given["block_size"] * 2048
    tokens, running = page // 2048, 70.0 - page / 2**17
    values = dict.fromkeys(page_size.COMPARED, 0.5)
    tail = 0.5 * running * tokens / 32_768
    return values | {
        "makespan_mean_batch_size": running,
        "mean_batch_size": running,
        "kv_tail_frac": tail,
        "capacity_tokens": 32_768.0,
    }


LAWFUL: dict[str, Callable[[Any], dict[str, float]]] = {
    "allocator-load": loads,
    "reservation-placement": placed,
    "prefill-budget": budgeted,
    "victim-policy": victimised,
    "kv-capacity": held,
    "virtual-page-size": paged,
}


def lab_of(name: str, spoil: Callable[[Any, dict[str, float]], None] = lambda key, run: None) -> Lab:
    """Measurements that follow the study's laws, but for what `spoil` does to them."""
    lab = Lab(num_seeds=SEEDS, quick=True)
    if name == "capacity-search":
        lab._once[name] = searched(spoil)
        return lab
    for key in EXPERIMENTS[name].runs(lab):
        run = LAWFUL[name](key)
        spoil(key, run)
        lab._done[key] = run
    return lab


def searched(spoil: Callable[[Any, dict[str, float]], None]) -> dict[Search, capacity_search.Found]:
    rates = {"orca-max": 0.5, "orca-oracle": 0.9, "paged": 2.0}
    found = {}
    for name in capacity_search.QUICK_ORDER:
        for seed in range(SEEDS):
            run = {"rate": rates[name], "missed": rates[name] * 1.04, "p99_ttft_s": 9.0}
            spoil(Search(name, seed), run)
            met = {"p99_ttft_s": run["p99_ttft_s"], "p99_tpot_s": 0.1, "mean_batch_size": 5.0, "kv_live_frac": 0.5}
            missed = met | {"p99_ttft_s": 11.0}
            found[Search(name, seed)] = capacity_search.Found(run["rate"], run["missed"], met, missed, 9)
    return found


def verdicts(name: str, lab: Lab) -> dict[str, str]:
    return {result.claim.id.removeprefix(f"{name}/"): result.verdict for result in EXPERIMENTS[name].judge(lab)}


@pytest.mark.parametrize("name", [study.name for study in STUDIES])
def test_numbers_that_follow_the_law_pass(name):
    found = verdicts(name, lab_of(name))
    assert set(found.values()) <= {"pass", "reported"}
    assert list(found.values()).count("pass") >= 3


def changed(column: str, factor: float, **where: Any) -> Callable[[Any, dict[str, float]], None]:
    """Multiplies a column of the runs with these settings."""

    def spoil(key: Any, run: dict[str, float]) -> None:
        known = {**settings_of(key), "rate": key.rate_per_s} if isinstance(key, Case) else key._asdict()
        if column in run and all(known.get(name) == value for name, value in where.items()):
            run[column] *= factor

    return spoil


BROKEN = [
    ("allocator-load", "below", changed("output_tok_per_s", 0.9, allocator="virtual", rate=0.25)),
    ("allocator-load", "order/output_tok_per_s", changed("output_tok_per_s", 2.0, allocator="orca-oracle", rate=4.0)),
    ("allocator-load", "order/mean_batch_size", changed("mean_batch_size", 0.1, allocator="paged", rate=4.0)),
    ("allocator-load", "plateau", changed("output_tok_per_s", 1.1, allocator="orca-max", rate=4.0)),
    ("allocator-load", "max", changed("mean_batch_size", 0.9, allocator="orca-max")),
    ("reservation-placement", "max", changed("mean_batch_size", 0.99, allocator="contiguous-max-buddy")),
    ("reservation-placement", "buddy", changed("kv_internal_roundup_frac", 1.4)),
    ("reservation-placement", "fits", changed("mean_batch_size", 1.2, allocator="contiguous-oracle-first-fit")),
    ("reservation-placement", "order/buddy", changed("kv_live_frac", 2.0, allocator="contiguous-oracle-buddy")),
    ("prefill-budget", "below/mean_tpot_s", changed("mean_tpot_s", 0.4, max_num_batched_tokens=1024)),
    ("prefill-budget", "above/p99_tpot_s", changed("p99_tpot_s", 0.4, max_num_batched_tokens=4096)),
    ("prefill-budget", "below/throughput", changed("makespan_output_tok_per_s", 0.95, max_num_batched_tokens=256)),
    ("victim-policy", "priority", changed("p99_ttft_s", 1.01, victim="priority")),
    ("victim-policy", "each", changed("num_recomputed_tokens", 5.0, victim="least-computed")),
    ("victim-policy", "total", changed("num_recomputed_tokens", 2.1, victim="least-computed")),
    ("kv-capacity", "fp8/running", changed("mean_batch_size", 0.7, kv_cache_dtype="fp8")),
    ("kv-capacity", "gqa/running", changed("mean_batch_size", 1.4, model="llama-2-7b")),
    ("virtual-page-size", "tail/128k", changed("kv_tail_frac", 1.2, page_bytes=2**17)),
    ("virtual-page-size", "paged", changed("num_preemptions", 2.0, allocator="paged", block_size=64)),
    ("virtual-page-size", "running", changed("makespan_mean_batch_size", 2.0, page_bytes=2**21)),
    ("virtual-page-size", "deferral", changed("maps_per_request", 3.0, deferred=True)),
    ("capacity-search", "bracket", changed("missed", 1.1, allocator="paged")),
    ("capacity-search", "bracket", changed("p99_ttft_s", 1.2, allocator="orca-max")),
    ("capacity-search", "order", changed("rate", 3.0, allocator="orca-max")),
    ("capacity-search", "lead", changed("rate", 0.5, allocator="orca-oracle")),
]


@pytest.mark.parametrize("name,claim,spoil", BROKEN, ids=[f"{name}/{claim}" for name, claim, _ in BROKEN])
def test_numbers_that_do_not_miss(name, claim, spoil):
    assert verdicts(name, lab_of(name, spoil))[claim] == "miss"


def test_arithmetic_that_is_wrong_misses(monkeypatch):
    from engine.core.kv_spec import KVSpec

    monkeypatch.setattr(KVSpec, "page_tokens", lambda self, page_bytes: page_bytes // 2048 + 1)
    found = verdicts("virtual-page-size", lab_of("virtual-page-size"))
    assert sum(verdict == "miss" for claim, verdict in found.items() if claim.startswith("tokens/")) == 12


@pytest.mark.parametrize("name", FIGURES)
def test_tables_have_a_row_each_and_figures_draw_what_was_measured(name):
    lab = lab_of(name)
    for table in EXPERIMENTS[name].tables(lab):
        assert len(table.rows) >= 3
        assert {len(row) for row in table.rows} == {len(table.columns)}
    (picture,) = PICTURES[name](lab)
    with style():
        canvas = new_figure(PAGE_IN, picture.height_in)
        plotted = picture.draw(canvas)
        canvas.canvas.draw()
    assert len(plotted) >= 2
    assert set(plotted["num_runs"]) == {SEEDS}
    assert f"pagelab reproduce {name}" in picture.caption
    labels = [text for axes in canvas.axes for text in axes.get_xticklabels() if text.get_text()]
    for axes in canvas.axes:
        boxes = [text.get_window_extent() for text in axes.get_xticklabels() if text.get_text()]
        assert all(one.x1 <= other.x0 for one, other in pairwise(boxes)), "tick labels overlap"
    assert labels


def test_rounding_up_by_hand():
    """17 tokens hold 2 blocks of 2, 100 hold 7 of 8; both decode 10 steps."""
    lengths = {"sharegpt": (np.array([7, 90]), np.array([10, 10]))}
    expected = ((32 - 17) + (128 - 100)) / (32 + 128)
    assert placement.roundup_by_hand(lengths, 0) == pytest.approx(expected)


@pytest.mark.parametrize("edge", [0.06, 0.5, 1.7, 7.9])
def test_a_search_ends_beside_the_edge(edge):
    def run(rate: float) -> dict[str, float]:
        return {"p99_ttft_s": 0.0 if rate <= edge else 99.0, "p99_tpot_s": 0.1, "rate": rate}

    found = bisect(run)
    assert found.rate_per_s <= edge < found.missed_per_s <= found.rate_per_s * capacity_search.RATIO
    assert (found.met["rate"], found.missed["rate"]) == (found.rate_per_s, found.missed_per_s)
    assert found.num_runs < 12


@pytest.mark.parametrize("always", [True, False])
def test_an_edge_outside_of_the_bracket_is_said(always):
    with pytest.raises(ValueError, match="search elsewhere"):
        bisect(lambda rate: {"p99_ttft_s": 0.0 if always else 99.0, "p99_tpot_s": 0.1})


def test_a_run_without_latencies_does_not_meet_the_objective():
    assert not meets({})
    assert not meets({"p99_ttft_s": 1.0})
    assert not meets({"p99_ttft_s": float("nan"), "p99_tpot_s": 0.1})


def test_small_runs_of_pages_and_blocks_are_the_same():
    lab = Lab(num_seeds=1, quick=True)
    runs = []
    for keys in ({"allocator": "virtual", "page_bytes": 2**17}, {"allocator": "paged", "block_size": 64}):
        settings = tuple({**dict(page_size.LLAMA), "kv_bytes": 2**30, **keys}.items())
        runs.append(Case(settings, 60, 0.0, 3).run(lab.lengths))
    apart = {name for name in runs[0] if runs[0][name] != runs[1].get(name)}
    assert apart <= {"num_copied_blocks"}
    assert runs[0]["num_preemptions"] > 0


def test_real_lengths_replace_the_stand_in_where_they_fit():
    pairs = (np.array([10, 3000, 20]), np.array([5, 5, 6]))
    trace = Case((("max_model_len", 2048),), 4, 2.0, 1).trace({"sharegpt": pairs})
    assert list(trace.num_prompt_tokens) == [10, 20, 10, 20]
    assert list(Case((("max_model_len", 2048),), 4, 0.0, 1).trace({}).arrival_ns) == [0, 0, 0, 0]


@pytest.mark.slow
@pytest.mark.parametrize("name", [study.name for study in STUDIES])
def test_every_study_holds_for_one_seed(name):
    lab = Lab(num_seeds=1, quick=True)
    experiment = EXPERIMENTS[name]
    lab.measure(experiment.runs(lab))
    found = verdicts(name, lab)
    assert set(found.values()) <= {"pass", "reported"}
