"""Every planted fault of the table is found by the checks that its row names, and without it they pass."""

from __future__ import annotations

import functools
import importlib
import inspect
import textwrap
from typing import Any

import pytest

from engine.core.contract import run_contract
from engine.core.paged import PagedAllocator
from engine.core.registry import make_allocator
from tests.engine.core.manager_replay import ManagerReplay
from tests.engine.core.planted_faults import FAULTS
from tests.engine.core.planted_sharing_faults import SHARING_FAULTS
from tests.engine.core.recordings import RECORDED

SUITES = {
    "paged": lambda pool: make_allocator("paged", pool),
    "paged with watermark": lambda pool: PagedAllocator(
        pool.capacity_blocks, pool.block_size, max_model_len=pool.max_model_len, watermark=0.25
    ),
    "virtual": lambda pool: make_allocator("virtual", pool),
    "orca-pow2": lambda pool: make_allocator("orca-pow2", pool),
    "chunks in holes": lambda pool: make_allocator(f"contiguous-chunk({pool.block_size})-first-fit", pool),
    "chunks in buddies": lambda pool: make_allocator(f"contiguous-chunk({3 * pool.block_size})-buddy", pool),
}


def suite(allocator: str) -> None:
    for seed in range(150):
        run_contract(SUITES[allocator], seed=seed)


@functools.cache
def traces() -> list[dict[str, Any]]:
    """Short ones first: most faults show at once."""
    recorded = sorted(RECORDED.values(), key=lambda recording: len(recording.get("ops", ())))
    return [trace for trace in recorded if trace.get("kind") == "kv_cache_manager"]


def oracle(kind: str) -> None:
    for trace in traces():
        replay = ManagerReplay(trace["config"])
        for operation in trace["ops"]:
            assert replay.play(operation) == (operation["result"], operation["state"])


def law(test: str) -> None:
    module, _, name = test.partition(":")
    getattr(importlib.import_module(f"tests.engine.core.{module}"), name)()


CHECKS = {"suite": suite, "oracle": oracle, "law": law}
KILLS = [(row, kind) for row in FAULTS + SHARING_FAULTS for kind in CHECKS if kind in row]
PASSES = sorted({(kind, row[kind]) for row, kind in KILLS})


def plant(monkeypatch: pytest.MonkeyPatch, row: dict[str, Any]) -> None:
    """Wraps a function, or gives it the code of its source with one line replaced, which must be there just once."""
    module_name, _, path = row["where"].partition(":")
    module = importlib.import_module(module_name)
    *owners, name = path.split(".")
    owner = functools.reduce(getattr, owners, module)
    function = getattr(owner, name)
    if "wrap" in row:
        monkeypatch.setattr(owner, name, row["wrap"](function))
        return
    source = inspect.getsource(function)
    assert source.count(row["line"]) == 1, f"{row['where']} does not have the line once: {row['line']}"
    broken = textwrap.dedent(source.replace(row["line"], row["becomes"]))
    made: dict[str, Any] = {}
    exec(f"from __future__ import annotations\n{broken}", vars(module), made)
    monkeypatch.setattr(function, "__code__", made[name].__code__)


@pytest.mark.parametrize("row,kind", KILLS, ids=[f"{kind}: {row['fault']}" for row, kind in KILLS])
def test_a_planted_fault_is_found_by(row, kind, monkeypatch):
    plant(monkeypatch, row)
    with pytest.raises((AssertionError, LookupError, TypeError, ValueError)):
        CHECKS[kind](row[kind])


@pytest.mark.parametrize("kind,argument", PASSES)
def test_without_a_fault_the_check_passes(kind, argument):
    CHECKS[kind](argument)
