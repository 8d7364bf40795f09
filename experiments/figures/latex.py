"""Tables for LaTeX, with booktabs: mean ± 95 % interval over repeats, everything escaped, the source as a comment."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import pandas as pd

from experiments.figures.columns import by_size, written
from experiments.figures.labels import axis_label
from experiments.figures.looks import curve_names, looks_of
from experiments.figures.saturation import is_saturated
from experiments.figures.variables import Choice, legend_title, table_of

ESCAPES = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "±": r"$\pm$",
    "–": "--",
    "†": r"$\dagger$",
    "µ": r"$\mu$",
    "×": r"$\times$",
}
_SPECIAL = re.compile("|".join(map(re.escape, ESCAPES)))


def escaped(text: str) -> str:
    """As text in any part of a document; newlines become spaces."""
    return _SPECIAL.sub(lambda found: ESCAPES[found[0]], " ".join(text.split()))


def plus_minus(mean: float | None, half: float | None, *, percent: bool = False) -> str:
    """`mean ± half`, the half in two significant digits and the mean to its last place; the mean in four where there is
    no interval; a dash for what is missing."""
    if mean is None or math.isnan(mean):
        return "–"
    scale = 100 if percent else 1
    mean *= scale
    unit = " %" if percent else ""
    if half is None or math.isnan(half) or half == 0:
        exact = " ± 0" if half == 0 else ""
        return f"{mean:,.{_places(mean, 4)}f}{exact}{unit}"
    half *= scale
    places = _places(half, 2)
    return f"{mean:,.{places}f} ± {half:,.{places}f}{unit}"


def _places(value: float, digits: int) -> int:
    """Decimals for that many significant digits."""
    return 0 if value == 0 else min(12, max(0, digits - 1 - math.floor(math.log10(abs(value)))))


def latex_table(heads: Sequence[str], rows: Sequence[Sequence[str]], about: str = "", over: str = "") -> str:
    """A `tabular` with rules of booktabs: the first column left, the others right; `about` as comments above, `over`
    across all columns but the first."""
    comments = [f"% {line}" for line in [*about.splitlines(), r"needs \usepackage{booktabs}"]]
    lines = [" & ".join(map(escaped, cells)) + r" \\" for cells in (heads, *rows)]
    columns = "l" + "r" * (len(heads) - 1)
    across = [rf" & \multicolumn{{{len(heads) - 1}}}{{c}}{{{escaped(over)}}} \\", rf"\cmidrule(l){{2-{len(heads)}}}"]
    top = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", *(across if over else [])]
    body = [*top, lines[0], r"\midrule", *lines[1:], r"\bottomrule"]
    return "\n".join([*comments, *body, r"\end{tabular}", ""])


def pivot(frame: pd.DataFrame, choice: Choice) -> tuple[list[str], list[list[str]], pd.DataFrame]:
    """Heads and cells of a table with a row a value of x and a column a curve, and the numbers behind it."""
    table = table_of(frame, choice)
    names, percent = curve_names(table, choice.curve_by), choice.var_y.endswith("_frac")
    curves = list(looks_of(table, choice.curve_by))
    ordered = table[choice.var_x].sort_values(kind="stable", na_position="first", key=by_size)
    rows = []
    for value in dict.fromkeys(written(one) for one in ordered):
        here = table[table[choice.var_x].map(written) == value]
        cells = [here[names[here.index] == curve] for curve in curves]
        rows.append([value, *(_cell(cell, choice.var_y, percent=percent) for cell in cells)])
    heads = [axis_label(choice.var_x), *(curves if choice.curve_by else [_value_label(choice.var_y)])]
    return heads, rows, table


def over_curves(choice: Choice) -> str:
    """What stands above the names of the curves: what the numbers are, and what the names are values of; nothing where
    one column says it itself."""
    if not choice.curve_by:
        return ""
    title = legend_title(choice.curve_by)
    return _value_label(choice.var_y) + (f", by {title}" if title else "")


def _value_label(column: str) -> str:
    """Without the unit of a share: its cells are percentages."""
    return axis_label(column).removesuffix(" (fraction)") if column.endswith("_frac") else axis_label(column)


def _cell(rows: pd.DataFrame, column: str, *, percent: bool) -> str:
    if rows.empty:
        return "–"
    late = " †" * bool(is_saturated(rows).any())
    return plus_minus(rows[column].iloc[0], rows[f"{column}_ci95"].iloc[0], percent=percent) + late
