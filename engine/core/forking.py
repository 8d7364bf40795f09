"""Groups under way: when members are forked and go on together, and which beams live on (SOSP'23 section 4.4)."""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

from engine.core.allocator import Grant, Hit, KVAllocator, Refusal
from engine.core.batch import Fork
from engine.core.content import TokenContent
from engine.core.request import Request, Status

if TYPE_CHECKING:
    from engine.core.batch import Batch, Chunk, Draft, StepResult
    from engine.core.content import Content
    from engine.core.decode_set import DecodeSet
    from engine.core.group import Group

_order = attrgetter("order")


class Groups:
    """What happened to groups since the last batch: the next one tells the executor."""

    def __init__(self, allocator: KVAllocator, decodes: DecodeSet, catching_up: list[Request]) -> None:
        self._allocator = allocator
        self._decodes = decodes
        self._catching_up = catching_up
        self.forks: list[Fork] = []
        self.joined: list[Request] = []
        """Members that decode from the next step on."""
        self.copies: list[Grant] = []
        """Of forks in contiguous memory."""
        self.pending = False
        """Whether the next batch has something to tell."""

    def computed(self, chunk: Chunk, result: StepResult) -> None:
        """A member has computed a chunk: of the prompt, or of what it lost."""
        request, group = chunk.request, chunk.request.group
        assert group is not None
        if chunk.completes and not group.forked:
            group.forked = True
            if all(member in result.stopped for member in group.members):
                return
            others = [member for member in group.members if member is not request]
            self._fork(request, others, request.computed)
            for member in others:
                _branch(request, member, request.computed, result)
            for member in others:
                member.computed, member.known = request.computed, request.known
                self._decode(member)
        elif group.gathering and request.computed == request.known - 1:
            self._catching_up.remove(request)
            self._gathered(request, group)

    def _fork(self, parent: Request, children: Sequence[Request], num_tokens: int) -> None:
        """The children have the parent's first tokens."""
        if not children:
            return
        grant = self._allocator.fork(parent, children, num_tokens)  # type: ignore[attr-defined]
        assert not isinstance(grant, Refusal), f"{parent} was admitted with its group, and its fork refused: {grant}"
        if grant.copies:
            self.copies.append(grant)
        self.pending = True
        self.forks += [Fork(parent, child, num_tokens) for child in children]

    def _decode(self, request: Request) -> None:
        request.status = Status.RUNNING
        self._decodes.add(request)
        self.joined.append(request)
        self.pending = True

    def _gathered(self, request: Request, group: Group) -> None:
        """One more member is where it was. After the first one, the others start from the full blocks of the prompt,
        which they shared before, too."""
        size = self._allocator.block_size
        joining = [member for member in group.live() if member.status is Status.JOINING]
        if joining:
            shared = request.num_prompt_tokens // size * size
            self._fork(request, joining, shared)
            for member in joining:
                member.status = Status.RUNNING
                member.computed = shared
                insort(self._catching_up, member, key=_order)
        members = group.live()
        if all(member.computed == member.known - 1 for member in members):
            group.gathering = False
            for member in members:
                if member in self._catching_up:
                    self._catching_up.remove(member)
                self._decode(member)

    def select(self, group: Group, parents: Sequence[int], result: StepResult) -> None:
        """A search took a step: beams that died give their places to copies of others. ValueError for a beam that goes
        on elsewhere but not in its own place."""
        members = group.members
        if len(parents) != len(members) or any(parents[parent] != parent for parent in parents):
            raise ValueError(f"parents {list(parents)} of {members[0]}: a beam that lives on keeps its place")
        children: dict[int, list[Request]] = {}
        for place, parent in enumerate(parents):
            if parent != place:
                children.setdefault(parent, []).append(members[place])
        for place, dead in children.items():
            survivor = members[place]
            num_tokens = survivor.num_computed_tokens
            self._fork(survivor, dead, num_tokens)
            for child in dead:
                _branch(survivor, child, num_tokens, result)

    def answered(self, best: Request, answer: Content) -> None:
        """A search is over: what its best beam holds is the answer, and can be found as such."""
        if best.decoding is not None:
            self._decodes.remove(best)
        rename = getattr(self._allocator, "rename", None)
        if rename is not None and best.blocks is not None:
            rename(best, answer)
        best.content = answer

    def tell(self, batch: Batch, step: Draft) -> None:
        """Puts into the batch what happened before it and beside it."""
        batch.forks = self.forks
        batch.joined = [request for request in (*self.joined, *step.joined) if request.decoding is not None]
        batch.swapped_in = step.swapped_in
        batch.to_host = [pair for grant in step.swaps for pair in grant.to_host]
        batch.to_device = [pair for grant in step.swaps for pair in grant.to_device]
        batch.steady = False
        self.forks, self.joined, self.copies, self.pending = [], [], [], False


def _branch(parent: Request, child: Request, num_tokens: int, result: StepResult) -> None:
    """The child's content: the parent's first tokens and, where tokens are known, the one that it sampled itself."""
    child.content = parent.content.fork(num_tokens)
    if result.sampled is not None and isinstance(child.content, TokenContent):
        child.content.tokens.append(result.sampled[child])


def shorter(hit: Hit, num_tokens: int, block_size: int) -> Hit:
    """A hit that leaves at least one of `num_tokens` tokens to compute."""
    if hit.num_tokens < num_tokens:
        return hit
    kept = (num_tokens - 1) // block_size
    return Hit(kept * block_size, hit.block_ids[:kept])
