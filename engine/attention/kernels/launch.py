"""All launchers by name: what a backend, an engine or a benchmark imports. Importing this imports Triton."""

from engine.attention.kernels.copy_blocks import copy_blocks
from engine.attention.kernels.kv_write import write_kv
from engine.attention.kernels.launch_decode import decode_attention, decode_contiguous
from engine.attention.kernels.launch_mixed import mixed_attention
from engine.attention.kernels.launch_mla import MLAPlan, mla_decode, mla_prefill, plan_mla
from engine.attention.kernels.launch_prefill import prefill_attention, prefill_contiguous
from engine.attention.kernels.launch_shared import SharedPlan, plan_shared, shared_prefix_attention
from engine.attention.kernels.mla_write import mla_write
from engine.attention.kernels.plan import DecodePlan, plan_decode

__all__ = [
    "DecodePlan",
    "MLAPlan",
    "SharedPlan",
    "copy_blocks",
    "decode_attention",
    "decode_contiguous",
    "mixed_attention",
    "mla_decode",
    "mla_prefill",
    "mla_write",
    "plan_decode",
    "plan_mla",
    "plan_shared",
    "prefill_attention",
    "prefill_contiguous",
    "shared_prefix_attention",
    "write_kv",
]
