"""`pagelab backends`: every backend with what it takes, and why it cannot run here, as a table and as JSON."""

import json

import pytest

torch = pytest.importorskip("torch")

from engine.attention import BACKENDS, KVLayout  # noqa: E402
from engine.attention.checks import short  # noqa: E402
from experiments.backends_verb import ASKED, TYPES, _brief  # noqa: E402
from experiments.cli import main  # noqa: E402

WAYS = pytest.mark.parametrize("words", [(), ("--wide",)], ids=["short", "wide"])


@WAYS
def test_the_table_names_every_backend_and_why_it_cannot_run(words, capsys):
    assert main(["backends", *words]) == 0
    said = " ".join(capsys.readouterr().out.split())
    for name, backend in BACKENDS.items():
        assert name in said
        why = backend.unavailable_because()
        assert (f"{name} cannot run here: {why}" in said) == bool(why)
    for layout in KVLayout:
        assert f"{layout.name.lower().replace('_', '-')} {layout.value}" in said


def test_the_table_fits_the_narrowest_terminal(capsys):
    assert main(["backends"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80
    assert main(["backends", "--wide"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) > 200


def test_what_is_short_says_what_the_wide_table_says(capsys):
    """Each row, spelt out again by the legend."""
    assert main(["backends"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "cannot run here" not in line]
    rows = {line.split()[0]: line for line in lines if line.split()[0] in BACKENDS}
    assert rows["triton"].split()[2:] == ["kbi", "16", "bf", "32", "8", "8n<=256", "any", "8.0+", "any"]
    assert rows["flash-mla"].split()[2:] == ["l", "16", "bf", "576", "64", "9.x", "no", "WCP"]
    assert rows["flash-attn-2"].split()[2:] == ["kbi", "16", "bf", "8n<=256", "256n", "8.0+", "plan", "P"]
    assert rows["pallas"].split()[2:] == ["i", "32", "16", "bf", "<=256", "any", "any", "own", "P"]
    assert rows.keys() == BACKENDS.keys()
    for name, backend in BACKENDS.items():
        able = backend.capabilities()
        kept = [TYPES[short(dtype)] for dtype in (*able.dtypes, *able.kv_dtypes)]
        assert f" {' '.join(kept)} " in rows[name]
        lacks = "".join(code for what, code in ASKED.items() if not getattr(able, what))
        assert rows[name].rstrip().endswith(lacks)


@pytest.mark.parametrize(
    "words, few",
    [
        ("9.0 to below 10.0", "9.x"),
        ("9.0 to below 12.0", "9.0-<12.0"),
        ("10.3 to below 11.0", "10.3-<11.0"),
        ("any size up to 256", "<=256"),
        ("a multiple of 8", "8n"),
        ("16 or 32", "16/32"),
    ],
)
def test_rules_in_few_letters_keep_their_bounds(words, few):
    assert _brief(words) == few


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
