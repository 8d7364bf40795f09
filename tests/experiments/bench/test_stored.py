"""Folders of measurements that are damaged, made up or do not go together: refused, and nothing is written anywhere."""

import csv
import io
import json
import shutil
from pathlib import Path

import pytest

from experiments import exits
from experiments.bench import kernel_main
from experiments.bench.contestant import Missing
from experiments.bench.session import Measured, Wanted
from tests.experiments.bench.test_verb import MACHINE, made_up


def about() -> dict:
    """What is said of the measurements beside their rows."""
    return {key: value for key, value in made_up(cases=("fig18a",)).to_dict().items() if key != "rows"}


@pytest.fixture
def folder(tmp_path):
    """Twelve good rows and more."""
    kernel_main.write(made_up(cases=("fig18a",)), tmp_path / "measured")
    return tmp_path / "measured"


def spoil_rows(folder: Path, **values) -> None:
    """Other values in the first row."""
    path = folder / "summary.csv"
    first, *rest = csv.DictReader(io.StringIO(path.read_text("utf-8")))
    text = io.StringIO()
    writer = csv.DictWriter(text, list(first), lineterminator="\n")
    writer.writeheader()
    writer.writerows([first | values, *rest])
    path.write_text(text.getvalue(), "utf-8")


def refused(pagelab, folder, said, *words):
    """As bad usage, with one strict object; no folder appears, neither the asked for nor any other."""
    before = sorted(Path().rglob("*"))
    done = pagelab("bench", "kernel", "--from", folder, "-o", "kept", "--json", *words)
    assert (done.code, said in done.err) == (exits.USAGE, True), done.err
    assert json.loads(done.out)["exit_code"] == exits.USAGE
    assert sorted(Path().rglob("*")) == before


@pytest.mark.parametrize(
    "values",
    [
        *({"case": case} for case in ("../../elsewhere", "/tmp/elsewhere", "a/b", "", "decod")),
        *({"median_s": time} for time in ("nan", "inf", "-1.0", "0.0", "", "fast")),
        *({"p20_s": time} for time in ("1.0", "")),
        *({"status": status} for status in ("fine", "")),
        *({"dtype": dtype} for dtype in ("float64", "")),
        *({"block_size": size} for size in ("0", "", "-16", "1.5")),
        *({"peer": ""}, {"shape": ""}, {"contiguous": "maybe"}, {"relative_error": "nan"}, {"batch": "0"}),
    ],
)
def test_rows_that_cannot_be(pagelab, folder, values):
    spoil_rows(folder, **values)
    refused(pagelab, folder, "no kernel measurements can be read here")


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:-40],
        lambda data: data.rstrip() + b",1,2,3\n",
        lambda data: data + b"\xff\xfe",
        lambda data: data + b"\0\0,\n",
        lambda data: data + b"x" * 200_000,
    ],
    ids=["empty", "cut short", "more columns", "no text", "zeros", "a long field"],
)
def test_tables_that_are_damaged(pagelab, folder, damage):
    path = folder / "summary.csv"
    path.write_bytes(damage(path.read_bytes()))
    refused(pagelab, folder, "no kernel measurements can be read here")


@pytest.mark.parametrize(
    "text",
    [
        *("[]", "null", "{", "{}", "[" * 100_000, json.dumps({**about(), "broken": float("nan")})),
        *(json.dumps({**about(), "machine": machine}) for machine in ({}, [], {**MACHINE, "device": 5})),
        *(json.dumps({**about(), "broken": broken}) for broken in (5, ["lost"])),
        *(json.dumps({**about(), "peers_missing": peers}) for peers in (None, [{"name": "a"}], [[]])),
        *(json.dumps({**about(), "config": {**about()["config"], "cases": cases}}) for cases in ("decode", [1], None)),
        *(json.dumps({**about(), "config": {**about()["config"], "peers": peers}}) for peers in ("fa3", 5)),
        *(json.dumps({**about(), "config": {**about()["config"], "dtype": dtype}}) for dtype in (5, None)),
        *(json.dumps({**about(), "config": {**about()["config"], "seed": seed}}) for seed in ("x", True)),
        json.dumps({**about(), "config": {**about()["config"], "fa3_library": 5}}),
    ],
)
def test_notes_that_are_damaged(pagelab, folder, text):
    (folder / "machine.json").write_text(text, "utf-8")
    refused(pagelab, folder, "no kernel measurements can be read here")


@pytest.mark.parametrize(
    "words",
    [
        ("--case", "decode"),
        ("--dtype", "float16"),
        ("--block-size", "32"),
        ("--peer", "fa3"),
        ("--quick",),
        ("--sweep",),
        ("--seed", "1"),
    ],
)
def test_stored_rows_are_not_asked_to_be_others(pagelab, folder, words):
    refused(pagelab, folder, "--from measures nothing", *words)


def test_the_same_row_twice(pagelab, folder):
    refused(pagelab, folder, "the same row is there twice", "--from", folder)


def test_one_shape_in_16_bits_and_in_fp8_is_no_row_twice(pagelab, folder):
    spoiled = folder.parent / "fp8"
    shutil.copytree(folder, spoiled)
    path = spoiled / "summary.csv"
    path.write_text(path.read_text("utf-8").replace("float16", "float8_e4m3fn"), "utf-8")
    done = pagelab("bench", "kernel", "--from", folder, "--from", spoiled, "-o", "kept")
    assert done.code == exits.OK, done.err
    with Path("kept/summary.csv").open(newline="", encoding="utf-8") as file:
        kept = list(csv.DictReader(file))
    assert {row["dtype"] for row in kept} == {"float16", "float8_e4m3fn"}
    assert len(kept) == 2 * len(list(csv.DictReader(io.StringIO((folder / "summary.csv").read_text("utf-8")))))


def test_no_rows_at_all_are_kept_without_a_failed_figure(pagelab, tmp_path):
    kernel_main.write(Measured(Wanted(), MACHINE, [], broken="the device is lost"), tmp_path / "none")
    done = pagelab("bench", "kernel", "--from", tmp_path / "none", "-o", "kept")
    assert (done.code, done.err) == (exits.FAILED_CELLS, "")


def test_whoever_is_missing_in_one_of_the_folders_is_named(pagelab, folder, tmp_path, strict_object):
    other = made_up(cases=("block-size",))
    other.missing = [Missing("fa3", "no such file")]
    kernel_main.write(other, tmp_path / "other")
    done = pagelab("bench", "kernel", "--from", folder, "--from", tmp_path / "other", "--json")
    assert [one["name"] for one in strict_object(done.out)["peers_missing"]] == ["flashinfer", "fa3"]
