"""The figures of kernel measurements as files, and the page that shows them."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from experiments.bench.rows import COLUMNS, MEANINGS, Row
from experiments.bench.summary import overheads, standings

if TYPE_CHECKING:
    from experiments.figures.kernels import KernelFigure

FIGURES, REPORT = "figures", "report.html"


class Drawn(NamedTuple):
    """A figure's file, or why there is none."""

    figure: KernelFigure
    picture: Path | None
    missing: str = ""
    error: str = ""


def draw_figures(rows: Sequence[Row], manifest: dict[str, Any], folder: Path) -> list[Drawn]:
    """Writes `figures/<name>.png` and `.csv`; one that fails costs none of the others."""
    import pandas as pd

    from experiments.figures.caption import kernel_caption
    from experiments.figures.kernels import KERNEL_FIGURES

    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    (folder / FIGURES).mkdir(parents=True, exist_ok=True)
    return [_draw(figure, frame, kernel_caption(manifest), folder / FIGURES) for figure in KERNEL_FIGURES]


def _draw(figure: KernelFigure, frame: Any, caption: str, folder: Path) -> Drawn:
    from experiments.figures.caption import above_footer
    from experiments.figures.drawing import write_numbers
    from experiments.figures.spec import NothingToDrawError
    from experiments.style import PAGE_IN, new_figure, save, style

    picture = folder / f"{figure.name}.png"
    for stale in (picture, picture.with_suffix(".csv")):
        stale.unlink(missing_ok=True)
    try:
        with style():
            canvas = new_figure(PAGE_IN, figure.height_in)
            plotted = figure.draw(frame, above_footer(canvas, caption))
            save(canvas, picture)
    except NothingToDrawError as reason:
        return Drawn(figure, None, missing=str(reason))
    except Exception as error:  # noqa: BLE001 - one bad figure must not cost the measurements
        return Drawn(figure, None, error=f"{type(error).__name__}: {error}")
    write_numbers(plotted, picture.with_suffix(".csv"))
    return Drawn(figure, picture)


def write_page(rows: Sequence[Row], manifest: dict[str, Any], folder: Path) -> list[Drawn]:
    """Figures and `report.html`, one file without network access."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    from experiments.figures.caption import command_of, kernel_caption

    drawn = draw_figures(rows, manifest, folder)
    templates = FileSystemLoader(Path(__file__).parents[1] / "templates")
    environment = Environment(
        loader=templates, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    text = environment.get_template("kernels.html.j2").render(
        title=manifest["experiment"],
        command=command_of(manifest),
        machine=manifest["machine"],
        missing=manifest["peers_missing"],
        broken=manifest["broken"],
        caption=kernel_caption(manifest),
        standings=standings(rows),
        overheads=overheads(rows),
        failed=[row for row in rows if row["status"] in ("wrong", "failed")],
        figures=[_picture(one) for one in drawn],
        columns=MEANINGS,
        manifest=json.dumps({k: v for k, v in manifest.items() if k != "derived_files"}, indent=2, ensure_ascii=False),
    )
    partial = folder / ".report.html.tmp"
    partial.write_text(text, encoding="utf-8", newline="\n")
    partial.replace(folder / REPORT)
    return drawn


def _picture(one: Drawn) -> dict[str, str]:
    image = base64.b64encode(one.picture.read_bytes()).decode() if one.picture else ""
    numbers = f"{FIGURES}/{one.figure.name}.csv"
    return {
        "name": one.figure.name,
        "title": one.figure.title,
        "claim": one.figure.claim,
        "image": image,
        "numbers": numbers,
        "why_not": one.missing or one.error,
    }
