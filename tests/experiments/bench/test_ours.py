"""pagelab's kernels as contestants, through Triton's interpreter: every kind of problem, and the twins."""

import dataclasses

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from experiments.bench.bench import Bench, chosen  # noqa: E402
from experiments.bench.cases import CASES  # noqa: E402
from experiments.bench.inputs import Arena, problem_of  # noqa: E402
from experiments.bench.ours import contestants, equal, grid, heuristic, written  # noqa: E402
from experiments.bench.shapes import FP8, Heads, Shape  # noqa: E402

HEADS = Heads("tiny", 4, 1, 32)
SHARED = Shape("shared-prefix", "decode", "x", HEADS, (40, 45), (1, 1), 16, dtype="float16", shared_tokens=32)
SHAPES = {
    "decode": Shape("twin", "decode", "x", HEADS, (5, 40), (1, 1), 16, dtype="float16"),
    "prefill": Shape("twin", "prefill", "x", HEADS, (20, 9), (4, 9), 16, dtype="float16"),
    "mixed": Shape("mixed", "mixed", "x", HEADS, (30, 20), (1, 6), 16, dtype="float16"),
    "write": Shape("write", "write", "x", HEADS, (1, 20), (1, 20), 16, dtype="float16"),
    "copy": Shape("copy", "copy", "x", HEADS, (16,) * 2, (16,) * 2, 16, dtype="float16"),
}


class Once:
    """Times nothing: the interpreter's seconds say nothing, and cost."""

    def synchronize(self):
        pass

    def capture(self, calls):
        return None

    def replay_s(self, graph, num_replays):
        return [1.0] * num_replays


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch):
    if torch.cuda.is_available():
        pytest.skip("for the interpreter")
    monkeypatch.setattr("experiments.bench.inputs.num_sets", lambda size: 1)


@pytest.mark.parametrize("kernel", SHAPES)
def test_our_kernels_compute_what_they_are_timed_for(kernel):
    shape = SHAPES[kernel]
    ours = chosen(kernel, contestants(shape, sweep=False), CASES[shape.case].contestants, [])

    rows = list(Bench(Arena("cpu", 0), Once()).rows(shape, ours))

    assert [(row["peer"], row["status"], row["reason"]) for row in rows] == [(one.name, "ok", "") for one in ours]
    assert all((row["config"] == "") is (kernel in ("write", "copy")) for row in rows)


@pytest.mark.parametrize("kernel", ["decode", "prefill", "mixed", "write"])
def test_over_an_fp8_cache_they_compute_what_its_numbers_and_scales_stand_for(kernel):
    shape = SHAPES[kernel].with_(case="fp8", dtype=FP8, heads=Heads("two", 4, 2, 32))
    ours = chosen(kernel, contestants(shape, sweep=False), CASES["fp8"].contestants, [])

    (row,) = Bench(Arena("cpu", 0), Once()).rows(shape, ours)

    assert (row["peer"], row["status"], row["reason"]) == ("pagelab", "ok", "")
    assert row["dtype"] == FP8
    assert row["relative_error"] == 0.0 if kernel == "write" else 0 < row["relative_error"] < 5e-3


def test_over_a_shared_prefix_plain_and_shared_compute_the_same():
    ours = chosen("decode", contestants(SHARED, sweep=False), CASES[SHARED.case].contestants, [])

    rows = list(Bench(Arena("cpu", 0), Once()).rows(SHARED, ours))

    assert [(row["peer"], row["status"]) for row in rows] == [("pagelab", "ok"), ("pagelab-shared", "ok")]
    assert rows[0]["moved_bytes"] == (32 + 8 + 13) * 2 * 32 * 2


def test_without_a_shared_prefix_and_without_blocks_nobody_claims_to_be_measured():
    everybody = contestants(SHAPES["decode"], sweep=False)
    bench = Bench(Arena("cpu", 0), Once())
    (none,) = bench.rows(SHAPES["decode"], [one for one in everybody if one.name == "pagelab-shared"])

    assert (none["status"], none["reason"]) == ("unsupported", "nothing is shared")


def test_a_sweep_over_a_shared_prefix_tries_the_shared_kernels_configurations(monkeypatch):
    monkeypatch.setattr("engine.attention.kernels.device.multiprocessors", lambda device: 132)
    swept = [one for one in contestants(SHARED, sweep=True) if one.swept]

    assert {one.name for one in swept} == {"pagelab-shared"}
    assert len({written(one.config) for one in swept}) == len(swept) > 50


def test_twins_take_part_where_paging_is_judged():
    assert [
        one.name for one in chosen("decode", contestants(SHAPES["decode"], sweep=False), CASES["twin"].contestants, [])
    ] == [
        "pagelab",
        "pagelab-twin",
        "pagelab-twin-equal",
    ]


def test_the_equal_twin_has_the_paged_kernels_configuration():
    for kernel in ("decode", "prefill"):
        problem = problem_of(SHAPES[kernel], Arena("cpu", 0))
        paged, twin = heuristic(problem, paged=True), equal(problem)
        same = [field.name for field in dataclasses.fields(paged) if field.name != "use_tma"]

        assert [getattr(twin, name) for name in same] == [getattr(paged, name) for name in same]
        assert not getattr(twin, "use_tma", False)  # blocks of 16 are smaller than a tile: no descriptor for either


def test_a_sweep_adds_every_configuration_for_paged_and_twin(monkeypatch):
    monkeypatch.setattr("engine.attention.kernels.device.multiprocessors", lambda device: 132)
    configs = [written(config) for config in grid(SHAPES["decode"])]
    swept = [one for one in contestants(SHAPES["decode"], sweep=True) if one.swept]

    assert len(set(configs)) == len(configs) > 50
    assert {one.name for one in swept} == {"pagelab", "pagelab-twin"}
    assert len(swept) == 2 * len(configs)
    assert [one for one in contestants(SHAPES["write"], sweep=True) if one.swept] == []
