"""`compare A B`: cells matched by what they are, differences with intervals, thresholds with an exit code."""

import math
import shutil

import pandas as pd
import pytest

from experiments.against.deltas import Delta, Threshold, delta_of
from experiments.against.matching import Pair, match
from experiments.figures.intervals import t95
from experiments.figures.stored import Stored
from sim.lookup import better, definition_of, least_sample
from sim.metrics import ENGINE_METRICS, METRICS
from tests.experiments.swept import write_sweep

AXES = {"kv.allocator": ["orca-max", "paged"], "scheduler.long_prefill_token_threshold": [None, 32]}


@pytest.fixture(scope="session")
def two(tmp_path_factory):
    """The same sweep twice, the second with a tenth longer steps and a failed cell."""
    folder = tmp_path_factory.mktemp("against")
    write_sweep(folder / "a", AXES, repeats=2)
    write_sweep(folder / "b", AXES, repeats=2, step_s=0.022, failing=[("orca-max", 32)])
    return folder / "a", folder / "b"


@pytest.fixture
def pair_of_copies(two, tmp_path):
    """Two copies of the first, for tests that change one."""
    return [shutil.copytree(two[0], tmp_path / name) for name in ("a", "b")]


def change(folder, edit):
    summary = pd.read_csv(folder / "summary.csv")
    edit(summary).to_csv(folder / "summary.csv", index=False)


def pair(first, second, *, paired=True):
    return Pair(("paged",), pd.DataFrame({"mean_ttft_s": first}), pd.DataFrame({"mean_ttft_s": second}), paired)


# differences ----------------------------------------------------------------------------------------------------------


def test_pairs_have_the_interval_of_their_differences_and_samples_that_of_two_means():
    first, second = [1.0, 2.0, 6.0], [1.5, 2.7, 6.6]
    paired = delta_of(pair(first, second), "mean_ttft_s")
    assert paired.relative == pytest.approx(0.6 / 3)
    assert paired.half == pytest.approx(t95(2) * 0.1 / math.sqrt(3))
    assert paired.verdict == "worse"
    apart = delta_of(pair(first, second, paired=False), "mean_ttft_s")
    error = math.sqrt(pd.Series(first).var() / 3 + pd.Series(second).var() / 3)
    assert apart.half == pytest.approx(t95(2) * error)
    assert apart.verdict == "same"


def test_a_run_without_the_value_takes_its_pair_along():
    delta = delta_of(pair([1.0, 2.0, 10.0], [2.0, 3.0, None]), "mean_ttft_s")
    assert (delta.first, delta.second, delta.runs) == (1.5, 2.5, (2, 2))
    nothing = delta_of(pair([1.0], [None]), "mean_ttft_s")
    assert (nothing.absolute, nothing.verdict) == (None, "unknown")


@pytest.mark.parametrize(
    "metric,first,second,half,verdict",
    [
        ("mean_ttft_s", 1.0, 1.1, None, "worse"),
        ("mean_ttft_s", 1.0, 0.9, None, "better"),
        ("output_tok_per_s", 100.0, 90.0, 5.0, "worse"),
        ("output_tok_per_s", 100.0, 90.0, 12.0, "same"),
        ("output_tok_per_s", 100.0, 100.0, None, "same"),
        ("p99_tpot_s", 1.0, 2.0, None, "worse"),
        ("makespan_kv_live_frac", 0.5, 0.6, None, "better"),
        ("kv_free_frac", 0.5, 0.6, None, "different"),
        ("num_preemptions", 0.0, 3.0, None, "worse"),
    ],
)
def test_which_way_is_better_is_known_from_the_metric(metric, first, second, half, verdict):
    assert Delta((), metric, first, second, half, (1, 1), True).verdict == verdict


def test_every_metric_has_its_way_in_its_definition():
    for metric in (*METRICS, *ENGINE_METRICS):
        assert better(metric.name) == metric.better
    assert {metric.better for metric in METRICS if metric.unit.startswith("s")} == {"lower"}
    assert definition_of("p95_ttft_s").label == "p95 TTFT"
    assert definition_of("num_blocks") is None
    assert [least_sample(f"p{q}_e2e_s") for q in (50, 90, 95, 99)] == [2, 10, 20, 100]


def test_from_zero_there_is_no_per_cent_but_thresholds_hold():
    delta = Delta(("paged",), "num_preemptions", 0.0, 3.0, None, (1, 1), True)
    frame = pd.DataFrame({"num_preemptions": [0]})
    assert delta.relative == math.inf
    assert Threshold.parse("num_preemptions>5%", frame).passed_by(delta)
    assert Threshold.parse("num_preemptions > 2", frame).passed_by(delta)
    assert not Threshold.parse("num_preemptions>3", frame).passed_by(delta)
    assert not Threshold.parse("num_preemptions<-5%", frame).passed_by(delta)
    assert Delta((), "num_preemptions", 0.0, 0.0, None, (1, 1), True).relative == 0.0


@pytest.mark.parametrize(
    "text", ["mean_ttft_s", "mean_ttft_s<", "<5%", "mean_ttft_s<5%%", "mean_ttft_s=5%", "mean_ttft_s<5ms", "a b<5", ""]
)
def test_a_threshold_is_parsed_strictly(text):
    with pytest.raises(ValueError, match="--fail-on is METRIC<NUMBER"):
        Threshold.parse(text, pd.DataFrame({"mean_ttft_s": [1.0]}))


def test_a_threshold_on_an_unknown_metric_is_answered_with_the_nearest():
    with pytest.raises(ValueError, match="did you mean mean_ttft_s"):
        Threshold.parse("mean_tft_s>5%", pd.DataFrame({"mean_ttft_s": [1.0]}))


# matching -------------------------------------------------------------------------------------------------------------


def test_cells_are_matched_by_their_axes_nulls_included(two):
    matching = match(*map(Stored, two))
    assert matching.columns == ("allocator", "block_size", "scheduler.long_prefill_token_threshold")
    assert [one.key for one in matching.pairs] == [
        ("orca-max", "16", "unset"),
        ("paged", "16", "unset"),
        ("paged", "16", "32"),
    ]
    assert all(one.paired and len(one.first) == 2 for one in matching.pairs)
    assert list(matching.unmatched) == [f"only in {two[0]}: orca-max 16 32"]
    assert [line for line in matching.lost if "it broke on purpose" in line] == list(matching.lost)
    assert len(matching.lost) == 2
    assert any(line.startswith("measure.step_model: linear:0.02,") for line in matching.differences)


def test_rows_in_any_order_are_the_same_rows(pair_of_copies):
    change(pair_of_copies[1], lambda frame: frame.iloc[::-1])
    matching = match(*map(Stored, pair_of_copies))
    assert not matching.unmatched
    for one in matching.pairs:
        assert delta_of(one, "mean_e2e_s").absolute == 0.0
        assert delta_of(one, "mean_e2e_s").half == 0.0


def test_seeds_of_one_side_alone_are_listed_and_left_out(pair_of_copies):
    change(pair_of_copies[1], lambda frame: frame.iloc[1:])
    matching = match(*map(Stored, pair_of_copies))
    (left,) = matching.unmatched
    assert left.startswith(f"only in {pair_of_copies[0]}: orca-max 16 unset seed ")
    assert [len(one.first) for one in matching.pairs] == [1, 2, 2, 2]


def test_other_seeds_make_two_samples(pair_of_copies):
    change(pair_of_copies[1], lambda frame: frame.assign(seed=frame["seed"] + 1))
    matching = match(*map(Stored, pair_of_copies))
    assert not any(one.paired for one in matching.pairs)
    assert not matching.unmatched
    assert delta_of(matching.pairs[0], "mean_e2e_s").absolute == 0.0
    assert delta_of(matching.pairs[0], "mean_e2e_s").half > 0.0


def test_a_sweep_is_matched_with_a_comparison_by_its_configuration(two, small, pagelab, strict_object):
    """A comparison knows the axis only from its configuration."""
    words = ("--allocator", "paged", "--long-prefill-token-threshold", "32", "--no-report")
    assert small("compare", "-o", "one", *words).code == 0
    answer = strict_object(pagelab("compare", two[0], "one", "--metric", "kv_live_frac", "--json").out)
    assert [row["scheduler.long_prefill_token_threshold"] for row in answer["deltas"]] == ["32"]
    assert len(answer["unmatched"]) == 3


# the verb -------------------------------------------------------------------------------------------------------------


def test_the_same_results_differ_by_nothing(pair_of_copies, pagelab):
    done = pagelab("compare", *pair_of_copies, "--fail-on", "output_tok_per_s<0%", "--fail-on", "mean_ttft_s>0")
    assert done.code == 0, done.err
    assert done.out.rstrip().splitlines()[-1] == "within output_tok_per_s<0%, mean_ttft_s>0 in 4 configurations"


def test_slower_steps_pass_the_threshold_and_give_exit_5(two, pagelab, strict_object):
    words = ("compare", *two, "--metric", "mean_tpot_s", "--fail-on", "mean_tpot_s>5%")
    done = pagelab(*words)
    assert done.code == 5
    assert "exceeded: mean_tpot_s>5%: paged 16 unset: +" in done.out
    assert f"unmatched: only in {two[0]}: orca-max 16 32" in done.err
    answer = strict_object(pagelab(*words, "--json").out)
    assert (answer["exit_code"], len(answer["exceeded"])) == (5, 3)
    assert {row["verdict"] for row in answer["deltas"]} == {"worse"}
    assert all(0.05 < row["delta_frac"] < 0.11 for row in answer["deltas"])


def test_failed_cells_are_exit_3_where_no_threshold_is_passed(two, pagelab):
    assert pagelab("compare", *two, "--fail-on", "mean_tpot_s>50%").code == 3


@pytest.mark.parametrize(
    "last,said", [(1, "the second result has no mean_tpot_s"), (0, "1 runs have mean_tpot_s in one result alone")]
)
def test_a_value_that_is_lost_fails_its_threshold(pair_of_copies, pagelab, last, said):
    change(pair_of_copies[1], lambda frame: frame.assign(mean_tpot_s=frame["mean_tpot_s"].where(frame.index > last)))
    done = pagelab("compare", *pair_of_copies, "--fail-on", "mean_tpot_s>50%")
    assert done.code == 5
    assert f"exceeded: mean_tpot_s>50%: orca-max 16 unset: {said}" in done.out


def test_a_threshold_on_gains_says_so(pair_of_copies, pagelab):
    done = pagelab("compare", *pair_of_copies, "--fail-on", "output_tok_per_s>5%")
    assert done.code == 0
    assert "output_tok_per_s is better higher: this fails on gains" in done.err


def test_the_differences_are_written_where_asked(two, pagelab, tmp_path):
    words = ("compare", *two, "--metric", "kv_live_frac,mean_ttft_s", "-o", "diff")
    pagelab(*words)
    written = pd.read_csv(tmp_path / "diff" / "comparison.csv")
    assert list(written["metric"]) == ["kv_live_frac", "mean_ttft_s"] * 3
    assert pagelab(*words).code == 2
    assert pagelab(*words, "--overwrite").code == 3


@pytest.mark.parametrize(
    "words,said",
    [
        (("A",), "compare takes two results folders, or none, got 1"),
        (("A", "A"), "against itself"),
        (("A", "nowhere"), "no summary.csv here"),
        (("A", "B", "--metric", "mean_tpots"), "did you mean mean_tpot_s"),
        (("A", "B", "--metric", "window_kind"), "not a number in every row"),
        (("A", "B", "--fail-on", "mean_tpot_s"), "--fail-on is METRIC<NUMBER"),
        (("A", "B", "--block-size", "16"), "take no options of a replay"),
        (("--fail-on", "mean_tpot_s>5%"), "compare takes two results folders, or none, got 0"),
    ],
)
def test_what_cannot_be_compared_is_exit_2(two, pagelab, words, said):
    done = pagelab("compare", *({"A": two[0], "B": two[1]}.get(word, word) for word in words))
    assert (done.code, done.out) == (2, "")
    assert said in done.err


def test_results_without_a_common_configuration_are_refused(pair_of_copies, pagelab):
    """Where a setting varies on one side, which of its cells would belong to the other's is nobody's to say."""
    change(pair_of_copies[1], lambda frame: frame.assign(block_size=[64] * 4 + [128] * 4))
    done = pagelab("compare", *pair_of_copies)
    assert done.code == 2
    assert "no configuration is in both" in done.err
    assert "block_size is 16 against 64, 128" in done.err
    change(pair_of_copies[1], lambda frame: frame.iloc[:0])
    assert f"{pair_of_copies[1]} has no finished cell" in pagelab("compare", *pair_of_copies).err


# results that differ in a setting that is the same within each -------------------------------------------------------


RATES = {"workload.request_rate": [2, 8]}
SETTINGS = {
    "kv.allocator": ("orca-max", "paged", "allocator: orca-max against paged"),
    "kv.block_size": (8, 32, "block_size: 8 against 32"),
    "scheduler.max_num_seqs": (4, 64, "scheduler.max_num_seqs: 4 against 64"),
    "kv.kv_tokens": (3000, 5000, "kv.kv_tokens: 3000 against 5000"),
}


@pytest.mark.parametrize("key", SETTINGS)
def test_results_that_differ_in_one_setting_are_matched_on_what_varies_within(key, tmp_path, pagelab, strict_object):
    *values, said = SETTINGS[key]
    for name, value in zip("ab", values, strict=True):
        write_sweep(tmp_path / name, RATES, rate_key="workload.request_rate", repeats=2, base={key: value}.items())
    words = ("compare", tmp_path / "a", tmp_path / "b", "--metric", "mean_batch_size,mean_ttft_s")
    done = pagelab(*words, "--json")
    assert done.code == 0, done.err
    answer = strict_object(done.out)
    assert said in answer["differences"]
    assert answer["unmatched"] == []
    assert key.rpartition(".")[2] not in answer["matched_by"]
    sides = [pd.read_csv(tmp_path / name / "summary.csv") for name in "ab"]
    for row in answer["deltas"]:
        means = [
            side[side["workload.request_rate"] == float(row["workload.request_rate"])][row["metric"]].mean()
            for side in sides
        ]
        assert (row["first"], row["second"]) == pytest.approx(tuple(means))
        assert row["paired"]
    assert len(answer["deltas"]) == 2 * len(RATES["workload.request_rate"])
    assert f"differs: {said}" in pagelab(*words).err


def test_two_runs_of_other_allocators_are_compared_and_judged(small, pagelab):
    for name in ("orca-max", "paged"):
        assert small("run", "-o", name, "--allocator", name, "--no-report").code == 0
    done = pagelab("compare", "orca-max", "paged", "--fail-on", "mean_ttft_s<-5%")
    assert "differs: allocator: orca-max against paged" in done.err
    assert (done.code, "exceeded: mean_ttft_s<-5%: 16: -" in done.out) == (5, True)
    assert pagelab("compare", "paged", "orca-max", "--fail-on", "mean_ttft_s<-5%").code == 0


def test_nothing_but_settings_that_differ_leaves_one_configuration(small, pagelab):
    for name, size in (("orca-max", "16"), ("paged", "32")):
        assert small("run", "-o", name, "--allocator", name, "--block-size", size, "--no-report").code == 0
    done = pagelab("compare", "orca-max", "paged", "--fail-on", "mean_ttft_s<0%")
    assert done.code == 5
    assert "exceeded: mean_ttft_s<0%: the one configuration: -" in done.out
    assert {"differs: allocator: orca-max against paged", "differs: block_size: 16 against 32"} <= set(
        done.err.splitlines()
    )


def test_a_setting_that_varies_on_one_side_is_matched_by_its_value(tmp_path, pagelab, strict_object):
    write_sweep(tmp_path / "a", {"kv.block_size": [8, 16]}, base={"kv.allocator": "paged"}.items())
    write_sweep(tmp_path / "b", {"kv.allocator": ["orca-max", "paged"], "kv.block_size": [8, 16]})
    answer = strict_object(pagelab("compare", tmp_path / "a", tmp_path / "b", "--json").out)
    assert {row["allocator"] for row in answer["deltas"]} == {"paged"}
    assert [line.rpartition(": ")[2] for line in answer["unmatched"]] == ["orca-max 8", "orca-max 16"]


def test_sweeps_of_the_same_sizes_are_matched_by_what_was_asked_for(tmp_path, small, pagelab, strict_object):
    """The block size of `virtual` is that of its page, at each of the sizes."""
    axis = ("--axis", "kv.block_size=8,16", "--jobs", "1")
    assert small("sweep", "--allocator", "paged", *axis, "-o", "a").code == 0
    assert small("sweep", "--allocator", "virtual", "--page-bytes", "64KiB", *axis, "-o", "b").code == 0
    answer = strict_object(pagelab("compare", "a", "b", "--metric", "kv_live_frac", "--json").out)
    assert "allocator: paged against virtual" in answer["differences"]
    assert [row["kv.block_size"] for row in answer["deltas"]] == ["8", "16"]
    assert len({row["second"] for row in answer["deltas"]}) == 1
    assert answer["unmatched"] == []
