"""A request of the naive reference."""

from __future__ import annotations

from typing import Any

from sim.rows import RequestRow


class NaiveRequest:
    """A request with its history; looks to a real allocator like one of its own."""

    def __init__(self, request: Any) -> None:
        self.request_id, self.arrival, self.priority = request.request_id, request.arrival, request.priority
        self.num_prompt_tokens, self.max_tokens = request.num_prompt_tokens, request.max_tokens
        self.oracle = request.oracle_output_tokens
        self.num_stop_tokens = min(self.oracle, self.max_tokens)
        self.content = request.content
        self.group = None
        self.computed, self.known = 0, self.num_prompt_tokens
        self.decodes = False
        """Whether it computes one token a step, the one that it sampled in the step before."""
        self.blocks, self.row, self.num_hashed = None, 0, 0
        self.first_scheduled = self.first_token = self.preempted_at = -1
        self.high = self.hits = self.total = self.again = self.preempted = self.num_preemptions = 0

    @property
    def num_computed_tokens(self) -> int:
        return self.computed

    @property
    def num_tokens(self) -> int:
        return self.known

    def compute(self, count: int) -> None:
        self.total += count
        self.again += sum(position < self.high for position in range(self.computed, self.computed + count))
        self.computed += count
        self.high = max(self.high, self.computed)

    def to_row(self, status: str, finish: int) -> RequestRow:
        return RequestRow(
            self.request_id, status, self.arrival, self.first_scheduled, self.first_token, finish,
            self.num_prompt_tokens, self.known - self.num_prompt_tokens, self.max_tokens, self.priority,
            self.num_preemptions, self.hits, self.total, self.again, self.preempted,
        )  # fmt: skip
