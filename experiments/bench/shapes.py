"""What a kernel is asked to do, in numbers: lengths, heads, block size, layout; the bytes and operations it needs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

Kernel = Literal["decode", "prefill", "mixed", "write", "copy", "mla"]
ATTENDS: Final[tuple[Kernel, ...]] = ("decode", "prefill", "mixed")
"""Over K and V; `mla`, a decode over latents, is apart: its kernels are others."""
MOVES: Final[tuple[Kernel, ...]] = ("write", "copy")
Order = Literal["shuffled", "identity"]
Layout = Literal["kv_first", "block_first", "interleaved", "latent"]

LAYOUTS: Final[tuple[Layout, ...]] = ("kv_first", "block_first", "interleaved")
"""Those of K and V."""
DTYPES: Final = ("bfloat16", "float16")
FP8: Final = "float8_e4m3fn"
"""Type of a cache with scales; queries, outputs and what is written are bfloat16."""
ELEMENT_BYTES: Final = 2


@dataclass(frozen=True, slots=True)
class Heads:
    """One attention layer."""

    name: str
    num_heads: int
    num_kv_heads: int
    head_size: int
    """Elements of a query: of MLA, absorbed, those of a latent."""
    rank: int = 0
    """MLA: elements of the latent that are V; 0: K and V are apart."""

    @property
    def value_size(self) -> int:
        """Elements of V, and of a head's output."""
        return self.rank or self.head_size

    @property
    def token_bytes(self) -> int:
        """K and V of one token in this layer."""
        return (1 if self.rank else 2) * self.num_kv_heads * self.head_size * ELEMENT_BYTES


GQA: Final = Heads("gqa", 32, 8, 128)
"""Llama-3-8B: 4 KiB of K and V a token."""
MHA: Final = Heads("mha", 40, 40, 128)
"""Llama-2-13B and OPT-13B: 20 KiB a token."""
MLA_16: Final = Heads("mla-16", 16, 1, 576, 512)
"""DeepSeek-V2-Lite, or DeepSeek-V3 on eight devices: 1,152 bytes a token."""
MLA_128: Final = Heads("mla-128", 128, 1, 576, 512)
"""DeepSeek-V3: as many bytes, eight times the work."""


@dataclass(frozen=True, slots=True)
class Shape:
    """One problem: `seq_lens` and `query_lens` of S sequences; the queries are a sequence's last tokens.

    write: the query tokens of each sequence are written into their slots. copy: each of S entries is a pair of blocks.
    """

    case: str
    kernel: Kernel
    label: str
    heads: Heads
    seq_lens: tuple[int, ...]
    query_lens: tuple[int, ...]
    block_size: int = 16
    layout: Layout = "kv_first"
    table: Order = "shuffled"
    dtype: str = "bfloat16"
    """Of K and V in the cache."""
    shared_tokens: int = 0
    """A decode's first tokens that are the same blocks in every sequence: whole blocks, less than any length."""

    def __post_init__(self) -> None:
        if len(self.seq_lens) != len(self.query_lens) or not self.seq_lens:
            raise ValueError(
                f"{self.case} {self.label}: {len(self.seq_lens)} sequence and {len(self.query_lens)} query lengths"
            )
        wrong = [(q, n) for q, n in zip(self.query_lens, self.seq_lens, strict=True) if not 1 <= q <= n]
        if wrong:
            raise ValueError(f"{self.case} {self.label}: need 1 <= query <= sequence length, got {wrong[0]}")
        if self.shared_tokens % self.block_size or not 0 <= self.shared_tokens < min(self.seq_lens):
            raise ValueError(
                f"{self.case} {self.label}: shared tokens fill blocks of {self.block_size} and are fewer than "
                f"{min(self.seq_lens)}, got {self.shared_tokens}"
            )

    @property
    def query_dtype(self) -> str:
        """Of queries, outputs, and K and V that are to be written."""
        return "bfloat16" if self.dtype == FP8 else self.dtype

    @property
    def element_bytes(self) -> int:
        """Of the cache."""
        return 1 if self.dtype == FP8 else ELEMENT_BYTES

    @property
    def token_bytes(self) -> int:
        """K and V of one token in the cache."""
        return self.heads.token_bytes * self.element_bytes // ELEMENT_BYTES

    @property
    def num_seqs(self) -> int:
        """S."""
        return len(self.seq_lens)

    @property
    def kv_tokens(self) -> int:
        """Tokens whose K and V are attended to, all sequences."""
        return sum(self.seq_lens)

    @property
    def query_tokens(self) -> int:
        """T."""
        return sum(self.query_lens)

    @property
    def blocks_of(self) -> tuple[int, ...]:
        """Blocks of each sequence."""
        return tuple(-(-length // self.block_size) for length in self.seq_lens)

    @property
    def num_blocks(self) -> int:
        """NB: blocks of all sequences, shared ones once; a copy needs a source and a destination."""
        again = (self.num_seqs - 1) * self.shared_tokens // self.block_size
        return (sum(self.blocks_of) - again) * (2 if self.kernel == "copy" else 1)

    @property
    def is_uniform(self) -> bool:
        """Whether all sequences and all queries have the same lengths."""
        return len(set(self.seq_lens)) == 1 and len(set(self.query_lens)) == 1

    @property
    def cache_bytes(self) -> int:
        """K and V of all blocks, one layer: what an input set takes of the pool."""
        return self.num_blocks * self.block_size * self.token_bytes

    @property
    def query_bytes(self) -> int:
        """Queries, or the K and V to be written."""
        if self.kernel == "copy":
            return 0
        if self.kernel == "write":
            return self.query_tokens * self.heads.token_bytes
        return self.query_tokens * self.heads.num_heads * self.heads.head_size * ELEMENT_BYTES

    @property
    def moved_bytes(self) -> int:
        """Fewest bytes through device memory: K and V that are attended to, once; in a write or copy both ways."""
        if self.kernel in MOVES:
            read = self.heads.token_bytes if self.kernel == "write" else self.token_bytes
            return self.query_tokens * (read + self.token_bytes)
        return (self.kv_tokens - (self.num_seqs - 1) * self.shared_tokens) * self.token_bytes

    @property
    def num_flops(self) -> int:
        """Two products of a query with the keys and values it may see (causal): 2 x H x (D + DV) for each such pair."""
        if self.kernel in MOVES:
            return 0
        pairs = sum(q * (n - q) + q * (q + 1) // 2 for q, n in zip(self.query_lens, self.seq_lens, strict=True))
        return 2 * self.heads.num_heads * (self.heads.head_size + self.heads.value_size) * pairs

    def with_(self, **changes: object) -> Shape:
        """The same with other fields."""
        return replace(self, **changes)  # type: ignore[arg-type]


def decode(case: str, heads: Heads, batch: int, context: int, block_size: int = 16) -> Shape:
    """A query a sequence, all of one length."""
    return Shape(
        case, "decode", f"{heads.name} {batch} x {tokens(context)}", heads, (context,) * batch, (1,) * batch, block_size
    )


def latent_decode(case: str, heads: Heads, batch: int, context: int, block_size: int) -> Shape:
    """As `decode`, over latents."""
    shape = decode(case, heads, batch, context, block_size)
    return shape.with_(kernel="mla", layout="latent")


def tokens(count: int) -> str:
    """`64k` for 65,536."""
    return f"{count // 1024}k" if count >= 1024 and count % 1024 == 0 else str(count)
