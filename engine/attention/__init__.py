"""Attention over a paged KV cache: one interface, a plain torch specification, and Triton kernels.

A step's K and V are written by slot_mapping, then read by block_table; nothing here knows a scheduler. The
specification is `reference`; `triton` is compared with it, never with itself. `import engine.attention` needs torch,
not Triton.

Letters of shapes, here and in every docstring of this package: T tokens of the batch, S sequences, H query heads, KH KV
heads, D head size (elements), DV elements of a V vector (D but for MLA), NB blocks of the cache, BS block size (tokens
a block).
"""

from engine.attention.backend import AttentionBackend, AttentionImpl, Capabilities, LayerConfig, SizeRule
from engine.attention.block_size import ResolvedBlockSize, resolve_block_size
from engine.attention.builders import MetadataBuilder
from engine.attention.checks import AttentionInputError
from engine.attention.layer import AttentionLayer, allocate_kv_caches
from engine.attention.layouts import KVLayout
from engine.attention.merge import SoftmaxState, merge_outputs
from engine.attention.metadata import (
    AttentionMetadata,
    MLAMetadata,
    PallasMetadata,
    decodes_first,
)
from engine.attention.registry import BACKENDS, capability_table, get_backend
from engine.attention.shared_prefix import SharedPrefixes

__all__ = [
    "BACKENDS",
    "AttentionBackend",
    "AttentionImpl",
    "AttentionInputError",
    "AttentionLayer",
    "AttentionMetadata",
    "Capabilities",
    "KVLayout",
    "LayerConfig",
    "MLAMetadata",
    "MetadataBuilder",
    "PallasMetadata",
    "ResolvedBlockSize",
    "SharedPrefixes",
    "SizeRule",
    "SoftmaxState",
    "allocate_kv_caches",
    "capability_table",
    "decodes_first",
    "get_backend",
    "merge_outputs",
    "resolve_block_size",
]
