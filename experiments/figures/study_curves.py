"""Curves and bars of the studies: a measured quantity over what was varied, one curve or group a variant."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from experiments.figures.repeats import need, over_seeds
from experiments.style import look_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def curves(
    frame: pd.DataFrame, ax: Axes, x: str, y: str, by: str, label: str, tick: Callable[[Any], str] = lambda v: f"{v:g}"
) -> pd.DataFrame:
    """`y` over the values of `x` at equal distances, a curve a value of `by` in order of appearance; means and sd over
    seeds. `label` is of the y axis. Returns what is plotted."""
    need(frame, [x, y, by])
    table, places = over_seeds(frame, [by, x], [y]), sorted(frame[x].unique())
    for name in dict.fromkeys(frame[by].astype(str)):
        rows = table[table[by].astype(str) == name].sort_values(x)
        look = look_of(name)
        at = [places.index(value) for value in rows[x]]
        drawn = {"color": look.colour, "linestyle": look.line, "marker": look.marker, "markersize": 4.5}
        ax.errorbar(at, rows[y], yerr=rows[f"{y}_sd"], capsize=2, label=name, **drawn)
    ax.set_xticks(range(len(places)), [tick(value) for value in places])
    ax.set_ylim(bottom=0)
    ax.set_ylabel(label)
    return table.reset_index(drop=True)


def grouped_bars(
    frame: pd.DataFrame, ax: Axes, group: str, y: str, by: str, label: str, looks: Sequence[str]
) -> pd.DataFrame:
    """A group of bars a value of `group`, in it a bar a value of `by`; means and sd over seeds. `looks` names whose
    colours and hatches the bars have. Returns what is plotted."""
    need(frame, [group, y, by])
    table = over_seeds(frame, [group, by], [y])
    groups, names = list(dict.fromkeys(frame[group])), list(dict.fromkeys(frame[by]))
    width = 0.8 / len(names)
    for index, (name, shown) in enumerate(zip(names, looks, strict=True)):
        rows = table[table[by] == name].set_index(group).loc[groups]
        at = [place + (index - (len(names) - 1) / 2) * width for place in range(len(groups))]
        look = look_of(shown)
        drawn: dict[str, Any] = {"color": look.colour, "hatch": look.hatch, "edgecolor": "white"}
        drawn |= {"error_kw": {"linewidth": 0.8}, "capsize": 2}
        ax.bar(at, rows[y], width, yerr=rows[f"{y}_sd"].fillna(0), label=str(name), **drawn)
    ax.set_xticks(range(len(groups)), [str(value) for value in groups])
    ax.set_ylabel(label)
    return table.reset_index(drop=True)
