"""Recorded decisions of vLLM 0.33's cache manager, reproduced with all recorded fields and exact block ids."""

from __future__ import annotations

import pytest

from tests.engine.core.manager_replay import ManagerReplay
from tests.engine.core.recordings import FOLDER, RECORDED, UNKNOWN, of_kind


@pytest.mark.parametrize("name", of_kind("kv_cache_manager"))
def test_manager_reproduces_the_recorded_oracle_trace(name: str) -> None:
    recorded = RECORDED[name]
    replay = ManagerReplay(recorded["config"])
    for index, operation in enumerate(recorded["ops"]):
        result, state = replay.play(operation)
        assert (index, result) == (index, operation["result"])
        assert (index, state) == (index, operation["state"])


@pytest.mark.parametrize("name", UNKNOWN)
def test_oracle_traces_of_an_unknown_kind_are_skipped(name: str) -> None:
    pytest.skip(f"{name} is of kind {RECORDED[name].get('kind')!r}, which nothing here can replay")


def test_the_oracle_folder_holds_traces() -> None:
    assert RECORDED, f"no recorded traces in {FOLDER}"
