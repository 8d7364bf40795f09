"""The schemas: stored results are valid under them, and what is broken in a plausible way is not."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from experiments.cli import main
from experiments.schemas import SCHEMAS
from tests.experiments.conftest import SMALL

jsonschema = pytest.importorskip("jsonschema")
REFERENCE = Path(__file__).resolve().parents[2] / "results" / "reference"


def errors(name, value):
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    validator = jsonschema.Draft202012Validator(SCHEMAS[name](), format_checker=checker)
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(value)]


@pytest.fixture(scope="module")
def folder(trace_file, tmp_path_factory):
    folder = tmp_path_factory.mktemp("schemas") / "out"
    words = ["--trace", str(trace_file), *SMALL, "-a", "paged,virtual,orca-oracle", "--no-report", "--quiet"]
    assert main(["compare", *words, "-o", str(folder)]) == 0
    return folder


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_schema_is_one(name):
    jsonschema.Draft202012Validator.check_schema(SCHEMAS[name]())


def test_what_is_stored_is_valid(folder):
    assert errors("config", tomllib.loads((folder / "config.resolved.toml").read_text())) == []
    assert errors("manifest", json.loads((folder / "manifest.json").read_text())) == []
    summaries = [json.loads(path.read_text()) for path in folder.glob("cells/*/summary.json")]
    assert len(summaries) == 3
    assert [errors("summary", summary) for summary in summaries] == [[], [], []]


def test_the_committed_results_are_valid():
    manifest = json.loads((REFERENCE / "demo" / "manifest.json").read_text())
    assert errors("manifest", manifest) == []
    assert errors("config", tomllib.loads((REFERENCE / "demo" / "config.resolved.toml").read_text())) == []


@pytest.mark.parametrize(
    "name,change",
    [
        ("config", {"kv": {"blocksize": 16}}),
        ("config", {"kv": {"watermark": 0.1}}),
        ("config", {"seed": -1}),
        ("summary", {"kv_live_frac": 1.2}),
        ("summary", {"num_finished": 3.5}),
        ("summary", {"mean_ttft_s": -1.0}),
        ("summary", {"kv_free_frac": "0.3"}),
        ("summary", {"allocator": ""}),
        ("manifest", {"status": "done"}),
        ("manifest", {"config_sha256": "abc"}),
        ("manifest", {"started": "yesterday"}),
    ],
)
def test_what_is_broken_is_not(folder, name, change):
    files = {"config": "config.resolved.toml", "manifest": "manifest.json"}
    path = folder / files[name] if name in files else next(folder.glob("cells/*/summary.json"))
    whole = tomllib.loads(path.read_text()) if name == "config" else json.loads(path.read_text())
    assert errors(name, whole) == []
    assert errors(name, {**whole, **change})


@pytest.mark.parametrize("name", ["summary", "manifest"])
def test_nothing_that_is_needed_may_be_missing(folder, name):
    path = next(folder.glob("cells/*/summary.json")) if name == "summary" else folder / "manifest.json"
    whole = json.loads(path.read_text())
    for key in SCHEMAS[name]()["required"]:
        assert errors(name, {k: v for k, v in whole.items() if k != key}), key


def test_the_verb_prints_them(pagelab, strict_object):
    for name in SCHEMAS:
        done = pagelab("schema", name)
        assert done.code == 0
        assert strict_object(done.out) == json.loads(json.dumps(SCHEMAS[name]()))
    done = pagelab("schema", "summaries")
    assert done.code == 2
    assert "summary" in done.err
