"""`pagelab backends`: every backend with what it takes, and why it cannot run here, as a table and as JSON."""

import json

import pytest

torch = pytest.importorskip("torch")

from engine.attention import BACKENDS  # noqa: E402
from experiments.cli import main  # noqa: E402


def test_the_table_names_every_backend_and_why_it_cannot_run(capsys):
    assert main(["backends"]) == 0
    said = capsys.readouterr().out
    for name, backend in BACKENDS.items():
        assert name in said
        why = backend.unavailable_because()
        assert (f"{name} cannot run here: {why}" in said) == bool(why)
    assert "block-first (NB, 2, BS, KH, D)" in said


def test_json_says_the_same(capsys):
    assert main(["backends", "--json"]) == 0
    found = {row["backend"]: row for row in json.loads(capsys.readouterr().out)["backends"]}
    assert found.keys() == BACKENDS.keys()
    assert found["flashinfer"]["layouts"][0] == {"name": "block-first", "shape": "(NB, 2, BS, KH, D)"}
    assert found["flash-attn-2"]["default_block_size"] == 256
    assert found["flash-mla"]["mla"] is True
    assert found["triton"]["dtypes"] == ["float16", "bfloat16", "float32"]
    for name, row in found.items():
        assert row["runs_here"] == (not BACKENDS[name].unavailable_because())
        assert row["unavailable_because"] == BACKENDS[name].unavailable_because()


def test_without_torch_it_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setattr("experiments.backends.find_spec", lambda name: None)
    assert main(["backends"]) == 6
    assert "pagelab backends needs torch, which is not installed: pip install" in capsys.readouterr().err
