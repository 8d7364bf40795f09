"""A results folder as frames. Whatever is missing or damaged is said in `problems`, and the rest is still read."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.figures.merged import at_every_point
from experiments.figures.saturation import is_saturated
from experiments.pages import VIRTUAL
from experiments.series import series_of
from experiments.style import in_order

DEFAULT_BLOCK_SIZE = 16
EXACT: dict[str, Any] = (
    {"float_precision": "round_trip"} if tuple(map(int, pd.__version__.split(".")[:2])) < (3, 1) else {}
)
"""From 3.1 on pandas reads every digit by default, and warns who asks for it."""


class Stored:
    """Reads lazily: a figure that is not asked for costs nothing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.problems: list[str] = []
        self._seen: set[Path] = set()

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """manifest.json, or nothing."""
        read = self._json(self.folder / "manifest.json")
        return read if isinstance(read, dict) else {}

    @cached_property
    def summary(self) -> pd.DataFrame:
        """summary.csv: one row a finished cell, and one at each point that was merged into another (`is_copy`).
        `allocator` names the series: runs with the contiguous kernel are another."""
        frame = self._frame(self.folder / "summary.csv", read_summary)
        if frame is None:
            frame = pd.DataFrame({"cell": [], "seed": [], "allocator": [], "block_size": []})
        if "seed" not in frame:
            frame["seed"] = 0
        return at_every_point(with_series(frame), self.manifest)

    @property
    def axes(self) -> list[str]:
        """Dotted keys that a sweep went through, in its order; none of other results."""
        axes = self.manifest.get("axes")
        return [str(key) for key in axes] if isinstance(axes, dict) else []

    @property
    def zips(self) -> list[list[str]]:
        """Axes of a sweep that went together, value by value."""
        groups = self.manifest.get("zip")
        return [list(map(str, group)) for group in groups] if isinstance(groups, list) else []

    @property
    def is_measured(self) -> bool:
        """Whether the clock is a device's, not a model's."""
        return "engine" in self.manifest

    @cached_property
    def base(self) -> pd.DataFrame:
        """The rows that the one-condition figures show: one block size, the configured one or 16 or the smallest; and
        of `virtual`, whose blocks are pages, the first size that it was given."""
        frame, size = self.summary, self.base_block_size
        if size is None:
            return frame
        pages = frame[frame["allocator"].astype(str) == VIRTUAL] if "allocator" in frame else frame.iloc[:0]
        if not len(pages) or (pages["block_size"] == size).any():
            return frame[frame["block_size"] == size]
        first = pages[pages["block_size"] == pages["block_size"].iloc[0]]
        return frame[(frame["block_size"] == size) | frame.index.isin(first.index)]

    def _configured_block_size(self) -> int | None:
        found = find_key(self.manifest.get("config"), "block_size")
        return found if isinstance(found, int) else None

    @property
    def base_block_size(self) -> int | None:
        """Of `base`, but for the pages of `virtual`."""
        frame = self.summary
        if frame.empty or "block_size" not in frame:
            return None
        sizes = sorted(set(frame["block_size"].dropna().astype(int)))
        wanted = (self._configured_block_size(), DEFAULT_BLOCK_SIZE, *sizes)
        return next((value for value in wanted if value in sizes), None)

    @cached_property
    def allocators(self) -> list[str]:
        """Those of `base`, in the fixed order."""
        return in_order(self.base["allocator"].astype(str)) if len(self.base) else []

    def one_each(self, name: str) -> dict[str, pd.DataFrame]:
        """A table of each allocator's first seed that has it: `timeline` or `map`."""
        tables = {}
        for allocator in self.allocators:
            for cell in self._cells(allocator):
                table = self._frame(self.folder / "cells" / cell / f"{name}.parquet", pd.read_parquet)
                if table is not None and len(table):
                    tables[allocator] = table
                    break
        return tables

    def requests(self) -> dict[str, pd.DataFrame]:
        """requests.parquet of every seed of `base`, with the seed as a column, by allocator."""
        tables = {}
        for allocator in self.allocators:
            parts = []
            for cell in self._cells(allocator):
                part = self._frame(self.folder / "cells" / cell / "requests.parquet", pd.read_parquet)
                if part is not None:
                    parts.append(part.assign(seed=self._row(cell)["seed"]))
            if parts:
                tables[allocator] = pd.concat(parts, ignore_index=True)
        return tables

    def lengths(self) -> pd.DataFrame:
        """Prompt and output lengths of the trace: trace_lengths.csv, or the requests of one cell."""
        path = self.folder / "trace_lengths.csv"
        if path.exists() and (frame := self._frame(path, pd.read_csv)) is not None:
            return frame
        every = [table for table in self.requests().values() if len(table)]
        columns = ["num_prompt_tokens", "num_output_tokens"]
        if not every:
            return pd.DataFrame({name: [] for name in columns})
        self.problems.append("trace_lengths.csv is missing: the lengths shown are those of requests that finished")
        done = every[-1][every[-1]["status"].isin(["finished", "truncated"])]
        shown: pd.DataFrame = done.loc[done["seed"] == done["seed"].min(), columns]
        return shown

    def num_blocks(self, allocator: str) -> int:
        """Blocks that requests can hold in that allocator's pool."""
        rows = self.base[self.base["allocator"] == allocator]
        return int(rows["num_blocks"].iloc[0])

    def saturated(self) -> set[str]:
        """Allocators of `base` of which any run could not keep up."""
        return set(self.base.loc[is_saturated(self.base), "allocator"].astype(str))

    def window_s(self) -> tuple[float, float] | None:
        """Interval of the means, if all rows of `base` share it."""
        if not {"window_start_s", "window_stop_s"} <= set(self.base) or self.base.empty:
            return None
        bounds = set(zip(self.base["window_start_s"], self.base["window_stop_s"], strict=True))
        return next(iter(bounds)) if len(bounds) == 1 else None

    def validations(self) -> dict[str, list[tuple[str, bool]]]:
        """(check, passed) by cell, for every cell folder that has a validation.json."""
        found = {}
        for path in sorted(self.folder.glob("cells/*/validation.json")):
            checks = self._json(path)
            if isinstance(checks, dict):
                checks = checks.get("checks", [])
            if isinstance(checks, list):
                found[path.parent.name] = [check_of(item) for item in checks if isinstance(item, dict)]
        return found

    def _cells(self, allocator: str) -> list[str]:
        rows = self.base[self.base["allocator"] == allocator]
        return list(rows.sort_values("seed", kind="stable")["cell"].astype(str)) if "cell" in rows else []

    def _row(self, cell: str) -> pd.Series[Any]:
        return self.base[self.base["cell"].astype(str) == cell].iloc[0]

    def _frame(self, path: Path, read: Callable[[Path], pd.DataFrame]) -> pd.DataFrame | None:
        try:
            frame: pd.DataFrame = read(path)
        except (OSError, ValueError) as error:
            self._note(path, error)
            return None
        return frame

    def _json(self, path: Path) -> Any:
        try:
            return json.loads(path.read_text("utf-8"))
        except (OSError, ValueError) as error:
            self._note(path, error)
            return None

    def _note(self, path: Path, error: Exception) -> None:
        if path.name == "map.parquet" and not path.exists():
            return  # maps are recorded on request
        if path not in self._seen:
            self._seen.add(path)
            why = "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read ({type(error).__name__})"
            self.problems.append(f"{path.relative_to(self.folder)} {why}")


def with_series(frame: pd.DataFrame) -> pd.DataFrame:
    """With names of series in place of those of allocators, where runs have kernels."""
    if not {"kernel", "allocator"} <= set(frame):
        return frame
    pairs = zip(frame["allocator"].astype(str), frame["kernel"], strict=True)
    return frame.assign(allocator=[series_of(allocator, kernel) for allocator, kernel in pairs])


def read_summary(path: Path) -> pd.DataFrame:
    """A summary.csv, every digit of it; only an empty field is a missing value, whatever a word may look like."""
    frame: pd.DataFrame = pd.read_csv(path, keep_default_na=False, na_values=[""], **EXACT)
    return frame


def check_of(item: dict[str, Any]) -> tuple[str, bool]:
    """Name and outcome of one stored check."""
    return str(item.get("name", "unnamed check")), bool(item.get("holds", item.get("passed", False)))


def find_key(tree: Any, key: str) -> Any:
    """The first value under that key, breadth first; None if there is none."""
    level = [tree]
    while level:
        dicts = [node for node in level if isinstance(node, dict)]
        for node in dicts:
            if key in node:
                return node[key]
        level = [value for node in dicts for value in node.values()]
    return None
