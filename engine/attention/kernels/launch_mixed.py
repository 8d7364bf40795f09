"""One step of decodes and prompt chunks together: the decode kernel and the prefill kernel, one call.

Decodes wait for memory, chunks for tensor cores, so both may run side by side on two streams. The part that should
start first goes to a stream of higher priority; both streams fork from and join the caller's, which holds under
capture too: the two kernels become branches of the graph.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from engine.attention.checks import AttentionInputError
from engine.attention.kernels.device import on_device
from engine.attention.kernels.inputs import check_paged, check_query_starts, score_factors
from engine.attention.kernels.launch_decode import decode_attention
from engine.attention.kernels.launch_prefill import PrefillCall, launch_prefill, prefill_shape
from engine.attention.kernels.pages import Pages
from engine.attention.kernels.tuning import MixedConfig, mixed_config, prefill_config


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
    window: int = 0,
    soft_cap: float = 0.0,
    config: MixedConfig | None = None,
) -> torch.Tensor:
    """`prefill_attention` of a batch whose first `num_decodes` sequences have one query token each.

    Rows of q and out are in the order of the sequences: decodes, then chunks. AttentionInputError before a launch.
    """
    check_paged(q, k_cache, v_cache, block_table, seq_lens, max_seq_len=max_seq_len, out=out)
    check_query_starts(query_start_loc, seq_lens, max_query_len)
    if not 0 <= num_decodes <= min(q.shape[0], seq_lens.shape[0]):
        raise AttentionInputError(f"num_decodes: expected 0 to {min(q.shape[0], seq_lens.shape[0])}, got {num_decodes}")
    factor = score_factors(scale, window, soft_cap)
    out = torch.empty_like(q, memory_format=torch.contiguous_format) if out is None else out
    config = config or mixed_config()
    chunks = prefill_shape(
        q[num_decodes:], seq_lens[num_decodes:], k_cache.shape[2], max_query_len, max_seq_len, k_cache.shape[1]
    )
    tiles = config.prefill or prefill_config(chunks)
    call = PrefillCall.of(factor, window, soft_cap, Pages.of(k_cache.shape[1], tiles.block_n), tiles, chunks)

    def decode() -> None:
        decode_attention(
            q[:num_decodes], k_cache, v_cache, block_table[:num_decodes], seq_lens[:num_decodes],
            scale=scale, max_seq_len=max_seq_len, out=out[:num_decodes], workspace=workspace,
            window=window, soft_cap=soft_cap, config=config.decode,
        )  # fmt: skip

    def prefill() -> None:
        launch_prefill(
            q, k_cache, v_cache, block_table[num_decodes:], query_start_loc[num_decodes:], seq_lens[num_decodes:], out,
            call,
        )  # fmt: skip

    if config.overlap == "none" or not q.is_cuda or num_decodes == 0 or chunks.num_seqs == 0:
        decode()
        prefill()
    elif config.overlap == "prefill_first":
        _side_by_side(q, prefill, decode)
    else:
        _side_by_side(q, decode, prefill)
    return out


def _side_by_side(q: torch.Tensor, first: Callable[[], None], second: Callable[[], None]) -> None:
    """`first` on a stream of high priority, `second` on the current one, which then waits for both."""
    with on_device(q):
        here = torch.cuda.current_stream()
        ahead = torch.cuda.Stream(priority=-1)
        ahead.wait_stream(here)
        with torch.cuda.stream(ahead):
            first()
        second()
        here.wait_stream(ahead)
