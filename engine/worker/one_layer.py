"""The smallest model that needs a KV cache, on the CPU: one layer of causal attention with seeded random weights.

It puts tensors behind the executor protocol without a GPU: K and V are written by slot mapping, read back by block
table, and every sampled token must equal that of a recomputation that never saw a block. Attention over one token too
many, too few or of somebody else gives other logits.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from engine.core.batch import StepResult
from engine.core.content import TokenContent
from engine.worker.budget import check_fits

if TYPE_CHECKING:
    from engine.core.allocator import KVAllocator
    from engine.core.batch import Batch
    from engine.core.decode_set import DecodeSet
    from engine.core.request import Request

TOLERANCE = 1e-4
"""Largest difference of logits, absolute and relative: float32 sums in another order."""
TIE = 1e-3
"""Another token is right only where the recomputation's two best logits are this close."""
PS_PER_NS = 1_000


class WrongOutput(AssertionError):  # noqa: N818
    """A request's logits are not those of its own tokens; the message says whose and where."""


class OneLayer:
    """Embedding with positions, one attention layer with grouped KV heads, and the head that names the next token."""

    def __init__(self, num_heads: int, num_kv_heads: int, head_size: int, vocab_size: int, seed: int) -> None:
        """Weights of unit-variance outputs, drawn from `seed`."""
        if num_heads % num_kv_heads:
            raise ValueError(f"num_heads={num_heads} must be a multiple of num_kv_heads={num_kv_heads}")
        generator = torch.Generator().manual_seed(seed)
        self.hidden = hidden = num_heads * head_size
        self.num_heads, self.num_kv_heads, self.head_size = num_heads, num_kv_heads, head_size
        self.embedding = torch.randn(vocab_size, hidden, generator=generator)

        def projection(outputs: int) -> torch.Tensor:
            return torch.randn(hidden, outputs, generator=generator) / math.sqrt(hidden)

        self.query, self.key, self.value = (
            projection(heads * head_size) for heads in (num_heads, num_kv_heads, num_kv_heads)
        )
        self.output = projection(vocab_size) * 4  # sharp logits: few near ties
        self._frequencies = 1.0 / 10_000.0 ** (torch.arange(0, hidden, 2) / hidden)

    def project(
        self, tokens: Sequence[int], positions: Sequence[int]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Q [T, H, D], K and V [T, KH, D] of tokens at their positions."""
        angles = torch.tensor(positions, dtype=torch.float32)[:, None] * self._frequencies
        waves = torch.cat((angles.sin(), angles.cos()), dim=1)[:, : self.hidden]
        x = self.embedding[torch.tensor(tokens, dtype=torch.int64)] + waves
        shape = (len(tokens), -1, self.head_size)
        return (x @ self.query).view(shape), (x @ self.key).view(shape), (x @ self.value).view(shape)

    def logits(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """[T, vocabulary] for the last T of the tokens whose K and V are given."""
        group = self.num_heads // self.num_kv_heads
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        scores = torch.einsum("qhd,khd->hqk", q, k) / math.sqrt(self.head_size)
        num_new, num_all = scores.shape[1:]
        seen = torch.ones(num_new, num_all, dtype=torch.bool).tril(num_all - num_new)
        weights = scores.masked_fill(~seen, -math.inf).softmax(-1)
        mixed = torch.einsum("hqk,khd->qhd", weights, v)
        return mixed.reshape(num_new, -1) @ self.output


class _Written:
    """One request's outputs so far."""

    __slots__ = ("logits", "sampled")

    def __init__(self) -> None:
        self.sampled: list[int] = []
        self.logits: list[torch.Tensor] = []


class OneLayerExecutor:
    """Runs each batch through `OneLayer`, greedily, up to each request's forced length (`num_stop_tokens`)."""

    def __init__(
        self,
        allocator: KVAllocator,
        *,
        num_heads: int = 4,
        num_kv_heads: int = 2,
        head_size: int = 8,
        vocab_size: int = 64,
        seed: int = 0,
        duration_ps: Callable[[Batch], int] | None = None,
    ) -> None:
        """`duration_ps` answers for the clock, so that a simulation stays deterministic; None: wall time. EngineError
        for a pool that does not fit."""
        self._allocator = allocator
        self._block_size = size = allocator.block_size
        self._vocab_size = vocab_size
        self._duration_ps = duration_ps
        self.model = OneLayer(num_heads, num_kv_heads, head_size, vocab_size, seed)
        block_bytes = 2 * size * num_kv_heads * head_size * torch.get_default_dtype().itemsize
        check_fits(torch.device("cpu"), allocator.num_blocks, block_bytes, None)
        # Poisoned: what is read before it is written shows in every logit.
        self.kv = torch.full((2, allocator.num_blocks, size, num_kv_heads, head_size), math.nan)
        """[K or V, block, slot in the block, KV head, head size]."""
        self._written: dict[Request, _Written] = {}
        self.outputs: dict[object, list[int]] = {}
        """Greedy tokens of the requests that finished, by request id."""

    # the protocol -------------------------------------------------------------------------------------------------

    def horizon(self, decodes: DecodeSet, until: int | None, end: int | None) -> int:
        """A step at a time: every token is computed."""
        return 1

    def submit(self, batch: Batch) -> StepResult:
        """One step; WrongOutput if a request that stops in it has not computed what it should have."""
        start_ns = time.perf_counter_ns()
        with torch.inference_mode():
            sampled = self._run(batch)
            stopped = [r for r in sampled if len(self._written[r].sampled) == r.num_stop_tokens]
            for request in stopped:
                self.verify(request)
                self.outputs[request.request_id] = self._written.pop(request).sampled
        if self._duration_ps is None:
            duration = max((time.perf_counter_ns() - start_ns) * PS_PER_NS, 1)
        else:
            duration = self._duration_ps(batch)
        return StepResult(1, duration, stopped, duration, sampled=sampled)

    # one step -----------------------------------------------------------------------------------------------------

    def _run(self, batch: Batch) -> dict[Request, int]:
        if batch.copies:
            source, target = torch.tensor(batch.copies, dtype=torch.int64).T
            self.kv[:, target] = self.kv[:, source]  # advanced indexing reads all sources first
        items = list(batch.items())
        tokens: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        for request, context, new in items:
            scheduled = range(context, context + new)
            tokens += [self._token(request, position) for position in scheduled]
            positions += scheduled
            slots += self.slot_mapping(self._allocator.block_table(request), scheduled)
        if not items:
            return {}
        q, k, v = self.model.project(tokens, positions)
        self.write(torch.tensor(slots, dtype=torch.int64), k, v)
        return self._sample(batch, items, q)

    def slot_mapping(self, table: Sequence[int], positions: range) -> list[int]:
        """Slots of a request's tokens in the flattened KV tensor."""
        size = self._block_size
        return [table[position // size] * size + position % size for position in positions]

    def write(self, slots: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        """K and V of the step's tokens, before anything is read."""
        flat = self.kv.flatten(1, 2)
        flat[0, slots] = k
        flat[1, slots] = v

    def read(self, table: Sequence[int], num_tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V [tokens, KH, D] of the first `num_tokens` tokens, gathered block by block."""
        blocks = torch.tensor(list(table[: -(-num_tokens // self._block_size)]), dtype=torch.int64)
        k, v = self.kv[:, blocks].flatten(1, 2)[:, :num_tokens]
        return k, v

    def _sample(self, batch: Batch, items: list[tuple[Request, int, int]], q: torch.Tensor) -> dict[Request, int]:
        unfinished = {chunk.request for chunk in batch.chunks if not chunk.completes}
        sampled: dict[Request, int] = {}
        start = 0
        for request, context, new in items:
            rows = q[start : start + new]
            start += new
            if request in unfinished:
                continue
            k, v = self.read(self._allocator.block_table(request), context + new)
            logits = self.model.logits(rows[-1:], k, v)[0]
            sampled[request] = self._keep(request, context + new, logits)
        return sampled

    def _keep(self, request: Request, num_tokens: int, logits: torch.Tensor) -> int:
        written, content = self._of(request), request.content
        token = int(logits.argmax())
        written.sampled.append(token)
        written.logits.append(logits)
        if isinstance(content, TokenContent) and len(content.tokens) == num_tokens:
            content.tokens.append(token)
        return token

    # tokens -------------------------------------------------------------------------------------------------------

    def _of(self, request: Request) -> _Written:
        return self._written.setdefault(request, _Written())

    def _token(self, request: Request, position: int) -> int:
        """The input token at a position: equal for requests with equal content up to there. Outputs are the sampled
        ones, unless the content names them or another prompt holds them."""
        content, num_prompt = request.content, request.num_prompt_tokens
        if isinstance(content, TokenContent):
            return content.tokens[position] % self._vocab_size
        if position >= num_prompt and not content.shares_outputs:
            return self._of(request).sampled[position - num_prompt]
        key = content.keys(position, position + 1, 1)[0]
        if isinstance(key, int) and key >= 0:
            key = (request.request_id, position)  # private: its number differs from run to run
        digest = hashlib.sha256(repr(key).encode()).digest()
        return int.from_bytes(digest[:8], "little") % self._vocab_size

    # the check ----------------------------------------------------------------------------------------------------

    def verify(self, request: Request) -> None:
        """Everything sampled so far against a contiguous recomputation from the first token on."""
        written, num_prompt = self._of(request), request.num_prompt_tokens
        count = len(written.sampled)
        if not count:
            return
        positions = range(num_prompt + count - 1)
        q, k, v = self.model.project([self._token(request, position) for position in positions], positions)
        expected = self.model.logits(q[num_prompt - 1 :], k, v)
        for index, (token, logits) in enumerate(zip(written.sampled, written.logits, strict=True)):
            wanted = expected[index]
            best = wanted.topk(2)
            close = torch.allclose(logits, wanted, rtol=TOLERANCE, atol=TOLERANCE)
            same = token == int(best.indices[0]) or float(best.values[0] - best.values[1]) < TIE
            if not (close and same):
                raise WrongOutput(
                    f"{request}: output {index} is token {token}, a recomputation gives {int(best.indices[0])}; "
                    f"logits differ by {float((logits - wanted).abs().max()):.3g} (allowed {TOLERANCE}), "
                    f"block table {list(request.blocks or ())}"
                )
