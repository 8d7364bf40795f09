"""The sizes that an engine's buffers are made for."""

from __future__ import annotations

from typing import NamedTuple


class Limits(NamedTuple):
    """What buffers are made for."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
