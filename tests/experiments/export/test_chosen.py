"""Runs of a folder by name or by what they are, for `export` and `map`."""

import itertools

import pandas as pd
import pytest

from experiments.cli import main
from experiments.export.runs import runs_of
from experiments.figures.columns import filtered
from workloads import save_trace, synthetic_trace

AXES = {
    "kv.allocator": ["paged", "virtual"],
    "kv.block_size": [8, 16],
    "scheduler.long_prefill_token_threshold": [None, 32],
}
KEYS = {"b": "kv.block_size", "l": "scheduler.long_prefill_token_threshold", "a": "kv.allocator"}
CONDITIONS = ["b=8", "b>=16", "l=unset", "l=32", "a=virtual", "a!=virtual", "kv.block_size=8,16", "block_size<100"]


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """Two axes, one with a null; a run of `virtual` stands for both block sizes."""
    folder = tmp_path_factory.mktemp("chosen")
    save_trace(synthetic_trace("poisson", "uniform:20-200,5-60", 12, 3, rate_per_s=8.0), folder / "t.csv")
    axes = [
        f"{key}={','.join('null' if value is None else str(value) for value in values)}" for key, values in AXES.items()
    ]
    flags = ["--kv-tokens", "4000", "--step-model", "linear:0.02,0,0,0", "--max-model-len", "2048", "--page-bytes"]
    words = ["sweep", "--trace", str(folder / "t.csv"), *flags, "64KiB", "--record", "requests,timeline", "--jobs", "1"]
    assert main([*words, *(word for axis in axes for word in ("--axis", axis)), "-q", "-o", str(folder / "out")]) == 0
    return folder / "out"


def told(text):
    """Short spellings of the conditions above."""
    return f"{KEYS[text[0]]}{text[1:]}" if text[1] in "=!<>" else text


@pytest.mark.parametrize("asked", [*((one,) for one in CONDITIONS), *itertools.combinations(CONDITIONS, 2)])
def test_a_condition_chooses_the_rows_that_plot_would(swept, asked):
    from experiments.exits import UsageError
    from experiments.figures.stored import Stored

    texts = [told(text) for text in asked]
    try:
        expected = set(filtered(Stored(swept).summary, texts)["cell"])
    except ValueError:
        with pytest.raises(UsageError, match="no row has"):
            runs_of(swept, texts)
        return
    assert {run.row["cell"] for run in runs_of(swept, texts)} == expected


def test_names_and_conditions_must_both_hold(swept):
    everyone = runs_of(swept)
    assert len(everyone) == 6
    name = next(run.folder.name for run in everyone if run.row["kv.block_size"] == 16)
    assert [run.folder.name for run in runs_of(swept, [name[:10], "kv.block_size=16"])] == [name]


@pytest.mark.parametrize(
    "cell,said",
    [
        ("kv.block_size=64", "no row has kv.block_size=64; kv.block_size is 8, 16"),
        ("kv.block_sise=8", "did you mean kv.block_size or"),
        ("kv.block_size=many", "'kv.block_size' is a number, got 'many'"),
        ("kv.allocator<5", "is not a number, so < does not apply"),
        ("=8", "a condition is COLUMN=VALUE"),
    ],
)
def test_a_condition_that_cannot_be_met_is_refused_with_what_there_is(swept, pagelab, cell, said):
    done = pagelab("export", swept, "--to", "csv", "-o", "x.csv", "--cell", cell)
    assert done.code == 2
    assert said in done.err


def test_one_run_is_asked_for_by_what_it_is_and_several_are_refused_with_the_list(results, pagelab, tmp_path):
    words = ("export", results / "compared", "--to", "torch-snapshot", "-o", tmp_path / "x.pickle")
    assert pagelab(*words, "--cell", "allocator=paged").code == 0
    refused = pagelab(*words, "--cell", "block_size=16")
    assert refused.code == 2
    assert "these are 2: say --cell" in refused.err
    names = [run.folder.name for run in runs_of(results / "compared")]
    lines = refused.err.splitlines()[1:]
    assert [line.split() for line in lines] == [
        [name, f"allocator={name.partition('-bs')[0]}"] for name in sorted(names, key=names.index)
    ]


def test_the_list_tells_what_tells_runs_apart(swept, pagelab, tmp_path):
    done = pagelab("export", swept, "--to", "torch-snapshot", "-o", "x.pickle", "--cell", "kv.allocator=paged")
    assert "kv.block_size=8 scheduler.long_prefill_token_threshold=unset" in done.err
    assert "kv.allocator=paged" not in done.err


def test_a_table_of_chosen_runs_has_their_rows(swept, pagelab, tmp_path):
    words = ("--cell", "kv.allocator=paged", "--cell", "long_prefill_token_threshold=32")
    assert pagelab("export", swept, "--to", "csv", "-o", tmp_path / "x.csv", *words).code == 0
    frame = pd.read_csv(tmp_path / "x.csv")
    assert (set(frame["allocator"]), set(frame["block_size"])) == ({"paged"}, {8, 16})
    assert len(frame) == 24


def test_a_map_is_chosen_likewise(results, pagelab):
    shown = pagelab("map", results / "compared", "--cell", "allocator=paged")
    assert shown.code == 0, shown.err
    assert shown.out.startswith("paged-bs16")
    assert "orca-oracle" not in shown.out
    refused = pagelab("map", results / "compared", "--cell", "allocator=nobody")
    assert (refused.code, "no row has allocator=nobody; allocator is" in refused.err) == (2, True)
