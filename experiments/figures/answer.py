"""The result in one paragraph of plain words."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from experiments.figures.caption import num_requests_of
from experiments.figures.repeats import over_seeds
from experiments.figures.tables import number

if TYPE_CHECKING:
    from experiments.figures.stored import Stored

SATURATED = (
    "Requests arrived faster than {who} could serve them (“saturated”): the memory was always wanted, which is what "
    "the memory figures need, but waiting times grow with the length of the trace and should not be quoted."
)
COLUMNS = ("kv_live_frac", "mean_batch_size", "output_tok_per_s")


def answer(stored: Stored) -> list[str]:
    """Sentences; every number is a mean over seeds, at one block size."""
    if stored.base.empty or not set(COLUMNS) <= set(stored.base):
        return ["No run of this experiment finished, so there is nothing to compare."]
    table = over_seeds(stored.base, ["allocator"], COLUMNS).set_index("allocator")
    table = table.sort_values("kv_live_frac", ascending=False, na_position="last")
    sentences = [_memory(stored, table), *_requests(table), *_none_completed(stored), *_saturated(stored)]
    device = str(stored.manifest.get("device", "simulated"))
    if device == "simulated":
        sentences.append(
            "All times are simulated with a model of how long a step takes; shares of memory are counted exactly."
        )
    return sentences


def _memory(stored: Stored, table: pd.DataFrame) -> str:
    best, *others = table.index
    tokens = stored.base["capacity_tokens"].iloc[0] if "capacity_tokens" in stored.base else None
    given = f"Given memory for {int(tokens):,} tokens" if tokens is not None else "Given the same memory"
    size = f" in blocks of {stored.base_block_size}" if stored.base_block_size else ""
    shares = [f"{name} {table.loc[name, 'kv_live_frac']:.1%}" for name in others]
    rest = f", {_and(shares)}" if shares else ""
    start = f"{given}{size} and the same {num_requests_of(stored)} requests"
    return f"{start}, {best} kept {table.loc[best, 'kv_live_frac']:.1%} of the memory filled with tokens{rest}."


def _requests(table: pd.DataFrame) -> list[str]:
    best, worst = table.index[0], table.index[-1]
    batch, rate = table["mean_batch_size"].astype(float), table["output_tok_per_s"].astype(float)
    if batch.isna().any() or rate.isna().any():
        return []
    if best == worst:
        numbers = number(batch[best], "num"), number(rate[best], "num")
        return ["It ran {} requests at a time and produced {} tokens per second.".format(*numbers)]
    more = f"{number(batch[best], 'num')} requests at a time{_times(batch, best, worst)}"
    faster = f"{number(rate[best], 'num')} tokens per second{_times(rate, best, worst)}"
    return [f"So {best} ran {more}, and produced {faster}."]


def _times(values: pd.Series[float], best: str, worst: str) -> str:
    if values[worst] <= 0:
        return ""
    return f" ({values[best] / values[worst]:.1f} times the {number(values[worst], 'num')} of {worst})"


def _none_completed(stored: Stored) -> list[str]:
    columns = [name for name in ("num_finished", "num_truncated") if name in stored.base]
    done = stored.base.groupby("allocator")[columns].sum().sum(axis=1) if columns else pd.Series(dtype=float)
    names = [str(name) for name in done.index[done == 0]]
    return [f"No request was completed by {_and(names)}."] if names else []


def _saturated(stored: Stored) -> list[str]:
    marked = [name for name in stored.allocators if name in stored.saturated()]
    if not marked:
        return []
    who = "any allocator" if marked == stored.allocators else _and(marked)
    return [SATURATED.format(who=who)]


def _and(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
