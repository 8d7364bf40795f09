"""Whose rules a run follows: named sets of scheduler and pool settings.

`vllm` is vLLM 0.33 (the default). `sosp23` is the system of the PagedAttention paper as its artifact runs it: whole
prompts share an iteration of at most 2,560 tokens with decodes, a 1 % watermark, freed blocks to the back, one free
block for every sequence that appends, no prefix cache, and a slot for the last token in the accounting.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Preset:
    """Defaults that a configuration may override one by one."""

    max_num_seqs: int
    max_num_batched_tokens: int
    chunked_prefill: bool
    full_sequence_gate: bool
    enable_caching: bool
    watermark: float
    freed_to: Literal["front", "back"]
    one_free_each: bool
    final_token_has_slot: bool


PRESETS: dict[str, Preset] = {
    "vllm": Preset(
        max_num_seqs=128,
        max_num_batched_tokens=2048,
        chunked_prefill=True,
        full_sequence_gate=True,
        enable_caching=True,
        watermark=0.0,
        freed_to="front",
        one_free_each=False,
        final_token_has_slot=False,
    ),
    "sosp23": Preset(
        max_num_seqs=2048,
        max_num_batched_tokens=2560,
        chunked_prefill=False,
        full_sequence_gate=True,
        enable_caching=False,
        watermark=0.01,
        freed_to="back",
        one_free_each=True,
        final_token_has_slot=True,
    ),
}
