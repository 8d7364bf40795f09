"""The ledger and the lock: what a kill at any byte leaves, and who may work where."""

import json
import os
import subprocess
import sys

import pytest

from experiments.exits import UsageError
from experiments.sweep.ledger import Ledger, ledgers_of, read_history
from experiments.sweep.lock import at_work


@pytest.fixture
def ledger(tmp_path):
    made = Ledger(tmp_path / "ledger.jsonl")
    made.append("sweep", {"asked": {"a": 1}})
    for key in ("k1", "k2", "k3"):
        made.append("running", {"cell": key, "key": key}, sync=False)
        made.append("done", {"cell": key, "key": key, "files": {}})
    return made


def test_cut_at_any_byte_the_ledger_loses_its_last_line_at_most(ledger):
    whole = ledger.path.read_bytes()
    lines = whole.split(b"\n")
    for cut in range(len(whole) + 1):
        ledger.path.write_bytes(whole[:cut])
        history = read_history([ledger.path])
        ends = [json.loads(line) for line in whole[:cut].split(b"\n")[:-1] if b'"done"' in line]
        kept = {entry["key"] for entry in ends}
        assert kept <= history.ended.keys() <= kept | {json.loads(line).get("key") for line in lines[:-1]}
        assert len(history.damaged) <= 1


def test_after_a_torn_line_the_next_one_is_whole(ledger):
    whole = ledger.path.read_bytes()
    ledger.path.write_bytes(whole[:-7])
    ledger.append("done", {"cell": "k4", "key": "k4", "files": {}})
    history = read_history([ledger.path])
    assert set(history.ended) == {"k1", "k2", "k4"}
    assert history.damaged == ["ledger.jsonl:7"]


@pytest.mark.parametrize(
    "line",
    [
        *({"state": "sweep", "asked": junk} for junk in (None, 3, [], "x")),
        *({"state": "done", "cell": "k1", "key": "k9", "files": junk} for junk in (None, 3, [], "x")),
        {"state": "sweep"},
        {"state": "done", "key": None, "cell": "k1", "files": {}},
        {"state": "failed", "key": "k9"},
        {"state": 3},
        [],
    ],
)
def test_a_line_that_does_not_say_what_its_state_says_is_damaged(ledger, line):
    before = read_history([ledger.path])
    with ledger.path.open("a") as file:
        file.write(json.dumps(line) + "\n")
    after = read_history([ledger.path])
    assert (after.asked, after.ended) == (before.asked, before.ended)
    assert after.damaged == ["ledger.jsonl:8"]


def test_lines_are_only_ever_added(ledger):
    before = ledger.path.read_bytes()
    ledger.append("failed", {"cell": "k1", "key": "k1", "error": "x"})
    assert ledger.path.read_bytes().startswith(before)
    assert [entry["state"] for entry in read_history([ledger.path]).ended["k1"]] == ["done", "failed"]


def test_a_line_that_does_not_fit_is_taken_back(ledger, monkeypatch):
    before = ledger.path.read_bytes()
    write = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: write(handle, data[:10]))
    with pytest.raises(OSError, match="no space left"):
        ledger.append("done", {"cell": "k4", "key": "k4", "files": {}})
    assert ledger.path.read_bytes() == before


def test_shards_have_ledgers_of_their_own(ledger):
    folder = ledger.path.parent
    (folder / "shards").mkdir()
    Ledger(folder / "shards/1-of-2.jsonl").append("done", {"cell": "k9", "key": "k9", "files": {}})
    assert set(read_history(ledgers_of(folder)).ended) == {"k1", "k2", "k3", "k9"}


@pytest.mark.parametrize(
    "theirs,mine", [((1, 1), (1, 1)), ((1, 1), (2, 4)), ((2, 4), (1, 1)), ((2, 4), (2, 4)), ((2, 4), (1, 3))]
)
def test_two_that_could_meet_exclude_each_other_and_the_second_is_told_who(tmp_path, theirs, mine):
    said = f"process {os.getpid()} on .* is at work in it"
    with at_work(tmp_path, theirs), pytest.raises(UsageError, match=said), at_work(tmp_path, mine):
        pass
    with at_work(tmp_path, mine):
        pass


def test_shards_of_one_number_go_side_by_side(tmp_path):
    with at_work(tmp_path, (2, 4)), at_work(tmp_path, (1, 4)):
        pass


HOLD = """
import sys
from pathlib import Path
from experiments.sweep.lock import at_work
with at_work(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_lock_ends_with_its_process_also_when_that_is_killed(tmp_path):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    words = [sys.executable, "-c", HOLD, str(tmp_path)]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
    try:
        assert process.stdout.readline() == "held\n"
        with pytest.raises(UsageError, match=f"process {process.pid} on "), at_work(tmp_path):
            pass
    finally:
        process.kill()
        process.communicate()
    with at_work(tmp_path):
        pass
