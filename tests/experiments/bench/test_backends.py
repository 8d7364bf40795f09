"""Attention backends as contestants: on the problem's own pool, through their interface; what cannot is named."""

import json

import pytest

torch = pytest.importorskip("torch")

from engine.attention import BACKENDS, get_backend  # noqa: E402
from engine.attention.reference_backends import ReferenceImpl  # noqa: E402
from experiments.bench.backends import ThroughTheInterface, entered, named, sharing  # noqa: E402
from experiments.bench.bench import Bench  # noqa: E402
from experiments.bench.cases import CASES, OF_BACKENDS, shapes_of  # noqa: E402
from experiments.bench.contestant import UnsupportedError  # noqa: E402
from experiments.bench.inputs import Arena, problem_of  # noqa: E402
from experiments.bench.session import Wanted  # noqa: E402
from experiments.bench.shapes import LAYOUTS, Heads, Shape  # noqa: E402

MIXED = Shape("backends", "mixed", "x", Heads("tiny", 4, 2, 16), (40, 17, 21), (1, 1, 6), 16, dtype="float32")


@pytest.fixture(autouse=True)
def small_arena(monkeypatch):
    """Two sets."""
    monkeypatch.setattr("experiments.bench.inputs.num_sets", lambda size: 2)


def rows_of(stopwatch, shape, names):
    contestants = [ThroughTheInterface(get_backend(name)) for name in names]
    return list(Bench(Arena("cpu", 0), stopwatch(1.0)).rows(shape, contestants))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_backends_of_a_layout_are_right_on_its_pool_and_others_say_that_they_need_another(layout, stopwatch):
    names = ["reference", "reference-flash-attn", "reference-flashinfer", "reference-pallas"]
    rows = rows_of(stopwatch, MIXED.with_(layout=layout, heads=Heads("64", 4, 2, 64)), names)
    native = {"kv_first": "flash-attn", "block_first": "flashinfer", "interleaved": "pallas"}[layout]
    status = {row["peer"]: row["status"] for row in rows}
    assert status == {
        f"backend/{name}": "ok" if name in ("reference", f"reference-{native}") else "unsupported" for name in names
    }
    assert all("expected layout" in row["reason"] for row in rows if row["status"] == "unsupported")
    assert all(row["relative_error"] < 1e-6 for row in rows if row["status"] == "ok")
    (line,) = sharing(rows)
    assert line.startswith(f"one pool {rows[0]['config']}, no copies: reference, reference-{native}; not: ")


def test_a_backend_on_a_stream_of_its_own_takes_part_and_says_that_no_graph_held_it(stopwatch):
    if why := get_backend("pallas").unavailable_because():
        pytest.skip(why)
    here, _ = entered(named(["pallas"]))
    assert [one.name for one in here] == ["backend/pallas"]
    watch = stopwatch(1.0)
    (row,) = Bench(Arena("cpu", 0), watch).rows(MIXED.with_(layout="interleaved"), here)
    assert (row["status"], row["config"]) == ("ok", "(NB, BS, 2*KH, D) issued one by one")
    assert row["relative_error"] < 1e-6
    assert watch.num_graphs == 0


def test_a_backend_that_reads_another_memory_is_wrong(stopwatch, monkeypatch):
    honest = ReferenceImpl._attend
    monkeypatch.setattr(
        ReferenceImpl, "_attend", lambda self, q, cache, step, out: honest(self, q, cache.flip(-1), step, out)
    )
    (row,) = rows_of(stopwatch, MIXED, ["reference"])
    assert row["status"] == "wrong"


def test_a_layer_that_a_backend_cannot_do_is_unsupported_with_the_reason():
    problem = problem_of(MIXED, Arena("cpu", 0))
    with pytest.raises(UnsupportedError, match="flash-attn-3: expected dtype float16 or bfloat16, got float32"):
        ThroughTheInterface(get_backend("flash-attn-3")).enter(problem)
    with pytest.raises(UnsupportedError, match="flash-attn-2: expected block_size a multiple of 256, got 16"):
        ThroughTheInterface(get_backend("flash-attn-2")).enter(problem)


def test_names_come_with_commas_or_as_all():
    assert named(["triton,flashinfer", "triton"]) == ("triton", "flashinfer")
    assert named(["triton", "all"]) == tuple(BACKENDS)
    assert named([]) == ()
    with pytest.raises(ValueError, match=r"unknown attention backend 'tritn'; did you mean triton or triton-mla\?"):
        named(["tritn"])


def test_whoever_cannot_be_timed_is_named_with_the_reason(monkeypatch, tmp_path):
    monkeypatch.setenv("PAGELAB_FA3_LIBRARY", "replaced")
    here, missing = entered(named(["all"]), tmp_path / "none.so")
    reasons = {one.name.removeprefix("backend/"): one.reason for one in missing}
    assert {one.name.removeprefix("backend/") for one in here} | reasons.keys() == BACKENDS.keys()
    assert reasons["reference"] == "waits for the device, so that no CUDA graph can hold it"
    assert reasons["reference-mla"] == "keeps latents, and the cases are of layers with K and V"
    assert "none.so: no such library" in reasons["flash-attn-3"]


def test_backends_mean_their_case_and_nobody_else_has_it():
    assert Wanted(backends=("all",)).chosen_cases == (OF_BACKENDS,)
    assert Wanted().chosen_cases == tuple(name for name in CASES if name != OF_BACKENDS)
    assert Wanted(("decode",), backends=("triton",)).chosen_cases == ("decode",)
    shapes = shapes_of(OF_BACKENDS)
    assert {shape.layout for shape in shapes} == set(LAYOUTS)
    assert {shape.kernel for shape in shapes} == {"decode", "prefill", "mixed"}
    assert json.loads(json.dumps(Wanted(backends=("all",), peers=()).to_dict()))["backends"] == ["all"]
    with pytest.raises(ValueError, match="unknown attention backend"):
        Wanted(backends=("none",)).shapes()
