"""One step of decodes and prompt chunks together: the decode kernel and the prefill kernel, one call.

Decodes wait for memory, chunks for tensor cores, so both may run side by side on two streams. The part that should
start first goes to a stream of higher priority; both streams fork from and join the caller's, which holds under
capture too: the two kernels become branches of the graph.
"""

from __future__ import annotations

import torch

from engine.attention.checks import check_count
from engine.attention.kernels.inputs import check_paged, check_query_starts
from engine.attention.kernels.launch_decode import prepared_decode
from engine.attention.kernels.launch_prefill import prepared_prefill
from engine.attention.kernels.plan import DecodePlan
from engine.attention.kernels.streams import side_by_side
from engine.attention.kernels.tuning import MixedConfig, mixed_config
from engine.attention.kv_scales import KVScales


def mixed_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    *,
    num_decodes: int,
    scale: float,
    max_query_len: int,
    max_seq_len: int,
    out: torch.Tensor | None = None,
    workspace: torch.Tensor | None = None,
    plan: DecodePlan | None = None,
    window: int = 0,
    soft_cap: float = 0.0,
    scales: KVScales | None = None,
    config: MixedConfig | None = None,
) -> torch.Tensor:
    """`prefill_attention` of a batch whose first `num_decodes` sequences have one query token each.

    Rows of q and out are in the order of the sequences: decodes, then chunks. `plan`: of the decodes alone.
    AttentionInputError before a launch.
    """
    check_paged(q, k_cache, v_cache, block_table, seq_lens, max_seq_len=max_seq_len, out=out, scales=scales)
    check_query_starts(query_start_loc, seq_lens, max_query_len)
    _check_num_decodes(num_decodes, q, seq_lens)
    out = torch.empty_like(q, memory_format=torch.contiguous_format) if out is None else out
    config = config or mixed_config()
    n = num_decodes
    decodes = prepared_decode(
        q[:n], k_cache, v_cache, block_table[:n], seq_lens[:n], scale=scale, max_seq_len=max_seq_len,
        out=out[:n], workspace=workspace, plan=plan, window=window, soft_cap=soft_cap, scales=scales,
        config=config.decode,
    )  # fmt: skip
    chunks = prepared_prefill(
        q, k_cache, v_cache, block_table[n:], query_start_loc[n:], seq_lens[n:], scale=scale,
        max_query_len=max_query_len, max_seq_len=max_seq_len, out=out, window=window, soft_cap=soft_cap,
        scales=scales, config=config.prefill,
    )  # fmt: skip
    if config.overlap == "none" or not q.is_cuda or n in (0, len(seq_lens)):
        decodes()
        chunks()
    elif config.overlap == "prefill_first":
        side_by_side(q, chunks, decodes)
    else:
        side_by_side(q, decodes, chunks)
    return out


def _check_num_decodes(num_decodes: int, q: torch.Tensor, seq_lens: torch.Tensor) -> None:
    check_count("num_decodes", num_decodes, most=min(q.shape[0], seq_lens.shape[0]))
