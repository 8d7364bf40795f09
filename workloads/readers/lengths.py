"""Lengths of very many texts, a few bytes each."""

from __future__ import annotations

from array import array
from collections import Counter

import numpy as np

from workloads.tables import Table


class Lengths:
    """Rows that have lengths and nothing else, all at 0, and the rows that a recipe left out."""

    def __init__(self) -> None:
        self._rows, self._prompts, self._outputs = array("q"), array("q"), array("q")
        self._left_out: Counter[str] = Counter()
        self._first_left_out = ""

    def add(self, row: int, prompt: int, output: int) -> None:
        """Keep a row. Tokens are below 2**63."""
        self._rows.append(row)
        self._prompts.append(prompt)
        self._outputs.append(output)

    def leave_out(self, said: str, reason: str) -> None:
        """Count a row as left out; `said` is where and why."""
        self._first_left_out = self._first_left_out or said
        self._left_out[reason] += 1

    def table(self) -> Table:
        """All rows."""
        columns = {
            "arrival_ns": np.zeros(len(self._rows), np.int64),
            "num_prompt_tokens": np.array(self._prompts, np.int64),
            "num_output_tokens": np.array(self._outputs, np.int64),
            "source_row": np.array(self._rows, np.int64),
        }
        return Table(columns, left_out=self._left_out, first_left_out=self._first_left_out)
