"""Offline generation: prompts in, completions out, on the allocator, scheduler and executor of the experiments.

The loop is the step without a clock (`engine.core.step`). Whatever allocator holds K and V, and however its memory is
cut, preempted or shared, greedy completions are the same: tests hold it to that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from engine.asking import (
    Asked,
    Call,
    EarlyStopping,
    Prompt,
    Samples,
    as_list,
    check_group,
    one_each,
    params_of,
    read,
    request_of,
    seed_of,
)
from engine.attention.block_size import resolve_block_size
from engine.construction import check_options, engine_of, limits_of, record_events_of, rules_of
from engine.core.limits import Preemption
from engine.core.option_checks import MOST_SEED
from engine.core.progress import Progress
from engine.core.registry import PoolConfig, make_allocator
from engine.core.scheduler import Scheduler
from engine.core.step import step
from engine.outputs import Completion, MemoryUse, RequestOutput
from engine.pool_size import device_blocks, host_blocks_of
from engine.sampling_params import SamplingParams
from engine.stopping import Stopping
from engine.worker.budget import DEFAULT_UTILIZATION, EngineError
from engine.worker.kv_memory import Kernel
from engine.worker.ran import RowSampling

if TYPE_CHECKING:
    from engine.core.allocator import KVAllocator
    from engine.core.block_events import Event
    from engine.core.request import Request
    from engine.worker.beam_search import BeamParams
    from engine.worker.engine import Engine
    from engine.worker.executor import ModelExecutor

__all__ = ["LLM", "Completion", "Prompt", "RequestOutput"]


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
        preemption: Preemption = "recompute",
        host_blocks: int | None = None,
        swap_gib: float | None = None,
        record_events: bool = False,
        seed: int = 0,
        **engine: Any,
    ) -> None:
        """`model` as in `EngineConfig`, further options too (device, kv_cache_dtype, tensor_parallel_size, ...); or
        an `Engine` that is there, with its options and buffers: limits may then be lower than its own, not higher.

        `num_blocks` (blocks that requests can hold) or `kv_tokens` pins the capacity; without, it is what the device
        has left. `preemption`: what becomes of sequences that have to give way, see `SchedulerConfig`; those that are
        swapped go to `host_blocks` blocks, or `swap_gib` GiB, of host memory. `record_events`: see `take_events`.
        Errors before the first request: EngineError, ValueError, DeviceUnavailable.
        """
        check_options(locals())
        asked = limits_of(max_num_seqs, max_num_batched_tokens, max_model_len)
        self.engine = engine_of(model, asked, engine)
        self.seed = seed
        self._rules = rules_of(self.engine, asked, enable_chunked_prefill, preemption)
        longest, backend = self._rules.max_model_len, self.engine.backend
        size, self.block_size_reason = resolve_block_size(backend, block_size, longest, max_num_seqs)
        blocks, self.budget = device_blocks(self.engine, size, num_blocks, kv_tokens, gpu_memory_utilization)
        """`budget`: None where the capacity is pinned."""
        host = host_blocks_of(preemption, self.engine.block_bytes(size), blocks, host_blocks, swap_gib)
        self.pool = PoolConfig(blocks, size, longest, enable_caching=enable_prefix_caching, host_blocks=host)
        self.allocator_name, self._kernel, self._records = allocator, kernel, record_events
        self._stopping = Stopping(self.engine.architecture.eos_token_ids, self.engine.model.tokenizer)
        self._asked: dict[object, Asked] = {}
        """By request id, while they run."""
        self._num_requests = self.num_preemptions = 0
        """Of all calls so far."""
        self.memory_use = MemoryUse()
        """Of the last call."""
        self._start()

    def _start(self) -> None:
        """An empty pool, an empty queue."""
        self.allocator: KVAllocator = make_allocator(self.allocator_name, self.pool)
        if self.pool.host_blocks and not getattr(self.allocator, "host_blocks", 0):
            raise EngineError(f"allocator {self.allocator_name} swaps nothing: use preemption 'recompute', or paged")
        if self._records:
            record_events_of(self.allocator, self.allocator_name)
        self.scheduler = Scheduler(self._rules, self.allocator)
        self.executor: ModelExecutor = self.engine.executor(
            self.allocator, kernel=self._kernel, sampling=self._sampling_of, stops=self._stops, beams=self._beams_of
        )
        self._interrupted = False

    def close(self) -> None:
        """Gives the KV memory back, and ends the other ranks where there are several; nothing is generated any more."""
        self.engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    # generation ---------------------------------------------------------------------------------------------------

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        n: int | None = None,
        samples: Samples = "fork",
        beam_width: int | None = None,
        length_penalty: float = 1.0,
        early_stopping: EarlyStopping = False,
        cache_salt: str | Sequence[str | None] | None = None,
        lora_name: str | Sequence[str | None] | None = None,
    ) -> list[RequestOutput]:
        """Completions of each prompt, in order. Prompts are texts or token ids; one `params` for all, or one each.

        `n` overrides that of `params`. Several completions are forked from one computation of the prompt and copy on
        write (`samples="fork"`), or are requests of their own that meet in the prefix cache (`"requests"`, vLLM's way):
        the tokens are the same, completion i draws with seed + i. `beam_width` searches instead of sampling, see
        `engine.worker.beam_search` for `length_penalty` and `early_stopping`, and gives that many completions, best
        first. Cached blocks are found by requests with the same `cache_salt` and `lora_name` only, each one for all
        prompts or one each; adapters themselves are not applied.

        ValueError, before anything runs, for a prompt that is empty, longer than the model, or that the pool can never
        hold, for texts where the model has no tokenizer, and for groups that nobody can serve.
        """
        call = Call(samples, beam_width, length_penalty, early_stopping)
        given = as_list(prompts)
        each = params_of(params, n, len(given))
        for wanted in each:
            self._stopping.check(wanted)
            call.check(wanted)
        salts = one_each("cache_salt", cache_salt, len(given))
        loras = one_each("lora_name", lora_name, len(given))
        answers = [read(self.engine, prompt, place) for place, prompt in enumerate(given)]
        if self._interrupted or self.executor.closed:  # by an error, or because its engine serves another LLM now
            self._start()
        asked: list[Asked] = []
        for place, (answer, wanted, *keys) in enumerate(zip(answers, each, salts, loras, strict=True)):
            asked += self._ask_all(place, answer.prompt_token_ids, wanted, call, *keys)
        for one in asked:
            self._check(one)
        self.engine.storage.fit(self.engine, [answer.prompt_token_ids for answer in answers])
        self._run(asked)
        for one in asked:
            answers[one.prompt_index].outputs.extend(self._completions(one))
        return answers

    def take_events(self) -> list[Event]:
        """Blocks that the prefix cache has stored and removed since the last call of this, in order. ValueError unless
        the LLM was made with `record_events`."""
        events: list[Event] | None = getattr(getattr(self.allocator, "pool", None), "events", None)
        if events is None:
            raise ValueError("events are not recorded: make the LLM with record_events=True")
        taken = list(events)
        events.clear()
        return taken

    def _ask_all(
        self, place: int, ids: Sequence[int], params: SamplingParams, call: Call, salt: str | None, lora: str | None
    ) -> list[Asked]:
        """The requests of one prompt."""
        if call.beam_width is None and call.samples == "requests":
            return [self._ask(place, copy, ids, params, salt, lora) for copy in range(params.n)]
        shape = self.engine.architecture
        first = self._ask(place, 0, ids, params, salt, lora)
        return call.ask(place, first, params, shape.eos_token_ids, shape.vocab_size)

    def _ask(
        self,
        place: int,
        copy: int,
        ids: Sequence[int],
        params: SamplingParams,
        salt: str | None = None,
        lora: str | None = None,
    ) -> Asked:
        self._num_requests += 1
        room = self._rules.max_model_len - len(ids)
        if room < 1:
            raise ValueError(
                f"prompt {place}: {len(ids)} tokens leave no room in max_model_len={self._rules.max_model_len}"
            )
        request = request_of(self._num_requests, ids, min(params.max_tokens, room), salt, lora)
        # By the caller's seed, or by the engine's and the request's place in the call: never by what runs beside it.
        seed = seed_of(self.seed, place) if params.seed is None else params.seed
        return Asked(place, copy, request, params, (seed + copy) & MOST_SEED)

    def _check(self, one: Asked) -> None:
        check_group(one, self.scheduler, self.allocator_name)
        refusal = self.allocator.refuses_forever(one.request)
        if refusal is not None:
            request = one.request
            raise ValueError(
                f"prompt {one.prompt_index}: {request.num_prompt_tokens} tokens and up to {request.max_tokens} more "
                f"need {refusal.needed_blocks} blocks of {self.pool.block_size}, and the pool never has more than "
                f"{refusal.free_blocks} for one request: ask for fewer max_tokens or a larger pool"
                + (f", or for fewer than the {one.width} sequences that run together" if one.width > 1 else "")
            )

    def _run(self, asked: Sequence[Asked]) -> None:
        scheduler, executor = self.scheduler, self.executor
        used, before = MemoryUse(), (scheduler.num_swaps_refused, scheduler.prefix.queries, scheduler.prefix.hits)
        self.memory_use = used
        self._interrupted = True  # until all is done
        executor.steps.clear()
        executor.outputs.clear()
        self._asked = {one.request.request_id: one for one in asked}
        for one in asked:
            scheduler.add(one.request)
        progress = Progress(scheduler)
        while scheduler.has_work:
            batch = step(scheduler, executor).batch
            used.add(batch, self.allocator.stats())
            if batch.preempted or not batch.num_seqs:
                progress.watch(batch)
        after = scheduler.num_swaps_refused, scheduler.prefix.queries, scheduler.prefix.hits
        used.num_swaps_refused, used.queried_tokens, used.hit_tokens = (
            now - then for now, then in zip(after, before, strict=True)
        )
        self.num_preemptions += used.num_preemptions
        self._asked = {}
        self._interrupted = False

    def _completions(self, one: Asked) -> list[Completion]:
        outputs, number = self.executor.outputs, one.request.request_id
        if one.request.group is None:
            found = [outputs.pop(number)]
        else:
            found = [outputs.pop((number, sample)) for sample in range(one.width)]
        made = [
            Completion(one.index + place, tokens, *self._stopping.finish(tokens, one.params))
            for place, tokens in enumerate(found)
        ]
        if one.beams is None:
            return made
        best = self.executor.sequences.searches.results.pop(number)
        return [
            replace(completion, cumulative_logprob=beam.cumulative_logprob, score=beam.score)
            for completion, beam in zip(made, best, strict=True)
        ]

    # asked by the executor ----------------------------------------------------------------------------------------

    def _sampling_of(self, request: Request) -> RowSampling:
        one = self._asked[request.request_id]
        params = one.params
        return RowSampling(params.temperature, (one.seed + request.sample) & MOST_SEED, params.top_k, params.top_p)

    def _stops(self, request: Request, tokens: Sequence[int]) -> bool:
        return self._stopping.stops(tokens, self._asked[request.request_id].params)

    def _beams_of(self, request: Request) -> BeamParams:
        beams = self._asked[request.request_id].beams
        assert beams is not None
        return beams
