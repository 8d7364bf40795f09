"""The result in one paragraph of plain words."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from experiments.comparison_table import why_idle, window_notes
from experiments.figures.caption import counted, num_requests_of
from experiments.figures.repeats import over_seeds
from experiments.figures.tables import number

if TYPE_CHECKING:
    from experiments.figures.stored import Stored

SATURATED = (
    "Requests arrived faster than {who} could serve them (“saturated”): {so}waiting times grow with the length of the "
    "trace and should not be quoted."
)
WANTED = "the memory was always wanted, which is what the memory figures need, but "
COLUMNS = ("kv_live_frac", "kv_free_frac", "mean_batch_size", "mean_ttft_s", "output_tok_per_s")
NEEDED = {"kv_live_frac", "mean_batch_size", "output_tok_per_s"}


def answer(stored: Stored) -> list[str]:
    """Sentences; every number is a mean over seeds, at one block size."""
    if stored.base.empty or not set(stored.base) >= NEEDED:
        return ["No run of this experiment finished, so there is nothing to compare."]
    table = over_seeds(stored.base, ["allocator"], COLUMNS).set_index("allocator")
    table = table.sort_values("kv_live_frac", ascending=False, na_position="last")
    rows = [{str(key): value for key, value in row.items()} for row in stored.base.to_dict("records")]
    marked = stored.saturated()
    idle = why_idle(
        [[{**row, "saturated": name in marked} for row in rows if row["allocator"] == name] for name in table.index]
    )
    if not (table["mean_batch_size"].fillna(0) > 0).any():
        sentences = [*(_sentence(note) for note in window_notes(rows)), "Nothing was measured."]
    elif idle:
        sentences = [_speeds(stored, table), _no_ranking(table, idle)]
    else:
        sentences = [_memory(stored, table), *_requests(table)]
    sentences += [*_none_completed(stored), *_saturated(stored, wanted=not idle)]
    device = str(stored.manifest.get("device", "simulated"))
    if device == "simulated":
        sentences.append(
            "All times are simulated with a model of how long a step takes; shares of memory are counted exactly."
        )
    elif stored.is_measured:
        sentences.append(f"Every step was run on {device} and timed there; shares of memory are counted exactly.")
    return sentences


def _sentence(note: str) -> str:
    return note[:1].upper() + note[1:] + "."


def _given(stored: Stored) -> str:
    given = "Given the same memory"
    if "capacity_tokens" in stored.base:
        low, high = int(stored.base["capacity_tokens"].min()), int(stored.base["capacity_tokens"].max())
        given = f"Given memory for {low:,} tokens" if low == high else f"Given memory for {low:,} to {high:,} tokens"
    size = f" in blocks of {stored.base_block_size}" if stored.base_block_size else ""
    return f"{given}{size} and the same {counted(num_requests_of(stored), 'request')}"


def _speeds(stored: Stored, table: pd.DataFrame) -> str:
    parts = []
    for name, row in table.sort_values("mean_batch_size", ascending=False, na_position="last").iterrows():
        late = f", {number(row['mean_ttft_s'], 's')} s to the first token" if "mean_ttft_s" in row else ""
        rate = number(row["output_tok_per_s"], "num")
        batch = number(row["mean_batch_size"], "num")
        parts.append(f"{name} ran {batch} requests at a time{late}, {rate} tokens per second")
    return f"{_given(stored)}: {'; '.join(parts)}."


def _no_ranking(table: pd.DataFrame, idle: str) -> str:
    shares = _and([f"{name} {number(share, 'frac')}" for name, share in table["kv_live_frac"].items()])
    if len(table) == 1:
        return f"{idle}, so its live share ({shares}) says how much was asked for, not how well memory was used."
    return f"{idle}, so live shares ({shares}) do not rank allocators: in a partly idle pool they follow the load."


def _memory(stored: Stored, table: pd.DataFrame) -> str:
    best, *others = table.index
    shares = [f"{name} {table.loc[name, 'kv_live_frac']:.1%}" for name in others]
    rest = f", {_and(shares)}" if shares else ""
    live = f"{table.loc[best, 'kv_live_frac']:.1%}"
    return f"{_given(stored)}, {best} kept {live} of the memory filled with tokens{rest}."


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


def _saturated(stored: Stored, *, wanted: bool) -> list[str]:
    marked = [name for name in stored.allocators if name in stored.saturated()]
    if not marked:
        return []
    who = "any allocator" if marked == stored.allocators else _and(marked)
    return [SATURATED.format(who=who, so=WANTED if wanted else "")]


def _and(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
