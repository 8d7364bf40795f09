"""Attention of rows over pages by block table, from the definition: what the stand-ins for libraries compute."""

from itertools import pairwise

import torch

from tests.engine.attention.kernels.pools import causal


def attended(q, k, v, starts, lens, table, scale, window_size, soft_cap):
    """[T, H, D] of q over k, v [NB, BS, KH, D]; tokens of no row are NaN."""
    assert table.dtype == lens.dtype == starts.dtype == torch.int32
    assert window_size[1] in (-1, 0)
    out = torch.full_like(q, torch.nan)
    for row, (first, stop) in enumerate(pairwise(starts.tolist())):
        length, block_size = int(lens[row]), k.shape[1]
        pages = table[row, : -(-length // block_size)].long()
        first_seen = max(0, length - (stop - first) - window_size[0]) if window_size[0] >= 0 else 0
        pages[: first_seen // block_size] = pages[-1:] if len(pages) else 0  # not looked at
        keys, values = (x[pages].flatten(0, 1)[:length].float() for x in (k, v))
        out[first:stop] = causal(
            q[first:stop].float(), keys, values, length - (stop - first), scale, window_size[0] + 1, soft_cap
        )
    return out
