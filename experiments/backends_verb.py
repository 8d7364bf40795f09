"""`pagelab backends`: what each attention backend can do, and whether it can run here."""

from __future__ import annotations

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
ASKED: Final = ("sliding_window", "soft_cap", "mixed_batches", "shared_prefixes")


def backends_verb(*, as_json: bool) -> int:
    """Exit code 0; DeviceMissing where torch is not installed."""
    need_torch("pagelab backends")
    from engine.attention import BACKENDS, KVLayout, capability_table

    entries = [_entry(backend, row) for backend, row in zip(BACKENDS.values(), capability_table(), strict=True)]
    if as_json:
        say_json({"schema_version": SCHEMA_VERSION, "backends": entries})
        return 0
    show(_table(entries), "Attention backends")
    say("layouts, the default first: " + ", ".join(f"{_short(layout)} {layout.value}" for layout in KVLayout))
    say("graphs: whether a CUDA graph can hold a call, and which lengths it then serves")
    for entry in entries:
        if not entry["runs_here"]:
            say(f"{entry['backend']} cannot run here: {entry['unavailable_because']}")
    return 0


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
        cells = {**entry, "dtypes": " ".join(entry["dtypes"])}
        table.add_row(entry["backend"], here, layouts, *(cells[name] for name in COLUMNS), without)
    return table
