"""pagelab's own kernels as contestants: paged, and their contiguous twins, as the heuristics or a sweep configure them.

`pagelab` is the paged kernel, `pagelab-twin` the twin with a heuristic of its own (best against best), and
`pagelab-twin-equal` the twin with the paged kernel's tile, warps and stages: as many bytes in flight, so that only the
table differs.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from experiments.bench.contestant import Entry, contiguous_rows, each, written
from experiments.bench.inputs import InputSet, Problem
from experiments.bench.ours_mla import Latents, latent_grid
from experiments.bench.ours_shared import Shared, shared_grid
from experiments.bench.shapes import ATTENDS, FP8, MOVES, Kernel, Shape

PAGED, TWIN, TWIN_EQUAL = "pagelab", "pagelab-twin", "pagelab-twin-equal"


@dataclass(frozen=True, slots=True)
class Paged:
    """The kernels of `engine.attention.kernels` over the block table."""

    name: str = PAGED
    config: Any = None
    """Of the kernel's tuning type; None: the heuristic's."""
    kernels: tuple[Kernel, ...] = ATTENDS + MOVES
    contiguous: bool = False

    @property
    def swept(self) -> bool:
        """Whether the configuration is one of a sweep."""
        return self.config is not None

    def enter(self, problem: Problem) -> Entry:
        """Attention by kind; writes and copies as the engine issues them."""
        make: dict[str, Callable[[Problem], Entry]] = {
            "decode": self._decode,
            "prefill": self._prefill,
            "mixed": self._mixed,
            "write": _write,
            "copy": _copy,
        }
        return make[problem.shape.kernel](problem)

    def _decode(self, problem: Problem) -> Entry:
        attend, config = launcher("decode_attention"), self.config or heuristic(problem, paged=True)
        plan = planned(problem, config, paged=True)
        options = {"scale": problem.scale, "max_seq_len": max(problem.shape.seq_lens), "plan": plan}
        options["scales"] = problem.scales
        tables = (problem.block_table, problem.seq_lens)
        calls = each(problem, lambda s: attend(s.q, s.k_cache, s.v_cache, *tables, out=s.out, **options))
        return Entry(calls, config=written(config))

    def _prefill(self, problem: Problem) -> Entry:
        attend, config = launcher("prefill_attention"), self.config or heuristic(problem, paged=True)
        options = {**_bounds(problem), "config": config, "scales": problem.scales}
        tables = (problem.block_table, problem.query_start_loc, problem.seq_lens)
        calls = each(problem, lambda s: attend(s.q, s.k_cache, s.v_cache, *tables, out=s.out, **options))
        return Entry(calls, config=written(config))

    def _mixed(self, problem: Problem) -> Entry:
        from engine.attention.kernels.tuning import mixed_config

        attend, config = launcher("mixed_attention"), self.config or mixed_config()
        num_decodes = sum(query == 1 for query in problem.shape.query_lens)
        plan = planned(problem, config.decode, paged=True, num_seqs=num_decodes)
        options = {**_bounds(problem), "num_decodes": num_decodes, "config": config, "plan": plan}
        options["scales"] = problem.scales
        tables = (problem.block_table, problem.query_start_loc, problem.seq_lens)
        calls = each(problem, lambda s: attend(s.q, s.k_cache, s.v_cache, *tables, out=s.out, **options))
        return Entry(calls, config=written(config))


@dataclass(frozen=True, slots=True)
class Twin:
    """The same source without a table, over the same memory read as contiguous sequences."""

    name: str = TWIN
    config: Any = None
    kernels: tuple[Kernel, ...] = ("decode", "prefill")
    contiguous: bool = True

    @property
    def swept(self) -> bool:
        """Whether the configuration is one of a sweep."""
        return self.config is not None

    def enter(self, problem: Problem) -> Entry:
        """Decode and prefill."""
        kind = problem.shape.kernel
        config = self.config or (equal(problem) if self.name == TWIN_EQUAL else heuristic(problem, paged=False))
        options = {**_bounds(problem), "config": config}
        tables: tuple[Any, ...] = (problem.starts, problem.query_start_loc, problem.seq_lens)
        if kind == "decode":
            tables = (problem.starts, problem.seq_lens)
            options = {**options, "plan": planned(problem, config, paged=False)}
            del options["max_query_len"], options["config"]
        kernel = launcher(f"{kind}_contiguous")

        def call(one: InputSet) -> Any:
            k, v = contiguous_rows(problem, one.k_cache), contiguous_rows(problem, one.v_cache)
            return kernel(one.q, k, v, *tables, out=one.out, **options)

        return Entry(each(problem, call), config=written(config))


Ours = Paged | Twin | Shared | Latents


def contestants(shape: Shape, *, sweep: bool) -> list[Ours]:
    """Ours, and with `sweep` every configuration of the grid, under the same names."""
    if shape.kernel == "mla":
        return [Latents(PAGED), *(Latents(PAGED, config) for config in (latent_grid(shape) if sweep else ()))]
    found: list[Ours] = [Paged(), Twin(), Twin(TWIN_EQUAL), Shared()]
    if sweep and shape.shared_tokens:
        return found + [Shared(config=config) for config in shared_grid()]
    if sweep and shape.kernel in ATTENDS:
        kinds = (Paged,) if shape.kernel == "mixed" else (Paged, Twin)
        found += [kind(config=config) for config in grid(shape) for kind in kinds]
    return found


def launcher(name: str) -> Callable[..., Any]:
    """One of `engine.attention.kernels.launch`."""
    launch = importlib.import_module("engine.attention.kernels.launch")
    found: Callable[..., Any] = getattr(launch, name)
    return found


def heuristic(problem: Problem, *, paged: bool) -> Any:
    """What the fixed rule of `engine.attention.kernels.tuning` gives for the paged kernel, or for its twin."""
    shape, q = problem.shape, problem.sets[0].q
    kv_heads, longest, block_size = shape.heads.num_kv_heads, max(shape.seq_lens), shape.block_size
    from engine.attention.kernels import tuning

    if shape.kernel == "decode":
        from engine.attention.kernels.launch_decode import shape_of

        rule = tuning.decode_config if paged else tuning.decode_contiguous_config
        return rule(shape_of(q, kv_heads, longest, block_size if paged else 0, problem.sets[0].k_cache.dtype))
    from engine.attention.kernels.launch_prefill import chosen_config, prefill_shape

    one = problem.sets[0]
    k, v = one.k_cache, one.v_cache
    if not paged:
        k, v = contiguous_rows(problem, k)[None], contiguous_rows(problem, v)[None]
    most = max(shape.query_lens)
    seen = prefill_shape(q, problem.seq_lens, kv_heads, most, longest, block_size if paged else 0, stored=k.dtype)
    return chosen_config(q, k, v, seen)


def planned(problem: Problem, config: Any, *, paged: bool, num_seqs: int | None = None) -> Any:
    """The plan of the first `num_seqs` sequences.

    Made before the measurement, as an engine makes it once a step for all layers, and as the libraries' plans are.
    """
    from engine.attention.kernels.launch import plan_decode
    from engine.attention.kernels.launch_decode import shape_of
    from engine.attention.kernels.tuning import decode_config

    shape, lengths = problem.shape, problem.seq_lens[:num_seqs]
    block_size = shape.block_size if paged else 0
    one, kv_heads, longest = problem.sets[0], shape.heads.num_kv_heads, max(shape.seq_lens)
    seen = shape_of(one.q[: len(lengths)], kv_heads, longest, block_size, one.k_cache.dtype)
    return plan_decode(lengths, seen, config or decode_config(seen))


def equal(problem: Problem) -> Any:
    """The paged kernel's configuration for the twin, descriptors only where the paged one can use them."""
    config = heuristic(problem, paged=True)
    if not getattr(config, "use_tma", False):
        return config
    return dataclasses.replace(config, use_tma=problem.shape.block_size % config.block_n == 0)


def grid(shape: Shape) -> Iterator[Any]:
    """Every configuration that a sweep tries."""
    if shape.dtype == FP8 and shape.kernel == "decode":
        yield from _fp8_decode_grid()
        return
    grids = {"decode": _decode_grid, "prefill": _prefill_grid, "mixed": _mixed_grid}
    yield from grids[shape.kernel]()


def _prefill_grid() -> Iterator[Any]:
    from engine.attention.kernels.tuning import PrefillConfig

    for block_m in (64, 128):
        for block_n in (32, 64, 128):
            for num_warps in (4, 8):
                for num_stages in (1, 2, 3, 4):
                    for use_tma in (True, False):
                        yield PrefillConfig(block_m, block_n, num_warps, num_stages, use_tma)
    yield from _hopper_grid()


def _hopper_grid() -> Iterator[Any]:
    import torch

    if torch.cuda.get_device_capability()[0] != 9:
        return
    from engine.attention.kernels.launch_hopper import HopperConfig

    for block_n, stages in ((128, 2), (64, 4)):
        for dynamic in (True, False):
            for ping_pong in (True, False):
                yield HopperConfig(block_n, stages, dynamic, ping_pong)


def _decode_grid() -> Iterator[Any]:
    import torch

    from engine.attention.kernels.device import multiprocessors
    from engine.attention.kernels.tuning import DecodeConfig

    sms = multiprocessors(torch.device("cuda"))
    for block_n in (64, 128):
        for num_warps in (2, 4):
            for num_stages in (2, 3, 4):
                for waves in (2, 4, 8):
                    for least in (256, 1024, 4096):
                        yield DecodeConfig(block_n, num_warps, num_stages, waves * sms, least)


def _fp8_decode_grid() -> Iterator[Any]:
    import torch

    from engine.attention.kernels.device import multiprocessors
    from engine.attention.kernels.tuning import DecodeConfig

    sms = multiprocessors(torch.device("cuda"))
    for block_n, num_warps in ((64, 2), (64, 4), (128, 4), (128, 8)):
        for num_stages in (2, 3, 4, 5):
            for waves, least in ((2, 128), (8, 1024)):
                yield DecodeConfig(block_n, num_warps, num_stages, waves * sms, least, 7 * sms // 2)


def _mixed_grid() -> Iterator[Any]:
    from engine.attention.kernels.tuning import MixedConfig

    yield MixedConfig(overlap="none")
    yield MixedConfig(overlap="prefill_first")
    yield MixedConfig(overlap="decode_first")


def _bounds(problem: Problem) -> dict[str, Any]:
    shape = problem.shape
    return {
        "scale": problem.scale,
        "max_query_len": max(shape.query_lens),
        "max_seq_len": max(shape.seq_lens),
    }


def _write(problem: Problem) -> Entry:
    write_kv = launcher("write_kv")
    slots, options = problem.slot_mapping, {"scales": problem.scales}
    return Entry(each(problem, lambda s: write_kv(s.k, s.v, s.k_cache, s.v_cache, slots, **options)))


def _copy(problem: Problem) -> Entry:
    copy_blocks = launcher("copy_blocks")
    return Entry(each(problem, lambda s: copy_blocks([s.k_cache, s.v_cache], problem.pairs, disjoint=True)))
