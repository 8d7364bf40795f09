"""What `reproduce` prints: one table an experiment, the deviations that apply, and the tally."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from experiments.paper.claims import Claim, Result
from experiments.paper.deviations import DEVIATIONS
from experiments.paper.experiment import Cell, Table

STYLES = {
    "pass": "green",
    "miss": "bold red",
    "calibrated": "cyan",
    "reported": "cyan",
    "not yet": "dim",
    "not here": "yellow",
}
PLAIN_WIDTH = 150
"""Columns where there is no terminal to ask."""


def tolerance(claim: Claim) -> str:
    """Of a cost that may be anything up to the number: `max`."""
    return "max" if claim.at_most else number(claim.tolerance)


def console() -> Console:
    """Standard output; wide enough for the tables where it is not a terminal."""
    found = Console(highlight=False)
    return found if found.is_terminal else Console(highlight=False, width=PLAIN_WIDTH)


def number(value: float | None) -> str:
    """Whole numbers in full, others with two decimals."""
    if value is None or not math.isfinite(value):
        return "–"
    if value == int(value):
        return f"{int(value):,}"
    return f"{value:,.2f}"


def measured(result: Result) -> str:
    """Mean and sd."""
    if result.sd is None:
        return number(result.got)
    return f"{result.got:,.2f} ± {result.sd:.2f}"


def difference(delta: float | None) -> str:
    """Signed; no sign where it rounds to nothing."""
    if delta is None or not math.isfinite(delta):
        return "–"
    if not delta:
        return "0"
    return f"{delta:+,.2f}" if abs(delta) >= 0.005 else "0.00"


def numbers_of(results: Iterable[Result]) -> dict[str, int]:
    """Deviations that apply, numbered in the order in which they come up."""
    used = dict.fromkeys(key for result in results for key in result.claim.deviations)
    return {key: index for index, key in enumerate(used, 1)}


def show_claims(out: Console, title: str, results: Sequence[Result], footnotes: dict[str, int]) -> None:
    """A row a claim: paper, ours, difference, tolerance, verdict."""
    table = RichTable(title=title, title_justify="left", title_style="bold")
    for head, justify in (("claim", "left"), ("paper", "right"), ("ours", "right"), ("Δ", "right"), ("±", "right")):
        table.add_column(head, justify="right" if justify == "right" else "left", no_wrap=True)
    for head in ("unit", "verdict", "src"):
        table.add_column(head, no_wrap=True)
    table.add_column("dev.", overflow="fold", min_width=8)
    for result in results:
        claim, verdict = result.claim, result.verdict
        delta = None if result.got is None or claim.expected is None else result.got - claim.expected
        table.add_row(
            claim.id,
            number(claim.expected),
            measured(result),
            difference(delta),
            tolerance(claim) if delta is not None and not claim.why_reported else "–",
            claim.unit,
            Text(verdict, STYLES[verdict]),
            claim.confidence,
            ",".join(str(footnotes[key]) for key in claim.deviations),
        )
    out.print(table)
    _show_notes(out, results)


def _show_notes(out: Console, results: Sequence[Result]) -> None:
    """What belongs to single rows; rows that have the same note in one line."""
    by_note: dict[str, list[str]] = {}
    for result in results:
        if result.verdict != "not yet" and (note := result.to_dict()["note"]):
            by_note.setdefault(note, []).append(result.claim.id)
    grid = RichTable.grid(padding=(0, 2))
    for note, ids in by_note.items():
        grid.add_row(Text("\n".join(f"  {name}" for name in ids), "dim"), Text(note, "dim"))
    if by_note:
        out.print(grid)


def show_table(out: Console, table: Table) -> None:
    """Numbers without a verdict."""
    rich = RichTable(title=table.title, title_justify="left", title_style="bold", caption=table.note or None)
    for index, head in enumerate(table.columns):
        rich.add_column(head, justify="right" if index else "left")
    for row in table.rows:
        rich.add_row(*(_cell(cell) for cell in row))
    out.print(rich)


def _cell(cell: Cell) -> str:
    return cell if isinstance(cell, str) else number(cell)


def show_deviations(out: Console, footnotes: dict[str, int]) -> None:
    """The footnotes, in full."""
    if not footnotes:
        return
    out.print(Text("Deviations", "bold"))
    grid = RichTable.grid(padding=(0, 2))
    grid.add_column(justify="right")
    for key, index in footnotes.items():
        grid.add_row(str(index), Text(f"{key}: {DEVIATIONS[key]}"))
    out.print(grid)
    out.print(Text("src: A read in the primary text, B quoted elsewhere, C from memory, R recomputed", "dim"))


def tally(results: Sequence[Result]) -> str:
    """How many of which verdict; calibrated and not-yet ones apart."""
    count = Counter(result.verdict for result in results)
    judged = count["pass"] + count["miss"]
    text = f"{count['pass']} of {judged} claims passed"
    if count["miss"]:
        text += f", {count['miss']} missed"
    if count["calibrated"]:
        text += f"; {count['calibrated']} fitted (not counted)"
    if count["reported"]:
        text += f"; {count['reported']} reported (not judged)"
    if count["not here"]:
        text += f"; {count['not here']} not measured on this machine (not counted)"
    if count["not yet"]:
        text += f"; {count['not yet']} not yet measured (not counted)"
    return text
