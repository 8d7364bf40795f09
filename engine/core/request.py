"""One request from arrival to its last token: the only mutable record that scheduler, allocator and executor share.

Who may change what: the scheduler owns `status`, `row`, `order`, `computed`, `known` and the membership in a
`DecodeSet`; the allocator owns `blocks` and `num_hashed`; nobody else writes.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any

from engine.core.content import Content, PrivateContent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from engine.core.decode_set import DecodeSet
    from engine.core.group import Group


class Status(IntEnum):
    """Where a request stands."""

    WAITING = 0
    RUNNING = 1
    PREEMPTED = 2
    FINISHED = 3
    SWAPPED = 4
    """Preempted with its blocks kept in host memory."""
    JOINING = 5
    """Seated with its group, and waiting for the prompt that it will be forked from."""


class Request:
    """A prompt, the limit of its output, and how far both have come.

    Token counts follow vLLM: `num_tokens` are the tokens that exist (prompt plus sampled), `num_computed_tokens`
    those whose keys and values are written or scheduled to be. While a request decodes, both are derived from the
    decode clock of its `DecodeSet`, so that a step costs nothing per request.
    """

    __slots__ = (
        "arrival",
        "base",
        "blocks",
        "computed",
        "content",
        "decoding",
        "group",
        "known",
        "max_tokens",
        "num_hashed",
        "num_preemptions",
        "num_prompt_tokens",
        "num_stop_tokens",
        "oracle_output_tokens",
        "order",
        "priority",
        "request_id",
        "row",
        "sample",
        "skips_cache_read",
        "status",
    )

    def __init__(
        self,
        request_id: Any,
        num_prompt_tokens: int,
        max_tokens: int,
        *,
        oracle_output_tokens: int | None = None,
        arrival: int = 0,
        priority: int = 0,
        content: Content | None = None,
        skips_cache_read: bool = False,
    ) -> None:
        """`oracle_output_tokens` is the true output length: only the oracle reservations, executors and the recorder
        may read it. `arrival` is in any unit that orders (the simulator uses picoseconds). Smaller `priority` is more
        urgent. `content` defaults to content that no other request shares."""
        if num_prompt_tokens < 1 or max_tokens < 1:
            raise ValueError(
                f"request {request_id!r} needs at least one prompt token and one output token, "
                f"got num_prompt_tokens={num_prompt_tokens}, max_tokens={max_tokens}"
            )
        self.request_id = request_id
        self.num_prompt_tokens = num_prompt_tokens
        self.max_tokens = max_tokens
        self.oracle_output_tokens = max_tokens if oracle_output_tokens is None else oracle_output_tokens
        self.num_stop_tokens = min(self.oracle_output_tokens, max_tokens)
        """Output tokens after which the request stops: its true length, cut at `max_tokens`. For executors."""
        self.arrival = arrival
        self.priority = priority
        self.content = PrivateContent() if content is None else content
        self.skips_cache_read = skips_cache_read
        self.status = Status.WAITING
        self.num_preemptions = 0
        self.row = -1
        self.order = -1
        self.computed = 0
        self.known = num_prompt_tokens
        self.base = 0
        self.decoding: DecodeSet | None = None
        self.blocks: Sequence[int] | None = None
        self.num_hashed = 0
        self.group: Group | None = None
        self.sample = 0
        """Place in the group."""

    @property
    def num_computed_tokens(self) -> int:
        """Tokens whose K and V are written, or will be by the step that is scheduled now."""
        decoding = self.decoding
        return self.computed if decoding is None else self.base + decoding.clock

    @property
    def num_tokens(self) -> int:
        """Tokens that exist: the prompt and what has been sampled."""
        decoding = self.decoding
        return self.known if decoding is None else self.base + decoding.sampled + 1

    @property
    def num_output_tokens(self) -> int:
        """Tokens sampled so far."""
        return self.num_tokens - self.num_prompt_tokens

    def __repr__(self) -> str:
        sample = f"/{self.sample}" if self.group else ""
        return (
            f"Request({self.request_id!r}{sample}, prompt={self.num_prompt_tokens}, tokens={self.num_tokens}, "
            f"computed={self.num_computed_tokens}, {self.status.name})"
        )
