"""`--replicas` and `--router`: what they make of a run, of its files and of its report, and what is refused."""

from __future__ import annotations

import json

import pandas as pd
import pytest

from experiments.cli import main
from experiments.exits import UsageError
from experiments.figures import Stored
from experiments.fleet import with_fleet
from experiments.report import context_of, page
from experiments.settings import Config, Replicas

SMALL = ("--num-requests", "60", "--kv-tokens", "8192", "--end", "none", "--window", "arrivals")
CHAT = (
    "--workload",
    "chat",
    "--num-requests",
    "150",
    "--kv-tokens",
    "16384",
    "--step-model",
    "linear:9e-3,4e-5,3e-7,9e-5",
)


def summary_of(capsys, *words):
    assert main(["run", "--json", *words]) == 0
    (row,) = json.loads(capsys.readouterr().out)["runs"]
    return row


def files_of(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.glob("cells/*/*"))} | {
        name: (folder / name).read_bytes() for name in ("summary.csv", "config.resolved.toml")
    }


def test_one_replica_is_the_plain_run_byte_for_byte(tmp_path):
    plain, one = tmp_path / "plain", tmp_path / "one"
    assert main(["run", *SMALL, "-o", str(plain), "-q", "--no-report"]) == 0
    assert (
        main(["run", *SMALL, "-o", str(one), "-q", "--no-report", "--replicas", "1", "--router", "least-loaded"]) == 0
    )
    assert files_of(plain) == files_of(one)


def test_the_numbers_do_not_depend_on_the_processes(tmp_path):
    folders = [tmp_path / jobs for jobs in "12"]
    for folder in folders:
        words = ["run", *SMALL, "--replicas", "3", "-j", folder.name, "-o", str(folder), "-q", "--no-report"]
        assert main(words) == 0
    assert files_of(folders[0]) == files_of(folders[1])


def test_a_fleet_has_a_table_of_its_replicas_and_a_report_that_says_so(tmp_path):
    folder = tmp_path / "fleet"
    assert (
        main(["run", *SMALL, "--replicas", "3", "--router", "least-loaded", "-o", str(folder), "-q", "--no-report"])
        == 0
    )
    cell = next(folder.glob("cells/*"))
    requests, replicas = (pd.read_parquet(cell / f"{name}.parquet") for name in ("requests", "replicas"))
    row = pd.read_csv(folder / "summary.csv").iloc[0]
    assert replicas["num_requests"].tolist() == requests.groupby("replica").size().tolist()
    assert (row["num_replicas"], row["router"]) == (3, "least-loaded")
    assert row["capacity_tokens"] == 3 * replicas["capacity_tokens"].iloc[0] == 3 * 8192
    assert row["output_tok_per_s"] == pytest.approx(replicas["output_tok_per_s"].sum(), rel=1e-12)
    assert row["mean_batch_size"] == pytest.approx(replicas["mean_batch_size"].sum(), rel=1e-12)
    assert row["kv_live_frac"] == pytest.approx(replicas["kv_live_frac"].mean(), rel=1e-12)
    assert 1 <= row["load_imbalance"] <= 3
    told = page(context_of(Stored(folder), []))
    assert "3 replicas, each with that memory; router least-loaded (balance_by = requests)" in told
    assert "load imbalance" in told
    assert "Each replica of the first seed" in told
    assert main(["validate", str(folder)]) == 0


@pytest.mark.parametrize("seed", ["0", *(pytest.param(seed, marks=pytest.mark.slow) for seed in "12")])
def test_following_prefixes_finds_more_of_conversations_than_going_round(capsys, seed):
    found = {
        router: summary_of(capsys, *CHAT, "--seed", seed, "--replicas", "4", "--router", router)["prefix_hit_frac"]
        for router in ("round-robin", "prefix-aware")
    }
    assert found["prefix-aware"] > found["round-robin"] + 0.1


def test_balancing_by_load_is_more_even_than_going_round(capsys):
    words = ("--num-requests", "300", *SMALL[2:], "--request-rate", "6", "--replicas", "4")
    uneven, even = (summary_of(capsys, *words, "--router", router) for router in ("round-robin", "least-loaded"))
    assert even["load_imbalance"] < uneven["load_imbalance"]


@pytest.mark.parametrize(
    "words,said",
    [
        (("--router", "least-loaded"), "--router least-loaded: there is one replica"),
        (("--replicas", "2", "--balance-by", "kv"), "only --router least-loaded reads it"),
        (("--replicas", "2", "--router", "least-loaded", "--cache-threshold", "0.5"), "only --router prefix-aware"),
        (("--replicas", "2", "--num-samples", "2"), "count what is shared in one pool"),
        (("--replicas", "2", "--record", "steps"), "follow one pool"),
        (("--replicas", "2", "--map-frames", "3"), "a map is of one pool"),
        (("--replicas", "0"), "fleet.replicas"),
        (("--replicas", "2", "--router", "random"), "fleet.router"),
    ],
)
def test_what_a_fleet_cannot_do_is_refused_with_the_flag(capsys, words, said):
    assert main(["run", "--json", "--num-requests", "5", *words]) == 2
    assert said in json.loads(capsys.readouterr().out)["error"]


def test_defaults_are_filled_in_once():
    whole = with_fleet(Config(fleet=Replicas(replicas=2, router="prefix-aware")))
    assert (whole.fleet.cache_threshold, whole.fleet.balance_abs_threshold) == (0.3, 64)
    assert with_fleet(whole) == whole
    assert with_fleet(Config(fleet=Replicas(replicas=1))).fleet == Replicas()
    with pytest.raises(UsageError, match="say --replicas N"):
        with_fleet(Config(fleet=Replicas(router="round-robin")))
