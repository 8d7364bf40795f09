"""Ctrl-C in the middle of a verb: exit code 130, one line instead of a traceback, no file that is half written.

Sweeps: see `sweep/test_interruptions.py`.
"""

from __future__ import annotations

import json
import signal

import pytest

from engine.core.scheduler import Scheduler

STEPS = 10
"""Until the signal."""
REAL = ("generate", "bench engine", "run on the engine", "ranks")
WORDS = {
    "run": ("run", "--trace", "TRACE", "-o", "out"),
    "compare": ("compare", "--trace", "TRACE", "-o", "out"),
    "capacity": ("capacity", "--simulate", "-m", "llama-3-70b", "--gpu", "a100-80g", "--tp", "2", "--concurrency", "32",
                 "--mean-prompt-len", "80", "--mean-output-len", "56"),
    "reproduce": ("reproduce", "concurrency", "--out", "out"),
    "bench alloc": ("bench", "alloc", "-o", "out"),
    "a closed form": ("reproduce", "alignment", "--out", "out"),
    "generate": ("generate", "1,2,3", "--token-ids", "--max-tokens", "60", "--backend", "cpu", "-m", "MODEL",
                 "--weights-seed", "0", "--num-blocks", "40"),
    "ranks": ("generate", "1,2,3", "--token-ids", "--max-tokens", "60", "--backend", "cpu", "-m", "MODEL", "--tp", "2",
                 "--weights-seed", "0", "--num-blocks", "40"),
    "bench engine": ("bench", "engine", "--device", "cpu", "--input-len", "20", "--output-len", "40", "-m", "MODEL",
                     "-o", "out"),
    "run on the engine": ("run", "--backend", "cpu", "--trace", "TRACE", "--kv-tokens", "4000", "--max-model-len",
                          "300", "--weights-seed", "0", "-m", "MODEL", "-o", "out"),
}  # fmt: skip


@pytest.fixture
def ctrl_c(monkeypatch):
    """A real SIGINT in the STEPS-th step of any scheduler; how many steps there were."""
    plain, steps = Scheduler.schedule, []

    def schedule(self, *horizon):
        steps.append(1)
        if len(steps) == STEPS:
            signal.raise_signal(signal.SIGINT)
        return plain(self, *horizon)

    monkeypatch.setattr(Scheduler, "schedule", schedule)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it behind `&`
    yield steps
    signal.signal(signal.SIGINT, before)


def words_of(request, verb):
    """Asks for a model where the verb needs one: without torch it is skipped."""
    given = {"TRACE": request.getfixturevalue("trace_file")}
    if verb in REAL:
        given["MODEL"] = request.getfixturevalue("tiny_model")
    return [given.get(word, word) for word in WORDS[verb]]


@pytest.mark.parametrize("verb", [pytest.param(v, marks=pytest.mark.slow if v == "ranks" else ()) for v in WORDS])
def test_an_interrupted_verb_says_so_and_leaves_nothing_half_done(request, pagelab, ctrl_c, tmp_path, verb):
    done = pagelab(*words_of(request, verb))
    assert len(ctrl_c) == STEPS
    assert done.code == 130
    assert done.err.splitlines()[-1].startswith(("pagelab: interrupted", "interrupted: 0 of "))
    assert "Traceback" not in done.err
    left = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    assert [path for path in left if path.suffix in (".tmp", ".part", ".parquet", ".html", ".png")] == []
    if verb in ("run", "compare", "run on the engine"):
        assert json.loads((tmp_path / "out" / "manifest.json").read_text())["status"] == "interrupted"
    else:
        assert left == []
