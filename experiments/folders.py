"""Folders of results, and what a folder is that holds none: what to name, or to do, instead."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from experiments import store
from experiments.exits import UsageError

WRITERS: Final = "run, compare, sweep or bench"
"""The verbs that write such folders."""
MOST_NAMED: Final = 4


def results_folder(folder: Path) -> Path:
    """The folder, if it holds results; UsageError otherwise."""
    if not (folder / store.SUMMARY).is_file():
        raise UsageError(f"{folder}: no {store.SUMMARY} here; {_instead(folder)}")
    return folder


def _instead(folder: Path) -> str:
    from experiments.fidelity.stored import ABOUT_FILE
    from experiments.paper.page import JSON_NAME, PAGE_NAME

    name_one = f"name a folder that {WRITERS} has written"
    if not folder.exists():
        return f"there is no such folder: {name_one}"
    if folder.is_file():
        return f"it is a file: name the folder that it is in, {folder.parent}"
    if (folder / store.LEDGER).is_file() or any((folder / store.SHARDS).glob("*.jsonl")):
        return f"a sweep that has not come to its end: go on with pagelab sweep --resume -o {folder}"
    if (folder / JSON_NAME).is_file():
        return (
            f"claims of reproduce, whose report is {folder / PAGE_NAME} already and whose figures are drawn: {name_one}"
        )
    if (folder / ABOUT_FILE).is_file():
        return f"engine and simulator side by side: pagelab reproduce sim_vs_gpu --fidelity {folder} judges them"
    if (folder / "summary.json").is_file() and folder.parent.name == store.CELLS:
        return f"one run of {folder.parent.parent}: name that"
    if (folder / store.CELLS).is_dir():
        return "runs that were ended before all were done: do them again"
    inside = sorted(path.parent for path in folder.glob(f"*/{store.SUMMARY}"))
    if inside:
        more = f" and {len(inside) - MOST_NAMED} more" if len(inside) > MOST_NAMED else ""
        return f"there are results in {', '.join(map(str, inside[:MOST_NAMED]))}{more}"
    return name_one
