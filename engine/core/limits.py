"""What bounds and steers a scheduler, and what it counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Limits and policies; the defaults are vLLM 0.33's."""

    max_model_len: int
    max_num_seqs: int = 128
    max_num_batched_tokens: int = 2048
    chunked_prefill: bool = True
    full_sequence_gate: bool = True
    """Admit only if the whole sequence as it stands fits, even when only its first chunk is scheduled."""
    policy: Literal["fcfs", "priority"] = "fcfs"
    long_prefill_token_threshold: int = 0
    """Most tokens of one request in one step while other requests exist; 0: no such limit."""
    batching: Literal["iteration", "request"] = "iteration"
    """Who may join a running batch: anybody, step by step, or nobody until all of it is done (`request_level`)."""

    preemption: Literal["recompute", "swap", "auto"] = "recompute"
    """What becomes of a victim's tokens: computed again (vLLM 0.33), kept in host memory, or (`auto`, SOSP'23) that for
    groups of several sequences only. Where host memory is full, and before a group is forked, they are recomputed."""
    victim: Literal["last", "least-computed", "priority"] | None = None
    """Who gives way: the last of the running list, who loses least, or the least urgent; None: by `policy`."""

    def __post_init__(self) -> None:
        for name in ("max_model_len", "max_num_seqs", "max_num_batched_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
        if self.long_prefill_token_threshold < 0:
            raise ValueError(f"long_prefill_token_threshold must be >= 0, got {self.long_prefill_token_threshold}")
        if self.policy not in ("fcfs", "priority"):
            raise ValueError(f"unknown policy {self.policy!r}: use fcfs or priority")
        if self.batching not in ("iteration", "request"):
            raise ValueError(f"unknown batching {self.batching!r}: use iteration or request")
        if self.preemption not in ("recompute", "swap", "auto"):
            raise ValueError(f"unknown preemption {self.preemption!r}: use recompute, swap or auto")
        if self.victim not in (None, "last", "least-computed", "priority"):
            raise ValueError(f"unknown victim {self.victim!r}: use last, least-computed or priority")
        if not self.chunked_prefill and self.max_num_batched_tokens < self.max_model_len:
            raise ValueError(
                f"without chunked prefill max_num_batched_tokens={self.max_num_batched_tokens} must be at least "
                f"max_model_len={self.max_model_len}: a longer prompt could never be scheduled"
            )

    @property
    def victim_rule(self) -> Literal["last", "least-computed", "priority"]:
        """`victim`, or what goes with `policy`."""
        return self.victim or ("last" if self.policy == "fcfs" else "priority")


@dataclass(slots=True)
class PrefixCounters:
    """Tokens looked up and found in the prefix cache, counted once, at admission; resumed requests apart."""

    queries: int = 0
    hits: int = 0
    preempted_queries: int = 0
    preempted_hits: int = 0
