"""Attention backends as contestants, through the interface that a model uses, all on the pool that our kernels read.

Which of them can share a pool is a matter of its layout: a backend gets views of the pool, and refuses a layout that it
cannot read; nothing is ever copied into another one.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from experiments.bench.contestant import Contestant, Entry, Missing, UnsupportedError, each
from experiments.bench.inputs import InputSet, Problem
from experiments.bench.rows import Row
from experiments.bench.shapes import ATTENDS, Kernel

if TYPE_CHECKING:
    from torch import Tensor

    from engine.attention import AttentionBackend

PREFIX: Final = "backend/"
"""Before a backend's name in the column `peer`: the libraries called directly are peers by their own names."""
ALL: Final = "all"
OWN_STREAM: Final = "own stream"
ISSUED: Final = "issued one by one"
"""Said of those whose time has the host's in it."""


@dataclass(frozen=True, slots=True)
class ThroughTheInterface:
    """A backend's layer, over the problem's pool in the problem's layout."""

    backend: type[AttentionBackend]
    kernels: tuple[Kernel, ...] = ATTENDS
    contiguous: bool = False

    @property
    def name(self) -> str:
        """As in the column `peer`."""
        return PREFIX + self.backend.get_name()

    def enter(self, problem: Problem) -> Entry:
        """One call a set; the first, outside of any graph, plans the step."""
        import torch

        from engine.attention import AttentionInputError, KVLayout, LayerConfig

        shape, heads, backend = problem.shape, problem.shape.heads, self.backend
        config = LayerConfig(heads.num_heads, heads.num_kv_heads, heads.head_size, problem.scale)
        try:
            layout = backend.pick_layout(KVLayout[shape.layout.upper()])
            backend.check_layer(config, shape.block_size, getattr(torch, shape.dtype))
        except AttentionInputError as error:
            raise UnsupportedError(str(error)) from error
        builder = backend.get_builder_cls()(shape.block_size, problem.device)
        step = builder.build(shape.query_lens, shape.seq_lens, problem.block_table.tolist())
        layer, sizes = backend.get_impl_cls()(config, layout), (heads.num_kv_heads, heads.head_size)
        pool = layout.shape(shape.num_blocks, shape.block_size, *sizes)

        def attend(one: InputSet) -> Tensor:
            return layer.attend(one.q, one.cache.view(pool), step, one.out)

        captured = backend.capabilities().graphs != OWN_STREAM
        how = layout.value if captured else f"{layout.value} {ISSUED}"
        return Entry(each(problem, attend), config=how, captured=captured)


def named(words: Sequence[str]) -> tuple[str, ...]:
    """Backends from `all`, names, and names with commas between them. ValueError for an unknown one."""
    from engine.attention import BACKENDS, get_backend

    names = [name for word in words for name in word.split(",")]
    if ALL in names:
        return tuple(BACKENDS)
    return tuple(dict.fromkeys(get_backend(name).get_name() for name in names))


def entered(names: Sequence[str], fa3_library: Path | None = None) -> tuple[list[Contestant], list[Missing]]:
    """Those that can be measured here, and why the others cannot. A library that is named is looked for as the backend
    looks for it, by the environment."""
    from engine.attention import get_backend
    from engine.attention.libraries.fa3 import VARIABLE

    if fa3_library is not None:
        os.environ[VARIABLE] = str(fa3_library)
    here: list[Contestant] = []
    missing: list[Missing] = []
    for name in names:
        backend = get_backend(name)
        why = backend.unavailable_because() or _never_timed(backend)
        if why:
            missing.append(Missing(PREFIX + name, why))
        else:
            here.append(ThroughTheInterface(backend))
    return here, missing


def _never_timed(backend: type[AttentionBackend]) -> str:
    able = backend.capabilities()
    if able.mla:
        return "keeps latents, and the cases are of layers with K and V"
    return "waits for the device, so that no CUDA graph can hold it" if able.graphs == "no" else ""


def sharing(rows: Sequence[Row]) -> list[str]:
    """A line a layout: who read one pool in it without copies, and who needs another."""
    from engine.attention import KVLayout

    lines = []
    mine = [row for row in rows if row["peer"].startswith(PREFIX)]
    for layout in dict.fromkeys(row["layout"] for row in mine):
        of = {row["peer"].removeprefix(PREFIX): set[str]() for row in mine if row["layout"] == layout}
        for row in mine:
            if row["layout"] == layout:
                of[row["peer"].removeprefix(PREFIX)].add(row["status"])
        read = [name for name, found in of.items() if "ok" in found]
        rest = [name for name in of if name not in read]
        line = f"one pool {KVLayout[layout.upper()].value}, no copies: {', '.join(read) or 'nobody'}"
        lines.append(line + (f"; not: {', '.join(rest)}" if rest else ""))
    return lines
