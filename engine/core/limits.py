"""What bounds and steers a scheduler, and what it counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from engine.core.option_checks import check_choice, check_switch, check_whole

Policy = Literal["fcfs", "priority"]
Batching = Literal["iteration", "request"]
Preemption = Literal["recompute", "swap", "auto"]
Victim = Literal["last", "least-computed", "priority"]


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Limits and policies; the defaults are vLLM 0.33's."""

    max_model_len: int
    max_num_seqs: int = 128
    max_num_batched_tokens: int = 2048
    chunked_prefill: bool = True
    full_sequence_gate: bool = True
    """Admit only if the whole sequence as it stands fits, even when only its first chunk is scheduled."""
    policy: Policy = "fcfs"
    long_prefill_token_threshold: int = 0
    """Most tokens of one request in one step while other requests exist; 0: no such limit."""
    batching: Batching = "iteration"
    """Who may join a running batch: anybody, step by step, or nobody until all of it is done (`request_level`)."""

    preemption: Preemption = "recompute"
    """What becomes of a victim's tokens: computed again (vLLM 0.33), kept in host memory, or (`auto`, SOSP'23) that for
    groups of several sequences only. Where host memory is full, and before a group is forked, they are recomputed."""
    victim: Victim | None = None
    """Who gives way: the last of the running list, who loses least, or the least urgent; None: by `policy`."""

    def __post_init__(self) -> None:
        for name in ("max_model_len", "max_num_seqs", "max_num_batched_tokens"):
            check_whole(name, getattr(self, name), 1)
        check_whole("long_prefill_token_threshold", self.long_prefill_token_threshold, 0)
        for name in ("chunked_prefill", "full_sequence_gate"):
            check_switch(name, getattr(self, name))
        check_choice("policy", self.policy, get_args(Policy))
        check_choice("batching", self.batching, get_args(Batching))
        check_choice("preemption", self.preemption, get_args(Preemption))
        if self.victim is not None:
            check_choice("victim", self.victim, get_args(Victim))
        if not self.chunked_prefill and self.max_num_batched_tokens < self.max_model_len:
            raise ValueError(
                f"without chunked prefill max_num_batched_tokens={self.max_num_batched_tokens} must be at least "
                f"max_model_len={self.max_model_len}: a longer prompt could never be scheduled"
            )

    @property
    def victim_rule(self) -> Victim:
        """`victim`, or what goes with `policy`."""
        return self.victim or ("last" if self.policy == "fcfs" else "priority")


@dataclass(slots=True)
class PrefixCounters:
    """Tokens looked up and found in the prefix cache, counted once, at admission; resumed requests apart."""

    queries: int = 0
    hits: int = 0
    preempted_queries: int = 0
    preempted_hits: int = 0
