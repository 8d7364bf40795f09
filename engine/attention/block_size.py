"""Which block size a run gets, and why: nobody has to guess afterwards.

The defaults are vLLM's (the chapter's section 4.3.4): 16 where nobody asks, 64 for FlashMLA, and for Pallas at least
what lets all block tables fit a TPU's scalar memory. A size that was asked for is taken or refused, never replaced.
"""

from __future__ import annotations

from typing import NamedTuple

from engine.attention.backend import AttentionBackend
from engine.attention.checks import AttentionInputError, check_count


class ResolvedBlockSize(NamedTuple):
    """Tokens a block, and the reason in words, for the manifest."""

    value: int
    reason: str


def resolve_block_size(
    backend: type[AttentionBackend], requested: int | None, max_model_len: int, max_num_seqs: int
) -> ResolvedBlockSize:
    """The block size of a run: as requested, else the backend's default, raised to its minimum.

    AttentionInputError for a request that the backend does not take or that lies below its minimum.
    """
    for what, number in (("max_model_len", max_model_len), ("max_num_seqs", max_num_seqs)):
        check_count(what, number, 1)
    name, default = backend.get_name(), backend.capabilities().default_block_size
    least = backend.get_min_block_size(max_model_len, max_num_seqs)
    asks = f"max_model_len={max_model_len} and max_num_seqs={max_num_seqs}"
    if requested is not None:
        backend.check_block_size(requested)
        if requested < least:
            raise AttentionInputError(f"{name}: expected block_size of at least {least} for {asks}, got {requested}")
        return ResolvedBlockSize(requested, "as requested")
    if default < least:
        return ResolvedBlockSize(least, f"smallest that {name} takes for {asks}; its default is {default}")
    backend.check_block_size(default)
    return ResolvedBlockSize(default, f"default of {name}")
