"""pagelab's decode over a shared prefix as a contestant: the shared tokens once, own parts paged, both merged."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from experiments.bench.contestant import Entry, UnsupportedError, each, written
from experiments.bench.inputs import Problem
from experiments.bench.shapes import Kernel

SHARED: Final = "pagelab-shared"


@dataclass(frozen=True, slots=True)
class Shared:
    """What all sequences share once for all of them, their own parts paged, both merged."""

    name: str = SHARED
    config: Any = None
    """SharedConfig; None: the heuristic's."""
    kernels: tuple[Kernel, ...] = ("decode",)
    contiguous: bool = False

    @property
    def swept(self) -> bool:
        """Whether the configuration is one of a sweep."""
        return self.config is not None

    def enter(self, problem: Problem) -> Entry:
        """One group of all sequences; the plan is made before, as an engine makes it once a step for all layers."""
        from engine.attention.kernels.launch import plan_shared, shared_prefix_attention
        from engine.attention.kernels.launch_decode import shape_of
        from engine.attention.shared_prefix import Group, SharedPrefixes

        shape = problem.shape
        if not shape.shared_tokens:
            raise UnsupportedError("nothing is shared")
        group = Group(tuple(range(shape.num_seqs)), shape.shared_tokens // shape.block_size)
        prefixes = SharedPrefixes.of([group], shape.num_seqs, shape.block_size, problem.device)
        seen = shape_of(problem.sets[0].q, shape.heads.num_kv_heads, max(shape.seq_lens), shape.block_size)
        plan = plan_shared(problem.seq_lens, prefixes, seen, self.config)
        options: dict[str, Any] = {"scale": problem.scale, "max_seq_len": max(shape.seq_lens), "plan": plan}
        tables = (problem.block_table, problem.seq_lens, prefixes)
        calls = each(
            problem, lambda s: shared_prefix_attention(s.q, s.k_cache, s.v_cache, *tables, out=s.out, **options)
        )
        return Entry(calls, config=written(plan.cut.config))


def shared_grid() -> Iterator[Any]:
    """Tiles that fit a Hopper's registers and shared memory, cuts into one wave and two, and both ways side by side."""
    import torch

    from engine.attention.kernels.device import multiprocessors
    from engine.attention.kernels.tuning import DecodeConfig
    from engine.attention.kernels.tuning_shared import SharedConfig

    sms = multiprocessors(torch.device("cuda"))
    tiles = ((128, 64, 8, 3), (128, 64, 8, 2), (128, 128, 8, 2), (64, 64, 4, 3), (64, 64, 4, 2), (64, 128, 4, 2))
    owns = (None, DecodeConfig(64, 4, 3, 8 * sms, 1024), DecodeConfig(64, 4, 2, 16 * sms, 256))
    for tile in tiles:
        for waves in (1, 2):
            for overlap in ("none", "shared_first", "own_first"):
                for own in owns:
                    yield SharedConfig(*tile, waves * sms, 256, own, overlap)
