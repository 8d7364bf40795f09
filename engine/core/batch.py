"""What the scheduler decided for one step (`Batch`) and what came of it (`StepResult`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from engine.core.allocator import Grant, Refusal

if TYPE_CHECKING:
    from engine.core.decode_set import DecodeSet
    from engine.core.group import Group
    from engine.core.request import Request


class Chunk(NamedTuple):
    """Tokens of one request that does not simply decode: a prompt, a part of it, or a recomputation."""

    request: Request
    num_context_tokens: int
    """Tokens computed before this step, prefix hits included."""
    num_new_tokens: int
    completes: bool
    """Whether this chunk reaches the request's last token, so that one is sampled."""


class Admission(NamedTuple):
    """A request that joined the running ones in this step."""

    request: Request
    num_hit_tokens: int
    resumed: bool
    """It had run before and was preempted."""


class Preemption(NamedTuple):
    """A request that lost its memory in this step."""

    request: Request
    num_lost_tokens: int
    """Tokens that were computed; those scheduled in this very step are not among them."""
    swapped: bool = False
    """Whether they are kept in host memory, so that nothing has to be computed again."""


class Fork(NamedTuple):
    """A sequence that starts, or starts again, with the first tokens of another one."""

    parent: Request
    child: Request
    num_tokens: int


class SwapIn(NamedTuple):
    """A sequence that came back from host memory in this step."""

    request: Request
    num_tokens: int
    """Tokens that it had computed when it was swapped out."""


class Draft:
    """What one call of `schedule()` gathers before it is a batch."""

    __slots__ = ("admitted", "budget", "chunks", "decodes", "joined", "moves", "preempted", "swapped_in", "swaps")

    def __init__(self, budget: int) -> None:
        self.budget = budget
        """Tokens that may still be given in this step."""
        self.decodes: dict[Request, int] = {}
        """Decoding requests that were served one by one."""
        self.chunks: dict[Request, int] = {}
        self.moves: dict[Request, Grant] = {}
        self.admitted: list[Admission] = []
        self.preempted: list[Preemption] = []
        self.swaps: Sequence[Grant] = ()
        """Copies to and from host memory."""
        self.swapped_in: Sequence[SwapIn] = ()
        self.joined: Sequence[Request] = ()
        """Requests that decode again after a swap-in."""


class Batch:
    """One step, or several equal ones, decided: frozen until `scheduler.update(batch, result)`.

    Decoding requests are given as the live `DecodeSet` (one new token each and step, already counted in its clock),
    everything else as chunks; `items()` spells both out in running order for executors that touch every request.
    """

    __slots__ = (
        "admitted",
        "chunks",
        "clock",
        "copies",
        "decodes",
        "forks",
        "grants",
        "growth",
        "head_refusal",
        "joined",
        "num_context_tokens",
        "num_new_tokens",
        "num_seqs",
        "num_steps",
        "num_waiting",
        "preempted",
        "steady",
        "swapped_in",
        "to_device",
        "to_host",
    )

    def __init__(
        self,
        decodes: DecodeSet,
        chunks: Sequence[Chunk],
        admitted: Sequence[Admission] = (),
        preempted: Sequence[Preemption] = (),
        copies: Sequence[tuple[int, int]] = (),
        grants: Sequence[Grant] = (),
        head_refusal: Refusal | None = None,
        num_waiting: int = 0,
    ) -> None:
        self.decodes = decodes
        self.clock = decodes.clock
        """Decode clock with the first step counted: a member's tokens up to `base + clock` are computed after it."""
        self.chunks = chunks
        self.admitted = admitted
        self.preempted = preempted
        self.copies = copies
        """(source, destination) blocks to copy before anything is written."""
        self.grants = grants
        self.head_refusal = head_refusal
        """Why the head of the queue did not get memory; None if it was not refused any."""
        self.num_waiting = num_waiting
        num_new = num_decodes = len(decodes.members)
        num_context = decodes.sum_base + num_decodes * (decodes.clock - 1)
        for _, context, new, _ in chunks:
            num_new += new
            num_context += context
        self.num_seqs = num_decodes + len(chunks)
        self.num_new_tokens = num_new
        self.num_context_tokens = num_context
        """Tokens whose K and V this step reads from before it, summed over the sequences."""
        self.steady = not (chunks or admitted or preempted or grants) and num_decodes > 0
        """Whether nothing but decoding happened, so that the next step may be the same again."""
        self.num_steps = 1
        """Equal steps that this batch stands for; memory for all of them is taken."""
        self.growth: Sequence[int] = ()
        """Blocks newly taken in each of several steps, the first included; () for a single one."""
        self.forks: Sequence[Fork] = ()
        """Sequences forked since the last batch, in order."""
        self.joined: Sequence[Request] = ()
        """Members of `decodes` that the last batch had not, and that no chunk has brought there."""
        self.swapped_in: Sequence[SwapIn] = ()
        self.to_host: Sequence[tuple[int, int]] = ()
        """(device, host) blocks; an executor does these first, then `to_device`, then `copies`, then it computes."""
        self.to_device: Sequence[tuple[int, int]] = ()
        """(host, device) blocks."""

    def attended(self) -> tuple[int, int]:
        """(pairs, longest): the sum over this step's new tokens of the tokens that each attends to, itself included,
        and the most tokens that a sequence with several new ones attends to, 0 if none has; O(chunks)."""
        pairs, longest = self.num_context_tokens + self.num_new_tokens, 0
        for _, context, new, _ in self.chunks:
            if new > 1:
                pairs += (new - 1) * (context + context + new) // 2
                if context + new > longest:
                    longest = context + new
        return pairs, longest

    def items(self) -> Iterator[tuple[Request, int, int]]:
        """(request, context tokens, new tokens) in running order; O(batch log batch)."""
        rows = [(c.request.order, c.request, c.num_context_tokens, c.num_new_tokens) for c in self.chunks]
        rows += [(r.order, r, r.base + self.clock - 1, 1) for r in self.decodes.members]
        rows.sort(key=lambda row: row[0])
        return ((request, context, new) for _, request, context, new in rows)


class StepResult(NamedTuple):
    """What an executor measured or answered for `num_steps` equal steps of one batch."""

    num_steps: int
    duration: int
    """Time of all steps together, in the executor's clock (the simulator: picoseconds)."""
    stopped: Sequence[Request] = ()
    """Requests whose last token was sampled in the last of these steps."""
    first: int = 0
    """Duration of the first step."""
    slope: int = 0
    """Every further step takes this much more than the one before, unless `durations` says otherwise."""
    durations: Sequence[int] | None = None
    """One duration a step, where they are no arithmetic progression."""
    sampled: dict[Request, int] | None = None
    """The sampled tokens of sequences that are forked after this step, from executors that compute any."""
    beams: Sequence[tuple[Group, Sequence[int]]] = ()
    """Searches that took a step: for each place of the group the place whose beam goes on there. A beam that goes on at
    all does so in its own place, and perhaps in those of beams that died."""

    @property
    def running(self) -> bool:
        """An answer that is there runs nowhere."""
        return False

    def result(self) -> StepResult:
        """Itself: a synchronous executor's answer is there at once; others return a handle with this method."""
        return self
