"""The tensors of a problem: rotated sets of random K, V and queries out of one arena, block tables, lengths.

Shape letters: T query tokens, S sequences, H query heads, KH KV heads, D head size, NB blocks, BS block size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from experiments.bench.shapes import ATTENDS, FP8, Shape
from experiments.bench.timing import num_sets

if TYPE_CHECKING:
    from torch import Tensor

    from engine.attention.kv_scales import KVScales

HEADROOM_BYTES: Final = 6 * 2**30
"""Left for outputs, workspaces and references."""
FILL_ELEMENTS: Final = 2**30


class Arena:
    """One allocation of standard normal numbers, from which every problem takes its sets: filling it costs once."""

    def __init__(self, device: Any, seed: int) -> None:
        self.device, self.seed = device, seed
        self._pools: dict[str, Tensor] = {}

    def take(self, dtype: str, num_elements: int) -> Tensor:
        """The first `num_elements`, flat; what an earlier problem took is the same memory."""
        pool = self._pools.get(dtype)
        if pool is None or pool.numel() < num_elements:
            self._pools.clear()  # other types too: two large pools need not fit
            self._pools[dtype] = pool = self._filled(dtype, num_elements)
        return pool[:num_elements]

    def free_bytes(self) -> int:
        """What a pool may take: free memory, the pools that would be given up, less the headroom."""
        import torch

        held = sum(pool.numel() * pool.element_size() for pool in self._pools.values())
        if torch.device(self.device).type != "cuda":
            return 2**28
        free, _ = torch.cuda.mem_get_info(self.device)
        cached = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        return max(0, free + cached + held - HEADROOM_BYTES)

    def _filled(self, dtype: str, num_elements: int) -> Tensor:
        import torch

        generator = torch.Generator(device=self.device).manual_seed(self.seed)
        pool = torch.empty(num_elements, dtype=getattr(torch, dtype), device=self.device)
        for start in range(0, num_elements, FILL_ELEMENTS):
            part = pool[start : start + FILL_ELEMENTS]
            if dtype == FP8:
                part.copy_(torch.empty(part.shape, device=self.device).normal_(generator=generator))
            else:
                part.normal_(generator=generator)
        return pool


@dataclass(frozen=True, slots=True)
class InputSet:
    """What one call reads and writes."""

    q: Tensor
    """[T, H, D]; of a write, unused."""
    cache: Tensor
    """One layer in its layout, contiguous."""
    k_cache: Tensor
    """[NB, BS, KH, D], a view of `cache`."""
    v_cache: Tensor
    out: Tensor
    """[T, H, D], of MLA [T, H, rank]."""
    k: Tensor
    """[T, KH, D]: to be written; empty unless the kernel is a write."""
    v: Tensor


@dataclass(frozen=True, slots=True)
class Problem:
    """A shape with its tensors. The tables are the same for all sets."""

    shape: Shape
    sets: list[InputSet]
    block_table: Tensor
    """int32 [S, most blocks of a sequence]; entries past a sequence's blocks are 0."""
    seq_lens: Tensor
    """int32 [S]."""
    query_start_loc: Tensor
    """int32 [S + 1]."""
    slot_mapping: Tensor
    """int64 [T]: slots of the query tokens."""
    starts: Tensor
    """int64 [S]: first row of each sequence where the same memory is read as contiguous sequences; with shared tokens
    there are no such sequences."""
    pairs: Tensor
    """int64 [S, 2]: source and destination blocks of a copy."""
    scale: float
    scales: KVScales | None = None
    """Of an FP8 cache, every head its own."""

    @property
    def device(self) -> Any:
        """Where all of it lies."""
        return self.seq_lens.device


def views_of(cache: Tensor, shape: Shape) -> tuple[Tensor, Tensor]:
    """K and V, each [NB, BS, KH, D], as views of one flat storage in the shape's layout; of latents they overlap."""
    from engine.attention.layouts import KVLayout

    layout, heads = KVLayout[shape.layout.upper()], shape.heads
    sizes = layout.shape(shape.num_blocks, shape.block_size, heads.num_kv_heads, heads.head_size)
    return layout.split(cache.view(sizes), heads.rank)


def problem_of(shape: Shape, arena: Arena, seed: int = 0) -> Problem:
    """The tensors of a shape; the same seed gives the same tables. ValueError if not one set fits into free memory."""
    import torch

    device, count = arena.device, _count_sets(shape, arena)
    if count < 1:
        raise ValueError(
            f"{shape.case} {shape.label}: one input set takes {_set_bytes(shape):,} B, "
            f"{arena.free_bytes():,} B are free on {device}"
        )
    flat = arena.take(shape.dtype, count * shape.cache_bytes // shape.element_bytes).view(count, -1)
    generator = torch.Generator(device=device).manual_seed(seed)
    sets = [_input_set(shape, flat[index], generator) for index in range(count)]
    table, starts = _tables(shape, seed)
    lengths = torch.tensor(shape.seq_lens, dtype=torch.int32)
    queries = torch.tensor([0, *shape.query_lens], dtype=torch.int32).cumsum(0).to(torch.int32)
    num_pairs = shape.num_blocks // 2
    order = torch.randperm(shape.num_blocks, generator=torch.Generator().manual_seed(seed))
    return Problem(
        shape,
        sets,
        table.to(device),
        lengths.to(device),
        queries.to(device),
        _slots(shape, table).to(device),
        starts.to(device),
        order[: 2 * num_pairs].view(2, num_pairs).T.contiguous().to(device),
        shape.heads.head_size**-0.5,
        _scales(shape, device),
    )


def pool_elements(shape: Shape, arena: Arena) -> int:
    """Elements of the arena that a shape's sets take."""
    return _count_sets(shape, arena) * shape.cache_bytes // shape.element_bytes


def _scales(shape: Shape, device: Any) -> KVScales | None:
    """About 1, as the numbers in the pool are what was divided by them."""
    if shape.dtype != FP8:
        return None
    from engine.attention.kv_scales import KVScales

    heads = shape.heads.num_kv_heads
    steps = [head / heads for head in range(heads)]
    return KVScales.of([0.5 + step for step in steps], [2.0 - step for step in steps], heads, device)


def _count_sets(shape: Shape, arena: Arena) -> int:
    """0 where not even one fits."""
    return min(num_sets(shape.moved_bytes + shape.query_bytes), arena.free_bytes() // _set_bytes(shape))


def _set_bytes(shape: Shape) -> int:
    return shape.cache_bytes + 2 * shape.query_bytes


def _input_set(shape: Shape, cache: Tensor, generator: Any) -> InputSet:
    import torch

    heads = shape.heads

    def random(num_tokens: int, num_heads: int) -> Tensor:
        size = (num_tokens, num_heads, heads.head_size)
        dtype = getattr(torch, shape.query_dtype)
        return torch.empty(size, dtype=dtype, device=cache.device).normal_(generator=generator)

    attends, writes = shape.kernel in (*ATTENDS, "mla"), shape.kernel == "write"
    q = random(shape.query_tokens if attends else 0, heads.num_heads)
    k, v = (random(shape.query_tokens if writes else 0, heads.num_kv_heads) for _ in range(2))
    return InputSet(q, cache, *views_of(cache, shape), q.new_empty(*q.shape[:2], heads.value_size), k, v)


def _tables(shape: Shape, seed: int) -> tuple[Tensor, Tensor]:
    """Block table and contiguous starts, on the CPU."""
    import torch

    num_blocks, shared = torch.tensor(shape.blocks_of), shape.shared_tokens // shape.block_size
    own = num_blocks - shared
    firsts = own.cumsum(0) - own
    ids = torch.arange(shared + int(own.sum()))
    if shape.table == "shuffled":
        ids = ids[torch.randperm(len(ids), generator=torch.Generator().manual_seed(seed))]
    columns = torch.arange(int(num_blocks.max()))
    places = torch.where(columns < shared, columns, (firsts[:, None] + columns).clamp(max=len(ids) - 1))
    table = torch.where(columns < num_blocks[:, None], ids[places], 0)
    return table.to(torch.int32), firsts * shape.block_size


def _slots(shape: Shape, table: Tensor) -> Tensor:
    """Slots of each sequence's last query tokens."""
    import torch

    parts = []
    for row, (length, query) in enumerate(zip(shape.seq_lens, shape.query_lens, strict=True)):
        positions = torch.arange(length - query, length)
        blocks = table[row, positions // shape.block_size].long()
        parts.append(blocks * shape.block_size + positions % shape.block_size)
    return torch.cat(parts)
