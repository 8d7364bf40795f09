"""Offline generation: prompts in, completions out, on the allocator, scheduler and executor of the experiments.

The loop is the step without a clock (`engine.core.step`). Whatever allocator holds K and V, and however its memory is
cut, preempted or shared, greedy completions are the same: tests hold it to that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.attention.block_size import resolve_block_size
from engine.core.allocator import MAX_BLOCKS
from engine.core.content import TokenContent
from engine.core.limits import SchedulerConfig
from engine.core.progress import Progress
from engine.core.registry import PoolConfig, make_allocator
from engine.core.request import Request
from engine.core.scheduler import Scheduler
from engine.core.step import step
from engine.sampling_params import SamplingParams
from engine.stopping import Stopping
from engine.worker.budget import DEFAULT_UTILIZATION, EngineError, KVBudget
from engine.worker.engine import Engine, EngineConfig
from engine.worker.kv_memory import Kernel
from engine.worker.limits import Limits
from engine.worker.ran import RowSampling

if TYPE_CHECKING:
    from engine.core.allocator import KVAllocator
    from engine.worker.executor import ModelExecutor

Prompt = str | Sequence[int]
SEED_MASK = (1 << 63) - 1
CPU_KV_BYTES = 4 << 30
"""What K and V take on a CPU at most, where nobody says (vLLM's default there)."""


@dataclass(frozen=True, slots=True)
class Completion:
    """One continuation of a prompt."""

    index: int
    token_ids: list[int]
    text: str
    """Empty where the model has no tokenizer."""
    finish_reason: str
    """`stop`: an end-of-sequence or stop token, or a stop text; `length`: max_tokens or the model's length."""


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """A prompt and its completions."""

    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[Completion] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Asked:
    """One completion that is to be made."""

    prompt_index: int
    index: int
    request: Request
    params: SamplingParams
    seed: int


class LLM:
    """A model, an allocator of KV blocks, and a scheduler over both."""

    def __init__(
        self,
        model: str | Engine,
        *,
        allocator: str = "paged",
        kernel: Kernel = "paged",
        block_size: int | None = None,
        num_blocks: int | None = None,
        kv_tokens: int | None = None,
        gpu_memory_utilization: float = DEFAULT_UTILIZATION,
        enable_prefix_caching: bool = True,
        enable_chunked_prefill: bool = True,
        max_model_len: int | None = None,
        max_num_seqs: int = 256,
        max_num_batched_tokens: int = 8192,
        seed: int = 0,
        **engine: Any,
    ) -> None:
        """`model` as in `EngineConfig`, further options too (device, dtype, attention, layout, weights_seed, ...); or
        an `Engine` that is there, with its options and buffers: limits may then be lower than its own, not higher.

        `num_blocks` (blocks that requests can hold) or `kv_tokens` pins the capacity; without, it is what the device
        has left. Errors before the first request: EngineError, ValueError, DeviceUnavailable.
        """
        if max_model_len is not None and max_model_len < 1:
            raise EngineError(f"max_model_len: expected at least 1, got {max_model_len}")
        asked = Limits(max_num_seqs, max_num_batched_tokens, max_model_len or 0)
        self.engine = _engine_of(model, asked, engine)
        self.seed = seed
        self._rules = _rules_of(self.engine, asked, chunked_prefill=enable_chunked_prefill)
        longest, backend = self._rules.max_model_len, self.engine.backend
        size, self.block_size_reason = resolve_block_size(backend, block_size, longest, max_num_seqs)
        blocks, self.budget = _capacity(self.engine, size, num_blocks, kv_tokens, gpu_memory_utilization)
        """`budget`: None where the capacity is pinned."""
        self.pool = PoolConfig(blocks, size, longest, enable_caching=enable_prefix_caching)
        self.allocator_name, self._kernel = allocator, kernel
        self._stopping = Stopping(self.engine.architecture.eos_token_ids, self.engine.model.tokenizer)
        self._asked: dict[object, _Asked] = {}
        """By request id, while they run."""
        self._num_requests = 0
        self.num_preemptions = 0
        """Of all calls so far."""
        self._start()

    def _start(self) -> None:
        """An empty pool, an empty queue."""
        self.allocator: KVAllocator = make_allocator(self.allocator_name, self.pool)
        self.scheduler = Scheduler(self._rules, self.allocator)
        self.executor: ModelExecutor = self.engine.executor(
            self.allocator, kernel=self._kernel, sampling=self._sampling_of, stops=self._stops
        )
        self._interrupted = False

    # generation ---------------------------------------------------------------------------------------------------

    def generate(
        self, prompts: Prompt | Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None = None
    ) -> list[RequestOutput]:
        """Completions of each prompt, in order. Prompts are texts or token ids; one `params` for all, or one each.

        ValueError, before anything runs, for a prompt that is empty, longer than the model, or that the pool can never
        hold, and for texts where the model has no tokenizer.
        """
        given = _as_list(prompts)
        each = list(params) if isinstance(params, Sequence) else [params or SamplingParams()] * len(given)
        if len(each) != len(given):
            raise ValueError(f"expected SamplingParams for each of {len(given)} prompts, got {len(each)}")
        for wanted in each:
            self._stopping.check(wanted)
        answers = [self._read(prompt, place) for place, prompt in enumerate(given)]
        if self._interrupted or self.executor.closed:  # by an error, or because its engine serves another LLM now
            self._start()
        asked = [
            self._ask(place, copy, answer.prompt_token_ids, wanted)
            for place, (answer, wanted) in enumerate(zip(answers, each, strict=True))
            for copy in range(wanted.n)
        ]
        for one in asked:
            self._check(one)
        self._run(asked)
        for one in asked:
            answers[one.prompt_index].outputs.append(self._completion(one))
        return answers

    def _read(self, prompt: Prompt, place: int) -> RequestOutput:
        tokenizer, text = self.engine.model.tokenizer, None
        if isinstance(prompt, str):
            if tokenizer is None:
                raise ValueError(f"prompt {place}: {self.engine.config.model} has no tokenizer: give token ids")
            text, ids = prompt, list(tokenizer.encode(prompt))
        else:
            ids = list(prompt)
            if wrong := [token for token in ids if not isinstance(token, int | np.integer)]:
                raise ValueError(f"prompt {place}: expected token ids, whole numbers, got {wrong[0]!r}")
        if not ids:
            raise ValueError(f"prompt {place}: expected at least one token, got none")
        vocab = self.engine.architecture.vocab_size
        bad = [token for token in ids if not 0 <= token < vocab]
        if bad:
            raise ValueError(f"prompt {place}: token {bad[0]} is outside the model's vocabulary of {vocab}")
        return RequestOutput(text, ids)

    def _ask(self, place: int, copy: int, ids: Sequence[int], params: SamplingParams) -> _Asked:
        self._num_requests += 1
        room = self._rules.max_model_len - len(ids)
        if room < 1:
            raise ValueError(
                f"prompt {place}: {len(ids)} tokens leave no room in max_model_len={self._rules.max_model_len}"
            )
        number = self._num_requests
        limit = min(params.max_tokens, room)
        request = Request(number, len(ids), limit, arrival=number, content=TokenContent(list(ids)))
        # By the caller's seed, or by the engine's and the request's place in the call: never by what runs beside it.
        seed = (self.seed << 48) + (place << 24) if params.seed is None else params.seed
        return _Asked(place, copy, request, params, (seed + copy) & SEED_MASK)

    def _check(self, one: _Asked) -> None:
        refusal = self.allocator.refuses_forever(one.request)
        if refusal is not None:
            request = one.request
            raise ValueError(
                f"prompt {one.prompt_index}: {request.num_prompt_tokens} tokens and up to {request.max_tokens} more "
                f"need {refusal.needed_blocks} blocks of {self.pool.block_size}, and the pool never has more than "
                f"{refusal.free_blocks} for one request: ask for fewer max_tokens or a larger pool"
            )

    def _run(self, asked: Sequence[_Asked]) -> None:
        scheduler, executor = self.scheduler, self.executor
        self._interrupted = True  # until all is done
        executor.steps.clear()
        executor.outputs.clear()
        self._asked = {one.request.request_id: one for one in asked}
        for one in asked:
            scheduler.add(one.request)
        progress = Progress(scheduler)
        while scheduler.running or scheduler.waiting:
            batch = step(scheduler, executor).batch
            self.num_preemptions += len(batch.preempted)
            if batch.preempted or not batch.num_seqs:
                progress.watch(batch)
        self._asked = {}
        self._interrupted = False

    def _completion(self, one: _Asked) -> Completion:
        tokens = self.executor.outputs.pop(one.request.request_id)
        return Completion(one.index, tokens, *self._stopping.finish(tokens, one.params))

    # asked by the executor ----------------------------------------------------------------------------------------

    def _sampling_of(self, request: Request) -> RowSampling:
        one = self._asked[request.request_id]
        params = one.params
        return RowSampling(params.temperature, one.seed, params.top_k, params.top_p)

    def _stops(self, request: Request, tokens: Sequence[int]) -> bool:
        return self._stopping.stops(tokens, self._asked[request.request_id].params)


def _engine_of(model: str | Engine, asked: Limits, options: dict[str, Any]) -> Engine:
    """A new engine, or the one that was given."""
    seqs, tokens, longest = asked
    if isinstance(model, str):
        return Engine(
            EngineConfig(
                model,
                max_num_seqs=seqs,
                max_num_batched_tokens=tokens,
                max_model_len=longest or None,
                **options,
            )
        )
    if options:
        raise EngineError(f"the engine is there already: {', '.join(options)} cannot be changed any more")
    if longest > model.limits.max_model_len:
        raise EngineError(f"max_model_len: the engine takes at most {model.limits.max_model_len}, got {longest}")
    return model


def _rules_of(engine: Engine, asked: Limits, *, chunked_prefill: bool) -> SchedulerConfig:
    """What was asked for, within what the engine has buffers for."""
    limits = engine.limits
    return SchedulerConfig(
        max_model_len=asked.max_model_len or limits.max_model_len,
        max_num_seqs=min(asked.max_num_seqs, limits.max_num_seqs),
        max_num_batched_tokens=min(asked.max_num_batched_tokens, limits.max_num_batched_tokens),
        chunked_prefill=chunked_prefill,
    )


def _capacity(
    engine: Engine, block_size: int, num_blocks: int | None, kv_tokens: int | None, utilization: float
) -> tuple[int, KVBudget | None]:
    """Blocks that requests can hold: pinned, or what the device has left, and how that was found."""
    if num_blocks is not None and kv_tokens is not None:
        raise EngineError("num_blocks and kv_tokens both pin the capacity: give one of them")
    for name, value in (("num_blocks", num_blocks), ("kv_tokens", kv_tokens)):
        if value is not None and not isinstance(value, int):
            raise EngineError(f"{name}: expected a whole number, got {value!r}")
    if kv_tokens is not None:
        return kv_tokens // block_size, None
    if num_blocks is not None:
        return num_blocks, None
    budget = engine.budget(block_size, utilization=utilization)
    fits = min(budget.num_blocks - 1, MAX_BLOCKS)
    if engine.device.type == "cpu":  # shared with everything else: no more than all rows can use at once, and a limit
        rows, longest = engine.limits.max_num_seqs, engine.limits.max_model_len
        fits = min(fits, rows * -(-longest // block_size), max(CPU_KV_BYTES // engine.block_bytes(block_size), 1))
    return fits, budget


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt, as text or ids, is a list of one."""
    if isinstance(prompts, str):
        return [prompts]
    if len(prompts) and not isinstance(prompts[0], str | Sequence):
        return [prompts]  # type: ignore[list-item]
    return list(prompts)  # type: ignore[arg-type]
