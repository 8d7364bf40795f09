"""Conditions on rows: `block_size>=16`, `allocator=paged,orca-max`, `kv.watermark!=unset`."""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass
from typing import Any

import pandas as pd

from experiments.figures.repeats import UNSET

_SHAPE = re.compile(r"\s*([A-Za-z_][\w.]*)\s*(==|!=|<=|>=|=|<|>)\s*(\S.*?)\s*")
ORDERED = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


@dataclass(frozen=True, slots=True)
class Condition:
    """A column, a comparison, and the values that it is compared with."""

    column: str
    sign: str
    values: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Condition:
        """ValueError for anything that is not COLUMN SIGN VALUE; `=` and `!=` take a comma list."""
        found = _SHAPE.fullmatch(text)
        if not found:
            raise ValueError(f"a condition is COLUMN=VALUE, or with != < <= > >= in place of =, got {text!r}")
        column, sign, rest = found.groups()
        values = tuple(part.strip() for part in rest.split(","))
        if "" in values:
            raise ValueError(f"condition {text!r}: an empty value; a missing one is written {UNSET!r}")
        if sign in ORDERED and len(values) > 1:
            raise ValueError(f"condition {text!r}: {sign} takes one value")
        return cls(column, sign.replace("==", "="), values)

    def holds(self, column: pd.Series[Any]) -> pd.Series[bool]:
        """Row by row; a missing value equals `unset` alone, and is neither more nor less than anything."""
        numeric = pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column)
        if self.sign in ORDERED:
            if not numeric:
                raise ValueError(f"{self.column!r} is not a number, so {self.sign} does not apply to it; use = or !=")
            ordered: pd.Series[bool] = ORDERED[self.sign](column, self._number(self.values[0])) & column.notna()
            return ordered
        met = pd.Series(False, index=column.index)
        for value in self.values:
            met |= self._equals(column, value, numeric=bool(numeric))
        return met if self.sign == "=" else ~met

    def _equals(self, column: pd.Series[Any], value: str, *, numeric: bool) -> pd.Series[bool]:
        if value == UNSET:
            return column.isna()
        if numeric:
            return column == self._number(value)
        return column.notna() & (column.astype(str).str.lower() == value.lower())

    def _number(self, value: str) -> float:
        try:
            return float(value)
        except ValueError:
            raise ValueError(f"{self.column!r} is a number, got {value!r}") from None
