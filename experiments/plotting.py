"""The verb `plot`: figures of stored results, each attempted whatever became of the others."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments import exits, store
from experiments.console import say, say_json
from experiments.exits import UsageError
from experiments.folders import WRITERS, results_folder
from experiments.plot_flags import PlotFlags
from experiments.provenance import name_only
from experiments.views import enter_derived

if TYPE_CHECKING:
    from experiments.figures.plots import Plot
    from experiments.figures.stored import Stored

SUFFIXES = (".png", ".pdf", ".svg", ".tex")


def plot_verb(folders: Sequence[Path], flags: PlotFlags, argv: Sequence[str], *, as_json: bool) -> int:
    """One picture or several and the numbers behind them; those of several folders belong to none of them. Exit code 3
    if one could not be drawn."""
    from experiments.figures.together import Together

    if not folders:
        raise UsageError(f"plot: name a folder that {WRITERS} has written, or several")
    for one in folders:
        results_folder(one)
    if len(folders) > 1 and flags.output is None:
        raise UsageError(f"plot: {len(folders)} folders: say where the picture goes with -o FILE")
    if flags.output is not None and flags.output.suffix not in SUFFIXES:
        raise UsageError(f"-o {flags.output}: a picture ends in {', '.join(SUFFIXES[:-1])}, a table in .tex")
    try:
        stored = Together(folders)
        plots = planned(stored, folders, flags, shlex.join(map(name_only, argv)))
        names = [str(plot.path) for plot in plots]
        if len(set(names)) < len(names):
            raise ValueError(f"two figures would be called {max(names, key=names.count)}: use --filter-by instead")
    except ValueError as error:
        raise UsageError(f"{', '.join(str(one / store.SUMMARY) for one in folders)}: {error}") from error
    if flags.dry_run:
        return _say_plan(stored, plots, as_json=as_json)
    done, failed = _draw(stored, plots)
    if flags.output is None and done:
        enter_derived(folders[0])
    return _say_done(done, failed, as_json=as_json)


def planned(stored: Stored, folders: Sequence[Path], flags: PlotFlags, command: str) -> list[Plot]:
    """Every figure, with its rows and its file; ValueError for what cannot be asked of these results."""
    from experiments.figures.pareto import goals_of
    from experiments.figures.plots import Plot, default_name, suffix_of

    frame, asked = stored.summary, flags.choice()
    if flags.pareto:
        first, second = goals_of(flags.pareto, frame)
        asked = replace(asked, var_x=second.column, var_y=first.column)
    choice = asked.on(frame)
    if flags.pareto and (choice.row_by or choice.col_by):
        raise ValueError("--pareto is one panel: use --fig-by or --filter-by for more")
    plots = []
    for name, rows in choice.figures(frame):
        if flags.output is None:
            suffix = ".pdf" if flags.style == "paper" else ".png"
            base = store.checked_name(default_name(choice, flags.pareto, name))
            path = folders[0] / store.FIGURES / f"{base}{suffix}"
        else:
            path = flags.output.with_name(f"{flags.output.stem}{suffix_of(name)}{flags.output.suffix}")
        plots.append(Plot(choice, rows, path, flags.style, flags.pareto, command))
    return plots


def _draw(stored: Stored, plots: Sequence[Plot]) -> tuple[list[dict[str, Any]], list[str]]:
    """What was drawn, and what was not, by name with the reason."""
    from experiments.figures.plots import draw_plot

    done, failed = [], []
    for plot in plots:
        try:
            points = draw_plot(stored, plot)
        except OSError as error:
            raise UsageError(f"{plot.path}: cannot be written: {error}") from error
        except Exception as error:  # noqa: BLE001 - one bad figure costs itself only
            failed.append(f"{plot.path.name}: {type(error).__name__.removesuffix('Error')}: {error}")
            print(f"pagelab: figure {failed[-1]}", file=sys.stderr)
            continue
        for remark in plot.remarks(stored.axes):
            print(f"pagelab: {plot.path.name}: {remark}", file=sys.stderr)
        done.append({"figure": str(plot.path), "points": points.to_dict("records")})
    return done, failed


def _say_plan(stored: Stored, plots: Sequence[Plot], *, as_json: bool) -> int:
    """The figures that there would be; nothing is written."""
    from experiments.figures.looks import looks_of
    from experiments.figures.variables import grid_of

    plans: list[dict[str, Any]] = []
    for plot in plots:
        rows, columns = (1, 1) if plot.pareto else grid_of(plot.rows, plot.choice)
        curves = list(looks_of(plot.rows, plot.choice.curve_by))
        points = plot.num_points(stored.axes)
        plans.append({"figure": str(plot.path), "rows": rows, "columns": columns, "curves": curves, "points": points})
    if as_json:
        say_json({"figures": plans})
    for plan in [] if as_json else plans:
        panels = f"{plan['rows']} x {plan['columns']} panels"
        say(f"{plan['figure']}: {panels}, {plan['points']} points, curves: {'; '.join(plan['curves'])}")
    return exits.OK


def _say_done(done: Sequence[dict[str, Any]], failed: Sequence[str], *, as_json: bool) -> int:
    if as_json:
        one = done[0] if len(done) == 1 and not failed else {"figures": list(done)}
        say_json({**one, "failed_figures": list(failed)})
    for drawn in [] if as_json else done:
        say(f"figure: {drawn['figure']}")
    return exits.FAILED_CELLS if failed else exits.OK
