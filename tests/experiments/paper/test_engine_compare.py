"""The four allocators on the engine and simulated: what is run, and what each claim notices."""

import copy
from dataclasses import replace

import pytest

from experiments.bench import machine
from experiments.paper import engine_compare, engine_runs, verb
from experiments.paper.decisions import differences
from experiments.paper.engine_runs import ON_CPU, ON_GPU, ON_GPU_QUICK, PLACES, Measured, Place
from experiments.paper.runs import Lab

PAGED, MAX = Place("paged"), Place("orca-max")


def verdicts(results):
    return {result.claim.id.removeprefix("engine-compare/"): result.verdict for result in results}


@pytest.fixture(scope="module")
def on_cpu():
    """Everything, on the tiny model."""
    pytest.importorskip("torch")
    return engine_runs._measured(Lab(quick=True), ON_CPU)


@pytest.fixture
def lab(on_cpu):
    return Lab(quick=True, _once={"engine-compare": on_cpu})


@pytest.fixture
def with_device(monkeypatch):
    monkeypatch.setattr(machine, "why_no_device", lambda: "")


@pytest.fixture
def without_device(monkeypatch):
    monkeypatch.setattr(machine, "why_no_device", lambda: "none in this test")


def test_memory_is_short_and_the_engine_still_decides_as_the_simulator(on_cpu, lab, without_device):
    found = verdicts(engine_compare.judge(lab))
    assert len(found) == 20
    assert {name for name, verdict in found.items() if verdict == "pass"} == {f"{p.slug}/decisions" for p in PLACES}
    assert set(found.values()) == {"pass", "not here"}
    assert on_cpu.value(PAGED, "num_preemptions") > 0
    steps = {place: on_cpu.value(place, "num_steps") for place in PLACES if place.kernel == "paged"}
    assert sorted(steps, key=steps.get) == [Place(name) for name in engine_compare.ORDER]
    for place in PLACES:
        assert on_cpu.value(place, "num_finished") == ON_CPU.num_requests
        assert set(on_cpu.real[place].tables["steps"]["head_refusal"]) > {0}


def test_times_are_not_shown_where_none_were_measured(lab, without_device):
    (table,) = engine_compare.tables(lab)
    assert [row[1:7] for row in table.rows] == [(None,) * 6] * len(PLACES)
    assert all(row[8] > 0 for row in table.rows)
    assert "none in this test" in table.note


def changed(outcome, table, column, row, by):
    """The outcome with one entry of a table altered."""
    frame = outcome.tables[table].copy()
    frame.loc[row, column] += by
    return replace(outcome, tables={**outcome.tables, table: frame})


def test_each_difference_is_counted_where_it_is(on_cpu):
    one, other = on_cpu.simulated["paged"], on_cpu.real[PAGED]
    assert differences(one, other)[:4] == (0, 0, 0, 0)
    columns = len(one.tables["steps"].columns) - 2
    shorter = replace(other, tables={**other.tables, "steps": other.tables["steps"].iloc[:-2]})
    assert differences(one, shorter)[:4] == (2, 0, 0, 2 * columns)
    ended = replace(one, tables={**one.tables, "steps": one.tables["steps"].iloc[:-1]})
    assert differences(ended, other)[:4] == (1, 0, 0, columns)
    summary = {**other.summary, "num_preemptions": other.summary["num_preemptions"] + 3}
    assert differences(one, replace(other, summary=summary))[:4] == (0, 3, 0, 0)
    assert differences(one, changed(other, "requests", "num_preemptions", 5, 1))[:4] == (0, 0, 1, 0)
    assert differences(one, changed(other, "steps", "num_running", 7, 1))[:4] == (0, 0, 0, 1)
    assert differences(one, changed(other, "steps", "time_s", 7, 1.0)).total == 0
    fewer = replace(other, tables={**other.tables, "requests": other.tables["requests"].iloc[1:]})
    assert differences(one, fewer)[:4] == (0, 0, 1, 0)


def test_another_scheduler_is_a_miss(on_cpu, without_device):
    trace = engine_runs._trace(Lab(), ON_CPU)
    with engine_runs._model(ON_CPU) as model:
        config = engine_runs.config_for(
            *(ON_CPU, model), step_model=engine_runs.STEP_MODEL, record_steps=True, full_sequence_gate=False
        )
        simulated = {found.cell.allocator: found for found in engine_runs._outcomes(config, trace)}
    lab = Lab(_once={"engine-compare": on_cpu._replace(simulated=simulated)})
    found = verdicts(engine_compare.judge(lab))
    assert found["paged/decisions"] == "miss"
    assert found["orca-max/decisions"] == "pass"  # the gate is about blocks yet to be taken


def test_one_differing_step_is_a_miss(on_cpu, without_device):
    real = {**on_cpu.real, MAX: changed(on_cpu.real[MAX], "steps", "num_waiting", 3, 1)}
    found = verdicts(engine_compare.judge(Lab(_once={"engine-compare": on_cpu._replace(real=real)})))
    assert [name for name, verdict in found.items() if verdict == "miss"] == ["orca-max/decisions"]


def timed(on_cpu, **by_allocator):
    """The runs with throughput, batch and clock as they were said to be."""
    real = {}
    for place, outcome in on_cpu.real.items():
        rate, batch, off = by_allocator[place.allocator.replace("-", "_")]
        made = copy.copy(outcome)
        made.summary = {
            **outcome.summary,
            "output_tok_per_s": rate * (1.1 if place.kernel == "contiguous" else 1.0),
            "mean_batch_size": batch,
            "makespan_s": 10.0 * (1 + off),
            "replay_wall_s": 10.0,
        }
        real[place] = made
    return Lab(_once={"engine-compare": Measured(ON_GPU, "Test card", real, on_cpu.simulated)})


def test_clock_and_order_are_judged_on_a_device(on_cpu, with_device):
    lab = timed(
        on_cpu,
        paged=(400.0, 90.0, 0.0),
        orca_oracle=(300.0, 50.0, -0.02),
        orca_pow2=(305.0, 50.0, 0.01),
        orca_max=(100.0, 20.0, 0.0),
    )
    results = engine_compare.judge(lab)
    assert set(verdicts(results).values()) == {"pass"}
    notes = {result.claim.id: result.note for result in results}
    assert "paged 4.00, orca-oracle 3.00" in notes["engine-compare/paged-over-orca-oracle/throughput"]
    runs, kernels = engine_compare.tables(lab)
    assert runs.rows[0][1:3] == (400.0, 4.0)
    assert [row[3:] for row in kernels.rows] == [(pytest.approx(10.0), "yes")] * 3


def test_a_tie_at_the_top_a_late_clock_and_an_inversion_are_misses(on_cpu, with_device):
    lab = timed(
        on_cpu,
        paged=(400.0, 50.0, -0.04),
        orca_oracle=(399.0, 50.0, 0.0),
        orca_pow2=(420.0, 50.0, 0.0),
        orca_max=(430.0, 51.0, 0.0),
    )
    found = verdicts(engine_compare.judge(lab))
    assert {name for name, verdict in found.items() if verdict == "miss"} == {
        "paged/clock",
        "paged-over-orca-oracle/throughput",
        "paged-over-orca-oracle/mean-batch",
        "orca-oracle-over-orca-pow2/throughput",
        "orca-pow2-over-orca-max/throughput",
        "orca-pow2-over-orca-max/mean-batch",
    }


def test_a_device_serves_the_large_model(with_device):
    assert engine_runs.setup_for(Lab()) == ON_GPU
    assert engine_runs.setup_for(Lab(quick=True)) == ON_GPU_QUICK
    for setup in (ON_GPU, ON_GPU_QUICK):
        trace = engine_runs._trace(Lab(), setup)
        tokens = int((trace.num_prompt_tokens + trace.num_output_tokens).sum())
        assert tokens > 2 * setup.kv_tokens


def test_real_lengths_take_the_place_of_the_stand_in():
    lab = Lab({"sharegpt": ([10, 20], [3, 4])})
    trace = engine_runs._trace(lab, ON_GPU)
    assert set(trace.num_prompt_tokens.tolist()) == {10, 20}
    assert "stand-in" not in engine_compare._order_claim(lab, "paged", "orca-oracle", "throughput").deviations
    assert "stand-in" in engine_compare._order_claim(Lab(), "paged", "orca-oracle", "throughput").deviations


def test_without_torch_it_says_so_and_exits_6(monkeypatch, capsys):
    monkeypatch.setattr(engine_compare, "without_torch", lambda: "torch is not installed (test)")
    assert verb.reproduce(["engine-compare"], as_json=True) == 6
    printed = capsys.readouterr()
    assert "torch is not installed (test)" in printed.err
    assert printed.out.count('"not here"') == 20
