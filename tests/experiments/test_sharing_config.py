"""Samples, beams and swaps in configurations and on the command line: defaults, refusals, hashes, records."""

import json

import pandas as pd
import pytest

from experiments.exits import UsageError
from experiments.resolve import plan_of, pool_config
from experiments.settings import Config
from experiments.sharing import BEAM_SPREAD, PCIE4, PCIE5, host_blocks, transfers_of
from sim.extra_metrics import SHARING_METRICS
from workloads import Trace

TRACE = Trace.build([0, 0, 10**9], [40, 20, 33], [9, 20, 5], limit_tokens=[9, 20, 5], name="three")


def planned(verb="run", **keys):
    return plan_of(Config.of(**{"kv_tokens": 4000, "max_model_len": 512, **keys}), verb=verb, trace=TRACE)


def test_what_came_later_leaves_the_hashes_of_before_alone():
    plain = planned()
    said = planned(num_samples=1, samples_as="fork", preemption="recompute")

    assert said.sha256 == plain.sha256
    assert len({planned(num_samples=n).sha256 for n in (1, 2, 3)}) == 3
    assert planned(preemption="swap", host_blocks=9).sha256 != plain.sha256


def test_groups_under_the_papers_rules_swap_to_host_memory_as_large_as_the_pool():
    plan = planned(num_samples=3, preset="sosp23", max_num_batched_tokens=512)

    assert (plan.config.scheduler.preemption, plan.config.kv.host_bytes) == ("auto", "pool")
    assert pool_config(plan.config, plan.cells[0]).host_blocks == plan.cells[0].num_blocks
    assert plan_of(plan.config, verb="run", trace=TRACE).sha256 == plan.sha256
    alone = planned(preset="sosp23", max_num_batched_tokens=512)
    assert (alone.config.scheduler.preemption, alone.config.kv.host_bytes) == ("recompute", None)
    assert alone.config.measure.host_copy_s is None


def test_copies_cost_calls_and_bytes_by_gpu():
    keys = {"preemption": "swap", "host_bytes": "1GiB", "model": {"name": "opt-13b", "gpu": "a100-40g"}}
    old = transfers_of(planned(**keys).config, 16)
    new = transfers_of(planned(**{**keys, "model": {"name": "opt-13b", "gpu": "h200"}}).config, 16)

    assert (old.block_bytes, old.copies_per_block) == (13_107_200, 80)
    assert old.swap_block_ps == pytest.approx((80 * PCIE4[1] + 13_107_200 / PCIE4[0]) * 1e12)
    assert (new.host_bytes_per_s, new.host_copy_s) == PCIE5
    assert old.copy_block_ps == pytest.approx(13_107_200 / (0.8 * 1.555e12 / 2) * 1e12, abs=1)
    assert host_blocks(planned(**keys).config, 16, 984) == 2**30 // 13_107_200
    given = planned(**keys, host_bytes_per_s=1e9, host_copy_s=0).config
    assert transfers_of(given, 16).swap_block_ps == 13_107_200_000


@pytest.mark.parametrize(
    "keys,said",
    [
        ({"num_samples": 2, "samples_as": "requests", "enable_prefix_caching": False}, "--enable-prefix-caching"),
        ({"samples_as": "requests"}, "--num-samples"),
        ({"num_samples": 2, "beam_width": 2}, "keep one"),
        ({"num_samples": 0}, "greater than 0"),
        ({"preemption": "swap"}, "--host-bytes"),
        ({"num_samples": 2, "preemption": "auto"}, "--host-bytes"),
        ({"host_blocks": 9}, "--preemption swap"),
        ({"host_bytes": "20", "preemption": "swap"}, "write 20GiB or 20GB"),
        ({"host_bytes": 70_000, "preemption": "swap"}, "not one block of 16 tokens"),
        ({"host_bytes": "1GiB", "host_blocks": 3, "preemption": "swap"}, "keep one"),
        ({"preemption": "swap", "host_blocks": 9, "allocator": "orca-max"}, "--allocator orca-max cannot swap"),
        ({"num_samples": 2, "allocator": "contiguous-chunk(64)-first-fit"}, "reservations that grow"),
        ({"num_samples": 2, "allocator": "orca-max", "batching": "request"}, "--batching request"),
        ({"num_samples": 2, "executor": "torch-cpu"}, "--executor torch-cpu"),
        ({"num_samples": 2, "backend": "cpu"}, "--backend cpu"),
        ({"beam_spread": 1}, "--beam-width"),
        ({"beam_width": 2, "beam_spread": -1}, "beam_spread"),
        ({"host_copy_s": 1e-6}, "nothing is copied"),
        ({"num_samples": 129}, "--max-num-seqs is 128"),
        ({"beam_width": 9, "max_num_batched_tokens": 8}, "--max-num-batched-tokens is 8"),
        ({"beam_width": 4, "samples_as": "requests"}, "leave one of them out"),
        ({"watermark": 1}, "--watermark 1"),
        ({"preemption": "swap", "host_blocks": 9, "host_bytes_per_s": 1e-300}, "--host-bytes-per-s 1e-300"),
        ({"preemption": "swap", "host_blocks": 9, "host_copy_s": 1e9}, "--host-copy-s"),
        ({"num_samples": 2, "copy_bytes_per_s": 1e-300}, "--copy-bytes-per-s 1e-300"),
        ({"beam_width": 2, "host_copy_s": "3us"}, "write 3e-06"),
        ({"victim": "first"}, "victim"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_runs(keys, said):
    with pytest.raises(UsageError, match=said):
        planned(**keys)


def test_a_beam_has_a_spread_and_it_is_recorded():
    assert planned(beam_width=3).config.measure.beam_spread == BEAM_SPREAD
    assert planned(beam_width=3, beam_spread=2).config.measure.beam_spread == 2


@pytest.mark.parametrize("executor", ["cost", "shadow"])
def test_samples_on_the_command_line(pagelab, trace_file, tmp_path, executor):
    words = ("--kv-tokens", "4000", "--max-model-len", "2048", "--preset", "sosp23")
    done = pagelab(
        "run", "--trace", trace_file, *words, "--num-samples", "3", "--executor", executor, "-o", "out", "--no-report"
    )

    assert done.code == 0, done.err
    (row,) = pd.read_csv(tmp_path / "out/summary.csv").to_dict("records")
    assert {metric.name for metric in SHARING_METRICS} <= row.keys()
    assert row["num_forks"] >= 2 * row["num_finished"] > 0
    assert row["mean_logical_blocks"] > row["mean_physical_blocks"] > 0
    assert 0 < row["sharing_saving_frac"] < 2 / 3
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    assert manifest["config"]["workload"]["num_samples"] == 3
    assert manifest["transfers"]["16"]["copies_per_block"] == 2 * 32
    assert manifest["transfers"]["16"]["swap_block_ps"] > 0


def test_the_words_of_sharing_are_in_the_help(pagelab):
    text = pagelab("run", "--help").out

    for flag in ("--num-samples", "--beam-width", "--samples-as", "--preemption", "--victim", "--host-bytes"):
        assert flag in text
