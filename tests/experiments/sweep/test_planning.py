"""Cells, their hashes and seeds, equal capacity, and what is merged, left out or impossible."""

import itertools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from experiments.config import dump
from experiments.exits import UsageError
from experiments.resolve import plan_of
from experiments.settings import Config
from experiments.sweep.arrivals import RememberedArrivals, side_by_side
from experiments.sweep.axes import axes_of, axes_of_keys
from experiments.sweep.planning import by_workload, plan_sweep
from workloads import load_trace, save_trace

SEEDED = {"workload": {"name": "paper-fig2", "num_requests": 12}}


def planned(config, grid, **more):
    return plan_sweep(config, axes_of_keys(grid, **more))


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    blocks=st.integers(40, 4000),
    base_size=st.sampled_from([8, 16, 32]),
    sizes=st.lists(st.sampled_from([1, 2, 8, 16, 24, 64, 128]), min_size=2, unique=True),
)
def test_along_a_block_size_axis_every_pool_is_cut_from_the_same_tokens(base, blocks, base_size, sizes):
    pinned = base.with_(num_blocks=blocks, block_size=base_size)
    plan = planned(pinned, {"kv.block_size": sizes, "kv.allocator": ["paged", "orca-max"]})
    assert {cell.tokens for cell in plan.cells} == {blocks * base_size}
    for cell in plan.cells:
        assert blocks * base_size - cell.block_size < cell.num_blocks * cell.block_size <= blocks * base_size
    assert f"equal capacity along kv.block_size: {blocks * base_size:,} tokens" in plan.notes[0]
    assert f"num_blocks counted in blocks of {base_size}" in plan.notes[0]


def test_pools_differ_along_block_sizes_only_where_that_is_asked_for(base):
    pinned = base.with_(num_blocks=200)
    unequal = planned(pinned.with_(allow_unequal_pools=True), {"kv.block_size": [8, 16]})
    assert [cell.num_blocks for cell in unequal.cells] == [200, 200]
    grid = {"kv.block_size": [8, 16], "kv.num_blocks": [400, 100]}
    zipped = planned(base, grid, zips=[("kv.block_size", "kv.num_blocks")])
    assert [cell.num_blocks for cell in zipped.cells] == [400, 100]
    assert unequal.notes == zipped.notes == ["pools along kv.block_size are as given: they may differ in tokens"]


def test_a_pool_by_rule_is_the_same_tokens_at_every_block_size():
    plan = planned(Config.of(**SEEDED), {"kv.block_size": [1, 16, 128]})
    assert [cell.num_blocks for cell in plan.cells] == [984 * 16, 984, 984 * 16 // 128]


def test_seeds_are_of_the_repeat_and_the_draw_not_of_the_cell_the_axes_or_their_order():
    grid = {"kv.allocator": ["paged", "orca-max"], "workload.request_rate": [1.0, 2.0]}
    plan = planned(Config.of(**SEEDED, num_runs=3), grid)
    other = planned(Config.of(**SEEDED, num_runs=2), dict(reversed(list(grid.items()))) | {"kv.block_size": [8]})
    seeds = {repeat: {cell.seed for cell in plan.cells if cell.repeat == repeat} for repeat in range(3)}
    assert all(len(found) == 1 for found in seeds.values())
    assert len(set().union(*seeds.values())) == 3
    assert {cell.seed for cell in other.cells if cell.repeat == 1} == seeds[1]
    another = planned(Config.of(**SEEDED, seed=1, num_runs=3), grid)
    assert {cell.seed for cell in another.cells}.isdisjoint({cell.seed for cell in plan.cells})


def test_cells_of_a_repeat_replay_the_same_draw():
    plan = planned(Config.of(**SEEDED, num_runs=2), {"kv.allocator": ["paged", "orca-max"], "kv.block_size": [8, 16]})
    traces = {repeat: {cell.trace_sha256 for cell in plan.cells if cell.repeat == repeat} for repeat in range(2)}
    assert [len(found) for found in traces.values()] == [1, 1]
    assert traces[0] != traces[1]


def test_a_cell_is_what_run_would_run(base):
    plan = planned(base, {"kv.allocator": ["paged", "orca-max"], "kv.block_size": [8, 32]})
    for cell in plan.cells:
        alone = base.with_(allocator=cell.allocator, block_size=cell.block_size, seed=cell.seed)
        assert (
            plan_of(alone, verb="run", writes=False).sha256
            == plan_of(Config.model_validate(cell.config), verb="run", writes=False).sha256
        )


def test_equal_cells_are_planned_once_and_said(base):
    plan = planned(base, {"kv.block_size": [1, 1, 2, 2]})
    assert [cell.point["kv.block_size"] for cell in plan.cells] == [1, 2]
    assert (plan.num_points, len(plan.merged)) == (4, 2)
    assert "2 duplicate points are merged" in plan.notes[-1]
    assert "kv.block_size=1 twice" in plan.notes[-1]


def test_ten_points_between_one_and_four_are_four_cells_and_six_merged(base):
    plan = plan_sweep(base, axes_of([], ["kv.block_size=lin(1,4,10)"]))
    assert [cell.point["kv.block_size"] for cell in plan.cells] == [1, 2, 3, 4]
    assert len({cell.key for cell in plan.cells}) == 4
    assert (plan.num_points, len(plan.merged)) == (10, 6)
    assert "6 duplicate points are merged" in plan.notes[-1]


def test_a_value_that_is_the_default_is_the_same_cell_as_none(base):
    plan = planned(base, {"kv.block_size": [None, 16, 32]})
    assert [cell.point["kv.block_size"] for cell in plan.cells] == [None, 32]
    assert "kv.block_size=16 is kv.block_size=null" in plan.notes[-1]


def test_null_is_a_value_of_its_own_and_leaves_the_key_unset(base):
    plan = planned(base.with_(block_size=64), {"kv.block_size": [None, 32]})
    assert [(cell.point["kv.block_size"], cell.block_size) for cell in plan.cells] == [(None, 16), (32, 32)]


def test_a_point_that_cannot_be_run_is_kept_with_its_reason(base):
    plan = planned(base, {"kv.allocator": ["paged", "no-such"], "kv.block_size": [8, 16]})
    assert [cell.allocator for cell in plan.cells] == ["paged", "paged"]
    assert [one.point["kv.block_size"] for one in plan.infeasible] == [8, 16]
    assert "unknown allocator 'no-such'" in plan.infeasible[0].reason


@pytest.mark.parametrize(
    "grid,said",
    [
        ({"kv.block_sise": [8, 16]}, "--axis kv.block_sise: kv.block_sise: unknown key; did you mean kv.block_size?"),
        ({"kv.block_size": [8, "many"]}, "--axis kv.block_size"),
        ({"kv.allocator": ["no-such"]}, "none of the others can be run; the first: kv.allocator=no-such"),
        ({}, "nothing is varied"),
    ],
)
def test_a_mistake_is_no_infeasible_cell(base, grid, said):
    with pytest.raises(UsageError) as error:
        planned(base, grid)
    assert said in str(error.value)


def test_lists_of_the_configuration_are_axes(base):
    plan = planned(base.with_(allocator=["paged", "orca-max"], block_size=[8, 16]), {})
    assert [tuple(cell.point.values()) for cell in plan.cells] == [
        (allocator, size) for allocator in ("paged", "orca-max") for size in (8, 16)
    ]


def test_excluded_points_have_no_cell(base):
    grid = {"kv.allocator": ["paged", "orca-max"], "kv.block_size": [8, 16]}
    plan = planned(base, grid, exclude=['kv.allocator != "paged" and kv.block_size != 16'])
    assert plan.num_excluded == 1
    assert [tuple(cell.point.values()) for cell in plan.cells] == [("paged", 8), ("paged", 16), ("orca-max", 16)]


def test_what_the_cells_share_and_the_axes_make_the_same_cells_again(base):
    from experiments.config import Layer, resolve_layers

    grid = {"kv.block_size": [8, None], "scheduler.preset": ["vllm", "sosp23"]}
    plan = planned(base.with_(num_blocks=300), grid)
    again = planned(resolve_layers([Layer(plan.common, "file")]), grid)
    assert [cell.key for cell in again.cells] == [cell.key for cell in plan.cells]


def test_the_hash_is_of_contents_and_not_of_names(base, tiny_file, tmp_path):
    grid = {"kv.block_size": [8, 16]}
    keys = [cell.key for cell in planned(base, grid).cells]
    copy = tmp_path / "tiny.csv"
    copy.write_bytes(tiny_file.read_bytes())
    assert [cell.key for cell in planned(base.with_(trace=str(copy)), grid).cells] == keys
    save_trace(load_trace(tiny_file).trace.slice(0, 11), copy)
    assert {cell.key for cell in planned(base.with_(trace=str(copy)), grid).cells}.isdisjoint(keys)


def test_repeats_of_a_file_are_refused(base):
    with pytest.raises(UsageError, match="every repeat would be the same"):
        planned(base.with_(num_runs=2), {"kv.block_size": [8, 16]})


def test_traces_are_drawn_once_for_each_workload_and_seed():
    remembered = RememberedArrivals()
    config = Config.of(**SEEDED)
    for seed in (1, 2, 1, 2, 1):
        first = remembered(config.workload, seed, 1)
        assert first is remembered(config.workload, seed, 1)
    assert remembered.num_drawn == 2


def test_memory_for_traces_is_bounded():
    remembered = RememberedArrivals(most_rows=30)
    workload = Config.of(**SEEDED).workload
    for seed in (1, 2, 3, 1):
        remembered(workload, seed, 1)
    assert remembered.num_drawn == 4  # of 12 rows each, two are kept


def test_the_plain_values_of_a_cell_are_its_configuration(base):
    [cell] = planned(base, {"kv.block_size": [8]}).cells
    assert dump(Config.model_validate(cell.config)) == cell.config


# large traces ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def little_memory(monkeypatch):
    """Traces remembered up to thirty rows: two of a dozen."""
    remembered = RememberedArrivals(most_rows=30)
    monkeypatch.setattr("experiments.sweep.cell.of_this_process", lambda: remembered)
    return remembered


RATES = {"kv.block_size": [8, 16, 32], "workload.request_rate": [1.0, 2.0, 3.0, 4.0]}


def test_a_plan_reads_each_trace_once_however_few_are_remembered(base, little_memory):
    cells = planned(base, RATES).cells
    assert little_memory.num_drawn == 4 + 1  # the first again, for the manifest
    assert [tuple(cell.point.values()) for cell in cells] == list(itertools.product(*RATES.values()))


def test_cells_of_large_traces_are_run_side_by_side_and_all_of_them(base):
    cells = planned(base, RATES).cells
    assert side_by_side(cells, most_rows=48) == list(cells)
    together = side_by_side(cells, most_rows=47)
    assert sorted(cell.name for cell in together) == sorted(cell.name for cell in cells)
    traces = [cell.trace_sha256 for cell in together]
    assert sum(one != other for one, other in itertools.pairwise(traces)) == 3


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3)), max_size=20))
def test_points_are_grouped_by_what_arrives_and_keep_their_order(values):
    points = [{"workload.name": name, "kv.block_size": size} for name, size in values]
    order = by_workload(points)
    assert sorted(order) == list(range(len(points)))
    names = [points[place]["workload.name"] for place in order]
    assert sum(one != other for one, other in itertools.pairwise(names)) == max(0, len(set(names)) - 1)
    for name in set(names):
        own = [place for place in order if points[place]["workload.name"] == name]
        assert own == sorted(own)
