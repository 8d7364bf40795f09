"""pagelab's decode over latents as a contestant, as the heuristic or a sweep configures it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from experiments.bench.contestant import Entry, each, written
from experiments.bench.inputs import Problem
from experiments.bench.shapes import Kernel, Shape

Tile = tuple[int, int, int, bool, tuple[int, ...]]
"""Latents, warps, stages, by descriptor or by pointers, and programs a multiprocessor that the keys are cut into."""
NARROW: Final[tuple[Tile, ...]] = (
    (16, 4, 3, False, (3, 6)),
    (16, 4, 4, False, (2, 3)),
    (16, 4, 5, False, (2, 3)),
    (32, 4, 2, False, (2, 4)),
    (32, 4, 3, False, (2, 4)),
    (32, 8, 2, False, (2, 4)),
    (32, 8, 3, False, (2, 4)),
    (32, 8, 5, False, (1, 2)),
    (64, 8, 2, False, (1, 2)),
    (16, 4, 4, True, (2,)),
    (32, 4, 3, True, (2, 4)),
    (32, 8, 4, True, (1, 2)),
    (64, 8, 2, True, (1, 2)),
)
"""For 16 query heads."""
WIDE: Final[tuple[Tile, ...]] = (
    (64, 8, 2, False, (1, 2)),
    (32, 8, 2, False, (1,)),
    (32, 8, 3, False, (1,)),
    (32, 8, 4, False, (1,)),
    (32, 8, 3, True, (1,)),
)
"""For 64 query heads a program."""


@dataclass(frozen=True, slots=True)
class Latents:
    """Absorbed queries over the block table; the plan is made before, as an engine makes it once a step."""

    name: str
    config: Any = None
    """MLADecodeConfig; None: the heuristic's."""
    kernels: tuple[Kernel, ...] = ("mla",)
    contiguous: bool = False

    @property
    def swept(self) -> bool:
        """Whether the configuration is one of a sweep."""
        return self.config is not None

    def enter(self, problem: Problem) -> Entry:
        """One call a set."""
        from engine.attention.kernels.launch import mla_decode, plan_mla
        from engine.attention.kernels.launch_mla import chosen_decode, mla_shape_of

        shape, one = problem.shape, problem.sets[0]
        rank, longest = shape.heads.rank, max(shape.seq_lens)
        cache = latents_of(problem, one.k_cache)
        config = self.config or chosen_decode(one.q, cache, rank, longest)
        plan = plan_mla(problem.seq_lens, mla_shape_of(one.q, rank, longest, shape.block_size), config)
        options: dict[str, Any] = {"rank": rank, "scale": problem.scale, "max_seq_len": longest, "plan": plan}
        tables = (problem.block_table, problem.seq_lens)
        calls = each(problem, lambda s: mla_decode(s.q, latents_of(problem, s.k_cache), *tables, out=s.out, **options))
        return Entry(calls, config=told(config))


def latents_of(problem: Problem, k_cache: Any) -> Any:
    """[NB, BS, latent] of K [NB, BS, 1, latent]."""
    return k_cache[:, :, 0]


def told(config: Any) -> str:
    """What the column `config` holds."""
    return f"{config.kernel} block_m={config.block_m} {written(config.cut)} use_tma={config.use_tma}"


def latent_grid(shape: Shape) -> Iterator[Any]:
    """Every configuration that a sweep tries: Hopper's kernel over pieces and waves, and the portable one's tiles that
    keep their registers on sm_90."""
    import torch

    from engine.attention.kernels.device import multiprocessors

    yield from latent_configs(shape.heads.num_heads, multiprocessors(torch.device("cuda")))


def latent_configs(num_heads: int, sms: int) -> Iterator[Any]:
    """Of a device with that many multiprocessors."""
    from engine.attention.kernels.tuning import DecodeConfig
    from engine.attention.kernels.tuning_mla import HOPPER_HEADS, HOPPER_KEYS, MLADecodeConfig

    for programs in (sms, 2 * sms):
        yield MLADecodeConfig(HOPPER_HEADS, DecodeConfig(HOPPER_KEYS, 4, 2, programs, 128), kernel="pair")
    block_m, tiles = (16, NARROW) if num_heads <= 16 else (64, WIDE)
    for block_n, num_warps, num_stages, use_tma, waves in tiles:
        for wave in waves:
            cut = DecodeConfig(block_n, num_warps, num_stages, wave * sms, 128)
            yield MLADecodeConfig(block_m, cut, use_tma)
