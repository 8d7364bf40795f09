"""Recorded decisions of vLLM 0.33's cache manager, reproduced with all recorded fields and exact block ids."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.core.manager_replay import FILES, FOLDER, ManagerReplay, load


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name.removesuffix(".json.gz"))
def test_manager_reproduces_the_recorded_oracle_trace(path: Path) -> None:
    recorded = load(path)
    if recorded.get("kind") != "kv_cache_manager":
        pytest.skip(f"{path.name} is of kind {recorded.get('kind')!r}, not kv_cache_manager")
    replay = ManagerReplay(recorded["config"])
    for index, operation in enumerate(recorded["ops"]):
        result, state = replay.play(operation)
        assert (index, result) == (index, operation["result"])
        assert (index, state) == (index, operation["state"])


def test_the_oracle_folder_holds_traces() -> None:
    assert FILES, f"no recorded traces in {FOLDER}"
