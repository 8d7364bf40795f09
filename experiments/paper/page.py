"""What `reproduce --out` writes: the claims as JSON, the figures with their numbers, and one offline page of all."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from experiments.paper import show
from experiments.paper.experiment import Picture, Table
from experiments.paper.pictures import PICTURES
from sim.metrics import strict_json

if TYPE_CHECKING:
    from experiments.paper.claims import Result
    from experiments.paper.runs import Lab
    from experiments.paper.verb import Section

TEMPLATES = Path(__file__).parent.parent / "templates"
JSON_NAME, PAGE_NAME, FIGURES_NAME = "reproduce.json", "reproduce.html", "figures"


class Drawn(NamedTuple):
    """One figure, or why there is none."""

    name: str
    title: str
    claim: str = ""
    caption: str = ""
    image: str = ""
    """Base64 of the PNG."""
    error: str = ""


def write(folder: Path, document: dict[str, Any], sections: Sequence[Section], lab: Lab) -> tuple[Path, list[str]]:
    """The page's path, and the figures that could not be drawn. The claims are written first, whatever follows."""
    (folder / FIGURES_NAME).mkdir(parents=True, exist_ok=True)
    text = json.dumps(strict_json(document), allow_nan=False, ensure_ascii=False, indent=1)
    (folder / JSON_NAME).write_text(text + "\n", encoding="utf-8")
    drawn = {section.name: _draw_all(folder / FIGURES_NAME, section.name, lab) for section in sections}
    page = folder / PAGE_NAME
    page.write_text(render(document, sections, drawn), encoding="utf-8")
    return page, [f"{one.name}: {one.error}" for figures in drawn.values() for one in figures if one.error]


def _draw_all(folder: Path, name: str, lab: Lab) -> list[Drawn]:
    if name not in PICTURES:
        return []
    try:
        return [draw(folder, picture) for picture in PICTURES[name](lab)]
    except Exception as error:  # noqa: BLE001  one bad figure must not cost the page of an hour's runs
        return [Drawn(name, name, error=f"{type(error).__name__}: {error}")]


def draw(folder: Path, picture: Picture) -> Drawn:
    """Writes `<name>.png` and `<name>.csv`."""
    from experiments.figures.caption import above_footer
    from experiments.figures.drawing import write_numbers
    from experiments.style import PAGE_IN, new_figure, save, style

    path = folder / f"{picture.name}.png"
    with style():
        canvas = new_figure(PAGE_IN, picture.height_in)
        plotted = picture.draw(above_footer(canvas, picture.caption))
        save(canvas, path)
    write_numbers(plotted, path.with_suffix(".csv"))
    image = base64.b64encode(path.read_bytes()).decode()
    return Drawn(picture.name, picture.title, picture.claim, picture.caption, image)


def render(document: dict[str, Any], sections: Sequence[Section], drawn: dict[str, list[Drawn]]) -> str:
    """The page; nothing is fetched, everything is escaped."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    results = [result for section in sections for result in section.results]
    numbers = show.numbers_of(results)
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    shown = [
        {
            "name": section.name,
            "title": section.title,
            "claims": [_row(result, numbers) for result in section.results],
            "tables": [_cells(table) for table in section.tables],
            "figures": drawn[section.name],
        }
        for section in sections
    ]
    return environment.get_template("reproduce.html.j2").render(
        tally=show.tally(results),
        sections=shown,
        deviations=[(index, key, document["deviations"][key]) for key, index in numbers.items()],
        document={key: document[key] for key in ("quick", "num_seeds", "lengths", "kernels")},
    )


def _row(result: Result, numbers: dict[str, int]) -> dict[str, str]:
    claim = result.claim
    delta = None if result.got is None or claim.expected is None else result.got - claim.expected
    judged = delta is not None and not claim.why_reported
    return {
        "id": claim.id,
        "metric": claim.metric,
        "expected": show.number(claim.expected),
        "got": show.measured(result),
        "delta": show.difference(delta),
        "tolerance": show.tolerance(claim) if judged else "–",
        "unit": claim.unit,
        "verdict": result.verdict,
        "source": f"{claim.source} ({claim.confidence})",
        "deviations": ", ".join(str(numbers[key]) for key in claim.deviations),
        "note": result.to_dict()["note"],
    }


def _cells(table: Table) -> dict[str, Any]:
    cells = [[cell if isinstance(cell, str) else show.number(cell) for cell in row] for row in table.rows]
    return {"title": table.title, "heads": table.columns, "rows": cells, "note": table.note}
