"""One pool of K and V, one block table and slot mapping: every backend that can run here writes and reads there.

In each layout one pool is made, and all backends take their turn on it: each writes a step's K and V by slot, then
attends by block table. What comes out is compared with attention from its definition on the same memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from experiments.bench.shapes import GQA, LAYOUTS, Heads, Shape

if TYPE_CHECKING:
    from torch import Tensor

    from engine.attention import AttentionBackend
    from experiments.bench.inputs import InputSet, Problem
    from experiments.bench.shapes import Layout

BLOCK_SIZE: Final = 16
PLANTED: Final = 30.0
NOT_HERE: Final = "not here"
BOUNDS: Final = {"bfloat16": 5e-3, "float32": 1e-5}
"""Relative errors that rounding explains, in the Frobenius norm of all outputs."""
SMALL: Final = Heads("small", 4, 2, 64)


@dataclass(frozen=True, slots=True)
class Turn:
    """What one backend did on one pool; numbers only where it ran."""

    backend: str
    layout: Layout
    why_not: str = ""
    relative_error: float | None = None
    is_view: bool = False
    """Whether its K and V lie in the pool's storage."""
    writes_alike: bool = False
    """Whether the slots hold the step's K and V bit for bit, and nothing else has changed."""
    sees_planted: bool = False
    """Whether a value changed in the pool by other hands changes its output as the definition's."""


@dataclass(frozen=True, slots=True)
class Found:
    """The turns of all backends on all pools."""

    device: str
    dtype: str
    turns: tuple[Turn, ...]

    @property
    def bound(self) -> float:
        """Of relative errors."""
        return BOUNDS[self.dtype]

    @property
    def ran(self) -> list[Turn]:
        """Those that were not refused."""
        return [turn for turn in self.turns if not turn.why_not]


def everyone(seed: int = 0) -> Found:
    """Every backend of K and V on a pool in every layout: large on a CUDA device, small and in float32 on a CPU."""
    import torch

    from engine.attention import BACKENDS

    cuda = torch.cuda.is_available()
    dtype = "bfloat16" if cuda else "float32"
    backends = [backend for backend in BACKENDS.values() if not backend.capabilities().mla]
    turns: list[Turn] = []
    for layout in LAYOUTS:
        pool = Pool.made(layout, dtype, "cuda" if cuda else "cpu", seed)
        turns += [pool.turn(backend) for backend in backends]
    device = torch.cuda.get_device_name() if cuda else "CPU"
    return Found(device, dtype, tuple(turns))


def step_of(layout: Layout, dtype: str, device: str) -> Shape:
    """Decodes of several lengths and a prompt's chunk."""
    if device == "cpu":
        heads, rows = SMALL, [(1, 40), (1, 17), (6, 21)]
    else:
        heads, rows = GQA, [(1, 256 * (row + 1)) for row in range(31)] + [(512, 4096)]
    queries, lengths = zip(*rows, strict=True)
    return Shape("one-pool", "mixed", layout, heads, lengths, queries, BLOCK_SIZE, layout, dtype=dtype)


@dataclass(frozen=True, slots=True)
class Pool:
    """One memory in one layout, with what every backend is given there."""

    problem: Problem
    cache: Tensor
    """In its layout's shape."""
    k: Tensor
    """[T, KH, D] that the step writes, as `v`."""
    v: Tensor

    @classmethod
    def made(cls, layout: Layout, dtype: str, device: str, seed: int) -> Pool:
        """Random contents; the same seed, the same pool."""
        import torch

        from engine.attention import KVLayout
        from experiments.bench.inputs import Arena, problem_of

        shape = step_of(layout, dtype, device)
        problem = problem_of(shape, Arena(device, seed), seed)
        heads, one = shape.heads, problem.sets[0]
        size = KVLayout[layout.upper()].shape(shape.num_blocks, BLOCK_SIZE, heads.num_kv_heads, heads.head_size)
        generator = torch.Generator(device).manual_seed(seed + 1)
        tokens = (2, shape.query_tokens, heads.num_kv_heads, heads.head_size)
        new = torch.randn(tokens, generator=generator, device=device).to(one.q.dtype)
        return cls(problem, one.cache.view(size), *new.unbind(0))

    @property
    def one(self) -> InputSet:
        """Queries, and views of the pool that no backend made."""
        return self.problem.sets[0]

    def turn(self, backend: type[AttentionBackend]) -> Turn:
        """Write, attend, plant a value, attend again; the pool is afterwards as it was."""
        import torch

        from engine.attention import AttentionInputError, KVLayout, LayerConfig

        shape, heads = self.problem.shape, self.problem.shape.heads
        config = LayerConfig(heads.num_heads, heads.num_kv_heads, heads.head_size, self.problem.scale)
        name = backend.get_name(), shape.layout
        try:
            layout = backend.pick_layout(KVLayout[shape.layout.upper()])
            if why := backend.unavailable_because():
                return Turn(*name, why_not=f"{NOT_HERE}: {why}")
            backend.check_layer(config, shape.block_size, getattr(torch, shape.dtype))
        except AttentionInputError as error:
            return Turn(*name, why_not=str(error))
        builder = backend.get_builder_cls()(shape.block_size, self.problem.device)
        step = builder.build(shape.query_lens, shape.seq_lens, self.problem.block_table.tolist())
        return self._taken(backend.get_impl_cls()(config, layout), step, name)

    def _taken(self, layer: Any, step: Any, name: tuple[str, Layout]) -> Turn:
        from experiments.bench import truth

        alike = self._written(layer, step)
        wanted = truth.expected(self.problem, self.one, contiguous=False)
        out = layer.attend(self.one.q, self.cache, step).clone()
        error = truth.attention_error(self.problem, out, wanted)
        cell = self.one.v_cache[int(self.problem.block_table[0, 0]), 0]
        held = cell.clone()
        cell.fill_(PLANTED)
        planted = truth.expected(self.problem, self.one, contiguous=False)
        again = truth.attention_error(self.problem, layer.attend(self.one.q, self.cache, step), planted)
        missed = truth.attention_error(self.problem, out, planted)
        cell.copy_(held)
        bound = BOUNDS[self.problem.shape.dtype]
        return Turn(*name, "", error, self._is_view(layer), alike, again <= bound < missed)

    def _written(self, layer: Any, step: Any) -> bool:
        """Whether a write into slots that held something else leaves the step there, and the rest of the pool alone."""
        import torch

        one, slots = self.one, self.problem.slot_mapping
        at = slots // BLOCK_SIZE, slots % BLOCK_SIZE
        for cache, new in ((one.k_cache, self.k), (one.v_cache, self.v)):
            cache[at] = new
        expected = self.cache.clone()
        for cache in (one.k_cache, one.v_cache):
            cache[at] = PLANTED
        layer.write(self.k, self.v, self.cache, step)
        return torch.equal(self.cache, expected)

    def _is_view(self, layer: Any) -> bool:
        """K and V where the pool has them: the same addresses and strides as views that no backend made."""
        return all(
            (mine.data_ptr(), mine.stride(), mine.shape) == (pools.data_ptr(), pools.stride(), pools.shape)
            for mine, pools in zip(layer.split(self.cache), (self.one.k_cache, self.one.v_cache), strict=True)
        )
