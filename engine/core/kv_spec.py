"""The memory that one cached token takes, for one model, one storage type and one parallel layout.

Every layer stores a key and a value vector per KV head and token (vLLM paper, section 2.2). Multi-head latent
attention (DeepSeek-V2, section 2.1) stores one latent vector instead, for K and V together and for all heads.
"""

from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from engine.core.suggestion import unknown_name

DTYPE_BITS = MappingProxyType(
    {
        "fp32": 32,
        "fp16": 16,
        "bf16": 16,
        "fp8_e4m3": 8,
        "fp8_e5m2": 8,
        "int8": 8,
        "int6": 6,
        "int4": 4,
        "fp4_e2m1": 4,
    }
)
"""Bits of one stored element. Scales of the quantised types are not counted."""

_ALIASES = MappingProxyType(
    {
        "float32": "fp32",
        "float": "fp32",
        "float16": "fp16",
        "half": "fp16",
        "bfloat16": "bf16",
        "fp8": "fp8_e4m3",
        "float8_e4m3fn": "fp8_e4m3",
        "float8_e5m2": "fp8_e5m2",
        "uint8": "int8",
    }
)
SCALED_DTYPES = frozenset({"fp8_e4m3", "fp8_e5m2", "int8", "int6", "int4", "fp4_e2m1"})

Kind = Literal["attention", "mla"]


def canonical_dtype(name: str) -> str:
    """The short name of a storage type: `bfloat16` and `torch.bfloat16` are `bf16`. ValueError on a miss."""
    short = name.lower().removeprefix("torch.").replace("-", "_")
    short = _ALIASES.get(short, short)
    if short not in DTYPE_BITS:
        raise unknown_name("storage type", name, DTYPE_BITS)
    return short


@dataclass(frozen=True, slots=True)
class KVSpec:
    """The KV cache of a model, as seen by the fullest of its `tp * pp` ranks.

    Sizes in the fields describe the whole model; every method and property below speaks of one rank.
    ValueError for sizes below one and for layouts in which the ranks would not be alike.
    """

    num_layers: int
    """Layers that hold KV, over all pipeline stages."""
    num_kv_heads: int
    """KV heads of a layer, over all tensor-parallel ranks; 1 for `mla`."""
    head_size: int
    """Elements of a K vector; for `mla` of the whole latent, kv_lora_rank + qk_rope_head_dim."""
    head_size_v: int = 0
    """Elements of a V vector; 0 stands for head_size. Stays 0 for `mla`: V is read out of the latent."""
    kind: Kind = "attention"
    dtype: str = "bf16"
    tp: int = 1
    pp: int = 1
    model_notes: tuple[str, ...] = ()
    """What the layer counts leave out or round up because of the model, in words."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", canonical_dtype(self.dtype))
        if self.kind == "attention" and self.head_size_v == 0:
            object.__setattr__(self, "head_size_v", self.head_size)
        self._check_sizes()
        self._check_layout()

    def _check_sizes(self) -> None:
        for name in ("num_layers", "num_kv_heads", "head_size", "tp", "pp"):
            if getattr(self, name) < 1:
                raise ValueError(f"need {name} of at least 1, got {getattr(self, name)}")
        if self.kind not in ("attention", "mla"):
            raise ValueError(f"need kind 'attention' or 'mla', got {self.kind!r}")
        if self.kind == "mla" and (self.num_kv_heads, self.head_size_v) != (1, 0):
            raise ValueError(
                "mla stores one latent per token: need num_kv_heads=1 and head_size_v=0, "
                f"got {self.num_kv_heads} and {self.head_size_v}"
            )
        if self.elements_per_token * DTYPE_BITS[self.dtype] % 8:
            raise ValueError(f"{self.elements_per_token} elements of {self.dtype} do not fill whole bytes")

    def _check_layout(self) -> None:
        if self.pp > self.num_layers:
            raise ValueError(f"pp={self.pp} stages for {self.num_layers} layers: some would be empty")
        if self.kind == "attention" and max(self.tp, self.num_kv_heads) % min(self.tp, self.num_kv_heads):
            raise ValueError(
                f"{self.num_kv_heads} KV heads cannot be split evenly over tp={self.tp} ranks: "
                "one must divide the other"
            )

    @property
    def notes(self) -> tuple[str, ...]:
        """Everything this count leaves out or rounds up: the model's notes, then those of layout and type."""
        notes = [*self.model_notes]
        if self.num_replicas > 1:
            what = "the latent" if self.kind == "mla" else "each KV head"
            notes.append(f"tp={self.tp}: {what} is stored on {self.num_replicas} ranks")
        if self.num_layers % self.pp:
            notes.append(
                f"pp={self.pp} does not divide {self.num_layers} layers: counted for a stage of {self.layers_per_rank}"
            )
        if self.dtype in SCALED_DTYPES:
            notes.append(f"{self.dtype}: the elements alone, without their scales")
        return tuple(notes)

    @property
    def num_replicas(self) -> int:
        """Ranks of one stage that hold the same KV: tp for `mla`, tp / heads when tp exceeds the heads."""
        return self.tp if self.kind == "mla" else max(1, self.tp // self.num_kv_heads)

    @property
    def kv_heads_per_rank(self) -> int:
        """KV heads on one rank; at least one, replicated where there are more ranks than heads."""
        return 1 if self.kind == "mla" else max(1, self.num_kv_heads // self.tp)

    @property
    def layers_per_rank(self) -> int:
        """Layers with KV on the fullest pipeline stage: the quotient rounded up."""
        return max(self.layers_by_stage)

    @property
    def layers_by_stage(self) -> tuple[int, ...]:
        """Layers with KV on each pipeline stage; where they do not divide, the first stages have one more."""
        least, more = divmod(self.num_layers, self.pp)
        return tuple(least + (stage < more) for stage in range(self.pp))

    @property
    def elements_per_token(self) -> int:
        """Stored elements of one token in one layer."""
        return self.kv_heads_per_rank * (self.head_size + self.head_size_v)

    @property
    def bytes_per_token_per_layer(self) -> int:
        """Bytes of one token in one layer."""
        return self.elements_per_token * DTYPE_BITS[self.dtype] // 8

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one token in all layers of the rank."""
        return self.layers_per_rank * self.bytes_per_token_per_layer

    def block_bytes_per_layer(self, block_size: int) -> int:
        """Bytes of a block of `block_size` tokens in one layer."""
        if block_size < 1:
            raise ValueError(f"need block_size of at least 1, got {block_size}")
        return block_size * self.bytes_per_token_per_layer

    def block_bytes(self, block_size: int) -> int:
        """Bytes of a complete block: the same block id in every layer of the rank."""
        return self.layers_per_rank * self.block_bytes_per_layer(block_size)

    @property
    def tensors_per_layer(self) -> int:
        """K and V, or the latent alone."""
        return 1 if self.kind == "mla" else 2

    @property
    def num_tensors(self) -> int:
        """Tensors of the rank that hold KV, one a layer and kind."""
        return self.tensors_per_layer * self.layers_per_rank

    def page_tokens(self, page_bytes: int) -> int:
        """Whole tokens of one tensor in a page of so many bytes, as vAttention counts them; 0 if not one fits. Where K
        and V differ in size, those of the larger."""
        token_bits = self.kv_heads_per_rank * max(self.head_size, self.head_size_v) * DTYPE_BITS[self.dtype]
        return page_bytes * 8 // token_bits

    def page_group_bytes(self, page_bytes: int) -> int:
        """Bytes of the same page in every tensor of the rank: what is mapped and unmapped together."""
        return self.num_tensors * page_bytes

    @property
    def formula(self) -> str:
        """The product behind `bytes_per_token`, written out."""
        if self.kind == "mla":
            vectors = f"latent of {self.head_size}"
        elif self.head_size == self.head_size_v:
            vectors = f"2 x {self.kv_heads_per_rank} KV heads x {self.head_size}"
        else:
            vectors = f"{self.kv_heads_per_rank} KV heads x ({self.head_size} + {self.head_size_v})"
        width = f"{DTYPE_BITS[self.dtype]} bit"
        return f"{self.layers_per_rank} layers x {vectors} x {width} = {self.bytes_per_token:,} B"
