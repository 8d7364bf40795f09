"""The options of `pagelab plot`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Group, Parameter

if TYPE_CHECKING:
    from experiments.figures.variables import Choice

_WHAT = Group("What over what", sort_key=1)
_HOW = Group("Looks and files", sort_key=2)


def _option(group: Group, text: str, *names: str) -> Any:
    return Parameter(group=group, help=text, name=names or None, show_default=False)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class PlotFlags:
    """Columns are named in full (kv.block_size) or by their last part."""

    var_x: Annotated[str, _option(_WHAT, "Column of the x axis [block_size].")] = "block_size"
    var_y: Annotated[str, _option(_WHAT, "Column of the y axis: its mean over repeats [kv_live_frac].")] = (
        "kv_live_frac"
    )
    curve_by: Annotated[str, _option(_WHAT, "Columns of which each value is a curve; none: one curve [allocator].")] = (
        "allocator"
    )
    row_by: Annotated[str | None, _option(_WHAT, "Column of which each value is a row of panels.")] = None
    col_by: Annotated[str | None, _option(_WHAT, "Column of which each value is a column of panels.")] = None
    fig_by: Annotated[str | None, _option(_WHAT, "Column of which each value is a figure of its own.")] = None
    filter_by: Annotated[
        tuple[str, ...],
        Parameter(
            group=_WHAT,
            help="Only rows with COLUMN=VALUE, or != < <= > >= (may be repeated); a missing value is unset.",
            negative=(),
            show_default=False,
        ),
    ] = ()
    scale_x: Annotated[
        Literal["auto", "linear", "log", "log2"],
        _option(_WHAT, "auto: log2 for sizes of blocks and pages, and powers of two [auto]."),
    ] = "auto"
    pareto: Annotated[
        str,
        _option(_WHAT, "Two goals in place of x and y: max:output_tok_per_s,min:mean_tpot_s draws their frontier."),
    ] = ""
    style: Annotated[
        Literal["screen", "paper"],
        _option(_HOW, "paper: PDF, 3.33 or 6.9 inches wide, serif, the source in the file's description [screen]."),
    ] = "screen"
    output: Annotated[
        Path | None,
        _option(
            _HOW,
            "Picture to write (.png, .pdf, .svg), or .tex for a table [figures/VAR_Y-by-VAR_X.png in the folder].",
            "-o",
            "--output",
        ),
    ] = None
    dry_run: Annotated[
        bool, Parameter(group=_HOW, help="Say which figures there would be.", negative=(), show_default=False)
    ] = False

    def choice(self) -> Choice:
        """What is drawn, by the names as they were given."""
        from experiments.figures.variables import Choice

        curves = [] if self.curve_by in ("", "none") else [part.strip() for part in self.curve_by.split(",")]
        facets = {"row_by": self.row_by, "col_by": self.col_by, "fig_by": self.fig_by}
        return Choice(self.var_x, self.var_y, tuple(curves), **facets, filter_by=self.filter_by, scale_x=self.scale_x)
