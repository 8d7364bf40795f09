"""The comparison with Vidur: what is not there is said in a line, and what is printed is the ratio."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.benchmarks import beside_peers
from tests.benchmarks.beside_peers import PROFILES, Peer, beside, main, missing


@pytest.fixture
def root(tmp_path):
    """A folder that looks like a checkout with its data."""
    for name in ("vidur/simulator.py", "vidur/__init__.py", *PROFILES):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("# there\n")
    return tmp_path


def test_a_peer_that_is_not_there_is_named_in_one_line(root, capsys):
    trace = root / "trace.csv"
    assert main([str(trace), "--vidur", str(root / "nowhere")]) == 3
    said = capsys.readouterr().out
    assert said.startswith("not measured: ")
    assert said.count("\n") == 1
    assert "say --vidur DIR" in said
    assert "say --vidur-python" in missing(Peer(root, root / "python"))
    (root / PROFILES[1]).write_text("")
    assert "attention.csv is missing" in missing(Peer(root, Path(sys.executable)))


def test_a_peer_that_cannot_be_imported_says_why(root):
    peer = Peer(root, Path(sys.executable))
    assert missing(peer) == ""
    (root / "vidur" / "simulator.py").write_text("import nobody_has_this")
    assert missing(peer) == "vidur cannot be imported: ModuleNotFoundError: No module named 'nobody_has_this'"


@pytest.mark.parametrize("seconds,good", [(1000.0, True), (0.0001, False)])
def test_the_ratio_is_judged_by_what_it_must_be(root, monkeypatch, capsys, seconds, good):
    trace = root / "azure_conv_10k.csv"
    trace.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,100,20\n1.0,50,30\n")
    monkeypatch.setattr(beside_peers, "vidur_s", lambda *_: {"cpu_s": seconds, "end_s": 1.5})
    assert beside(Peer(root, Path(sys.executable)), trace, rounds=1) is good
    said = capsys.readouterr().out
    assert "must 9x, aim 20x" in said
    assert ("ok" in said) is good
