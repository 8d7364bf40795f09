"""Several results folders as one, so that what differs between them, such as the request rate, can be an axis."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.figures.labels import RATE
from experiments.figures.stored import Stored


class Together(Stored):
    """The rows of all folders, with their rates. ValueError for folders that cannot share a picture."""

    def __init__(self, folders: Sequence[Path]) -> None:
        super().__init__(folders[0])
        self.parts = [Stored(folder) for folder in folders]
        if len({folder.resolve() for folder in folders}) < len(folders):
            raise ValueError("a folder is named twice: its rows would count twice")
        if len({part.is_measured for part in self.parts}) > 1:
            raise ValueError("some results are measured and some simulated: their times are not of one kind")

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """The first folder's, with what is the same in all of them and the names of all traces."""
        first, *others = [part.manifest for part in self.parts]
        if not others:
            return first
        traces = [part.manifest.get("trace") or {} for part in self.parts]
        same = {key: value for key, value in first.items() if all(other.get(key) == value for other in others)}
        names = dict.fromkeys(str(trace.get("name")) for trace in traces)
        hashes = dict.fromkeys(str(trace.get("sha256"))[:12] for trace in traces)
        words = ["pagelab", "plot", *(str(part.folder) for part in self.parts)]
        trace = {"name": ", ".join(names), "sha256": next(iter(hashes)) if len(hashes) == 1 else f"of {len(hashes)}"}
        engine = {"engine": first["engine"]} if self.is_measured_in_all else {}
        return {"step_model": "several", **same, **engine, "trace": trace, "argv": words}

    @property
    def axes(self) -> list[str]:
        """Those of any folder, and what tells folders apart."""
        several = [RATE] if len(self.parts) > 1 else []
        return list(dict.fromkeys([axis for part in self.parts for axis in part.axes] + several))

    @property
    def is_measured_in_all(self) -> bool:
        """The same as `is_measured`, without this class's own manifest."""
        return all(part.is_measured for part in self.parts)

    @cached_property
    def summary(self) -> pd.DataFrame:
        """All rows; a folder without a rate in its manifest has none."""
        frames = []
        for part in self.parts:
            rate = (part.manifest.get("trace") or {}).get(RATE)
            frames.append(part.summary.assign(**{RATE: rate}))
        return pd.concat(frames, ignore_index=True)
