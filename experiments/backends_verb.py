"""`pagelab backends`: what each attention backend can do, and whether it can run here."""

from __future__ import annotations

import re
import textwrap
from typing import TYPE_CHECKING, Any, Final

from experiments.backends import need_torch
from experiments.console import say, say_json, show

if TYPE_CHECKING:
    from rich.table import Table

    from engine.attention import AttentionBackend, KVLayout

SCHEMA_VERSION: Final = 1
COLUMNS: Final = {
    "dtypes": "dtypes",
    "head_sizes": "head sizes",
    "block_sizes": "block sizes",
    "archs": "compute capability",
    "graphs": "graphs",
}
TYPES: Final = {
    "float64": "64",
    "float32": "32",
    "float16": "16",
    "bfloat16": "bf",
    "float8_e4m3fn": "8",
}
"""Short names of storage types; others keep theirs."""
WIDTH: Final = 80
"""Columns that the short table and all lines keep to: those of the narrowest terminal."""
SIZES: Final = "heads, block: sizes, 8n a multiple of 8; cuda: compute capability, 9.x from 9.0 to below 10.0"
MORE: Final = "whole words: --wide; everything: --json"
GRAPHS: Final = {"no": "no", "own stream": "own", "planned lengths": "plan", "any lengths": "any"}
ASKED: Final = {"sliding_window": "W", "soft_cap": "C", "mixed_batches": "M", "shared_prefixes": "P"}


def backends_verb(*, wide: bool = False, as_json: bool) -> int:
    """Exit code 0; DeviceMissing where torch is not installed. `wide`: every word of a row on its line."""
    need_torch("pagelab backends")
    from engine.attention import BACKENDS, capability_table

    entries = [_entry(backend, row) for backend, row in zip(BACKENDS.values(), capability_table(), strict=True)]
    if as_json:
        say_json({"schema_version": SCHEMA_VERSION, "backends": entries})
        return 0
    show(_table(entries) if wide else _short_table(entries), "Attention backends")
    for line in _legend(wide):
        _say(line)
    for entry in entries:
        if not entry["runs_here"]:
            _say(f"{entry['backend']} cannot run here: {entry['unavailable_because']}")
    return 0


def _legend(wide: bool) -> list[str]:
    from engine.attention import KVLayout

    letter = dict.fromkeys(KVLayout, "") if wide else {layout: f"{_short(layout)[0]}: " for layout in KVLayout}
    layouts = "; ".join(f"{letter[layout]}{_short(layout)} {layout.value}" for layout in KVLayout)
    graphs = "" if wide else f" ({', '.join(f'{few}: {words}' for words, few in GRAPHS.items() if few != words)})"
    lines = [
        f"{'layouts' if wide else 'pool: layouts'}, the default first: {layouts}",
        f"graphs: whether a CUDA graph can hold a call, and which lengths it then serves{graphs}",
    ]
    if wide:
        return lines
    types = ", ".join(f"{code}: {name}" for name, code in TYPES.items())
    lacks = ", ".join(f"{code}: {name.replace('_', ' ')}" for name, code in ASKED.items())
    return [*lines, f"types: {types}", f"lacks: {lacks}", SIZES, MORE]


def _say(text: str) -> None:
    """In lines of a terminal's width; names and commands stay whole."""
    say(textwrap.fill(text, WIDTH, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False))


def _short(layout: KVLayout) -> str:
    """As the option --layout spells it."""
    return layout.name.lower().replace("_", "-")


def _entry(backend: type[AttentionBackend], row: dict[str, str]) -> dict[str, Any]:
    """The row, layouts by name and shape, yes and no as booleans."""
    able = backend.capabilities()
    flags = {name: row[name] == "yes" for name in (*ASKED, "mla")}
    layouts = [{"name": _short(layout), "shape": layout.value} for layout in able.layouts]
    why = {"runs_here": not row["unavailable_because"]}
    size = {"default_block_size": able.default_block_size}
    return {**row, **flags, **size, "layouts": layouts, "dtypes": row["dtypes"].split(), **why}


def _table(entries: list[dict[str, Any]]) -> Table:
    from rich.table import Table

    table = Table()
    for head in ("backend", "here", "layouts", *COLUMNS.values(), "without"):
        table.add_column(head)
    for entry in entries:
        layouts = " ".join(layout["name"] for layout in entry["layouts"])
        without = ", ".join(name.replace("_", " ") for name in ASKED if not entry[name])
        here = "yes" if entry["runs_here"] else "no"
        cells = {**entry, "dtypes": " ".join(_stored(entry))}
        table.add_row(entry["backend"], here, layouts, *(cells[name] for name in COLUMNS), without)
    return table


def _stored(entry: dict[str, Any]) -> list[str]:
    """Types of the cache; FP8 is one that only it can have."""
    return list(dict.fromkeys((*entry["dtypes"], *entry["kv_dtypes"].split())))


def _short_table(entries: list[dict[str, Any]]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 0), show_edge=False)
    for head in ("backend", "here", "pool", "types", "heads", "block", "cuda", "graphs", "lacks"):
        table.add_column(head, no_wrap=True)
    for entry in entries:
        layouts = "".join(layout["name"][0] for layout in entry["layouts"])
        types = " ".join(TYPES.get(name, name) for name in _stored(entry))
        sizes = [_brief(entry[name]) for name in ("head_sizes", "block_sizes", "archs")]
        lacks = "".join(code for name, code in ASKED.items() if not entry[name])
        here = "yes" if entry["runs_here"] else "no"
        table.add_row(entry["backend"], here, layouts, types, *sizes, GRAPHS[entry["graphs"]], lacks)
    return table


def _brief(words: str) -> str:
    """A rule of sizes or devices in few letters: `8n<=256` for a multiple of 8 up to 256."""
    brief = re.sub(r"a multiple of (\d+)", r"\1n", words)
    for long, few in ((" up to ", "<="), ("any size", ""), ("any device", ""), (" or above", "+"), (" or ", "/")):
        brief = brief.replace(long, few)
    major = re.fullmatch(r"(\d+)\.0 to below (\d+)\.0", brief)
    if major and int(major[1]) + 1 == int(major[2]):
        return f"{major[1]}.x"
    return brief.replace(" to below ", "-<") or "any"
