"""What `capacity` prints: terms, the load against the pool, what else would hold more, the usual slips, replays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from experiments.console import say, show

if TYPE_CHECKING:
    from rich.table import Table

    from engine.core.capacity import Capacity
    from engine.core.demand import Demand
    from experiments.capacity_verb import Answer

LAID_OUT = ("rule", "block_size", "terms", "notes")
"""Fields that titles and captions show."""


def show_answer(answer: Answer) -> None:
    """Tables on standard output, in the order in which one asks."""
    for capacity in answer.capacities:
        show(_terms(capacity), f"{answer.shape.name}, rule {capacity.rule}, block size {capacity.block_size}")
    if answer.demand is not None:
        show(_demand(answer), _load(answer.demand))
        show(_what_ifs(answer), f"What else would hold more (rule {answer.base.rule})")
    show(_traps(answer), f"Traps of units (rule {answer.base.rule})")
    if answer.simulate:
        show(_held(answer), f"Replayed on {answer.base.num_blocks:,} blocks: what each allocator holds")
        say(HELD_NOTE)


HELD_NOTE = (
    "Means while requests wait. cv 0: all of the mean lengths; cv 1: lognormal lengths of the same means. An Orca "
    "reserves whole requests; a request preempted by paging is computed again."
)


def _grid(*heads: str, left: int = 1) -> Table:
    from rich.table import Table

    table = Table()
    for index, head in enumerate(heads):
        table.add_column(head, justify="left" if index < left else "right")
    return table


def _terms(capacity: Capacity) -> Table:
    from rich.table import Table

    table = Table(caption_justify="left")
    table.add_column("term")
    table.add_column("value", justify="right")
    plain = {k: v for k, v in capacity.to_dict().items() if k not in LAID_OUT}
    for name, value in {**capacity.terms, **plain}.items():
        table.add_row(name, _number(value))
    if capacity.notes:
        table.caption = "; ".join(capacity.notes)
    return table


def _load(demand: Demand) -> str:
    each = f"{demand.mean_prompt_tokens:g} + {demand.mean_output_tokens:g} = {demand.tokens_each:g} tokens a request"
    if demand.concurrency is None:
        return each
    return f"{each}, {demand.concurrency} x {demand.tokens_each:g} = {demand.tokens():,} tokens"


def _demand(answer: Answer) -> Table:
    """Needed of what there is, for each capacity."""
    table = _grid("rule", "block size", "blocks a request", "blocks needed", "of the pool's", "share", "most at once")
    for capacity in answer.capacities:
        fit = answer.fit_of(capacity)
        share = "–" if fit["used_frac"] is None else f"{100 * fit['used_frac']:.1f} %"
        names = ("blocks_each", "blocks_needed", "num_blocks")
        cells = [_number(fit[name]) for name in names]
        table.add_row(capacity.rule, str(capacity.block_size), *cells, share, _number(fit["largest_concurrency"]))
    return table


def _what_ifs(answer: Answer) -> Table:
    assert answer.demand is not None
    asked = answer.demand.concurrency
    table = _grid(
        *("lever", "change", "tokens a request", "blocks needed", "of the pool's", "most at once"),
        f"{asked} at once" if asked else "",
        left=2,
    )
    for row in answer.what_ifs:
        if row.fit is None:
            table.add_row(row.lever, f"{row.change}: not possible, {row.why_not}", *["–"] * 5)
            continue
        fit = row.fit
        cells = [_number(value) for value in (fit.blocks_needed, fit.num_blocks, fit.largest_concurrency)]
        fits = {True: "fit", False: "do not fit", None: ""}[fit.fits]
        table.add_row(row.lever, row.change, f"{row.tokens_each:g}", *cells, fits)
    return table


def _traps(answer: Answer) -> Table:
    table = _grid("quantity", "is", "misread", "blocks then", left=3)
    for trap in answer.traps:
        table.add_row(trap.what, trap.right, trap.mistake, _number(trap.num_blocks))
    return table


def _held(answer: Answer) -> Table:
    heads = ("allocator", "lengths", "allowed", "running", "preemptions", "recomputed", "live", "held", "holds them")
    table = _grid(*heads, left=2)
    for row in answer.held:
        holds = {True: "yes", False: "no", None: ""}[row.holds]
        if row.num_rejected:
            holds = f"no: {row.num_rejected} can never fit"
        shares = [f"{100 * share:.1f} %" for share in (row.recomputed_frac, row.live_frac, row.used_frac)]
        allowed = "any" if row.limit is None else str(row.limit)
        counts = f"{row.mean_running:.1f}", f"{row.num_preemptions:,}"
        table.add_row(row.allocator, row.workload, allowed, *counts, *shares, holds)
    return table


def _number(value: Any) -> str:
    return "–" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
