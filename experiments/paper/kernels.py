"""Measurements of kernels that claims are judged on: taken on the device here, or read from a result that is named."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Row = dict[str, Any]


@dataclass
class KernelLab:
    """Rows of `pagelab bench kernel` by case, each measured once."""

    stored: Path | None = None
    """A results folder of `bench kernel`; None: measure on this machine's device."""
    quick: bool = False
    _done: dict[str, list[Row]] = field(default_factory=dict)

    def lacking(self) -> str:
        """Why nothing can be measured; empty where it can, or where stored rows were named."""
        from experiments.bench.machine import why_no_device

        if self.stored is not None:
            return ""
        reason = why_no_device()
        return reason and f"no device: {reason}; --kernels FOLDER judges stored measurements"

    def rows(self, case: str) -> list[Row]:
        """The case's rows, ratios included. UsageError for a folder without measurements of it."""
        if case not in self._done:
            self._done[case] = self._read(case) if self.stored is not None else self._measure(case)
        return self._done[case]

    def origin(self, case: str) -> str:
        """Where the numbers were taken, for the note of a claim."""
        devices = sorted({str(row["device"]) for row in self.rows(case)})
        where = f"stored in {self.stored.name}" if self.stored is not None else "measured now"
        return f"{', '.join(devices)}, {where}"

    def _read(self, case: str) -> list[Row]:
        from experiments.bench.stored import read
        from experiments.exits import UsageError

        assert self.stored is not None
        rows = [row for row in read(self.stored).table() if row["case"] == case]
        if not rows:
            raise UsageError(
                f"{self.stored}: no rows of the case {case}; run bench kernel --case {case} -o {self.stored}"
            )
        return rows

    def _measure(self, case: str) -> list[Row]:
        from experiments.bench.cases import OF_BACKENDS
        from experiments.bench.session import Wanted, measure

        only: dict[str, Any] = {"backends": ("all",), "peers": ()} if case == OF_BACKENDS else {}
        wanted = Wanted((case,), quick=self.quick, **only)
        return measure(wanted, lambda text: print(text, file=sys.stderr, flush=True)).table()


def of(rows: Sequence[Row], peer: str) -> dict[tuple[str, int], Row]:
    """By (shape, block size): the rows of a contestant that were measured right, swept ones apart."""
    chosen = [row for row in rows if row["peer"] == peer and row["status"] == "ok" and not row["swept"]]
    return {(row["shape"], row["block_size"]): row for row in chosen}
