"""The executor that computes: a real model, real K and V, on a CPU or a GPU, one step at a time.

Behind the same protocol as the simulator's executors: it is handed batches and never calls the scheduler. Block ids are
the allocator's; ids start at 1, block 0 is the null block.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from engine.core.batch import StepResult
from engine.worker.block_table import BlockTable
from engine.worker.decode_step import DecodeStep
from engine.worker.limits import Limits
from engine.worker.mixed_step import MixedInputs, MixedStep
from engine.worker.ran import SAMPLING_DTYPES, Ran, RowSampling
from engine.worker.rows import BatchRows
from engine.worker.shared_prefix import SharedRows, SharingRule
from engine.worker.staging import RowState
from engine.worker.step_clock import PS_PER_NS, DeviceClock, HostClock, StepTime
from engine.worker.tokens import RequestTokens

if TYPE_CHECKING:
    from engine.core.allocator import KVAllocator
    from engine.core.batch import Batch, Chunk
    from engine.core.decode_set import DecodeSet
    from engine.core.request import Request
    from engine.model.decoder import Decoder
    from engine.worker.kv_memory import KVMemory


class RunningStep(NamedTuple):
    """A step that was launched."""

    executor: ModelExecutor
    batch: Batch
    ran: Ran
    host_ps: int

    @property
    def running(self) -> bool:
        """On the device."""
        return True

    def result(self) -> StepResult:
        """Waits; to be called once."""
        return self.executor.finish(self.batch, self.ran, self.host_ps)


class ModelExecutor:
    """Runs each batch through a model. A request stops at its forced length (`num_stop_tokens`), or by `stops`."""

    def __init__(
        self,
        decoder: Decoder,
        kv: KVMemory,
        allocator: KVAllocator,
        limits: Limits,
        *,
        graphs: bool = False,
        padded: bool | None = None,
        sampling: Callable[[Request], RowSampling] | None = None,
        stops: Callable[[Request, Sequence[int]], bool] | None = None,
        watch: Callable[[list[Request], torch.Tensor], None] | None = None,
        sharing: SharingRule | None = None,
    ) -> None:
        """`sampling` is asked once a request; None: greedy. `stops` is asked with a request's outputs after every
        sampled token. `watch` is given each step's logits [N, V] with the requests that they belong to, for tests.
        `padded`: mixed steps have the sizes that graphs have; None: on a device they do. `sharing`: when decodes take
        what rows have in common once for all of them; None: never."""
        device = kv.caches[0].device
        size = allocator.block_size
        self.kv = kv
        self.table = BlockTable(limits.max_num_seqs, -(-limits.max_model_len // size), size, device)
        self.rows = BatchRows(self.table)
        self.state = RowState(limits.max_num_seqs, device)
        self.sharing = SharedRows(sharing, self.table, self.state)
        self.decode = DecodeStep(decoder, self.table, self.state, max_model_len=limits.max_model_len, graphs=graphs)
        on_device = device.type == "cuda"
        padded = on_device if padded is None else padded
        self.mixed = MixedStep(decoder, self.table, limits, padded=padded, graphs=graphs)
        self._allocator = allocator
        self._vocab_size = decoder.architecture.vocab_size
        self._asks = sampling
        self._stops = stops
        self._watch = watch
        self._clock: HostClock | DeviceClock = DeviceClock() if on_device else HostClock()
        self._tokens: dict[Request, RequestTokens] = {}
        self._sampling: dict[Request, RowSampling] = {}
        self._fresh = False
        """Whether the device's record of rows is the host's."""
        self._steady: Ran | None = None
        """Of decode steps, while the rows stay."""
        self.steps: list[StepTime] = []
        self.outputs: dict[object, list[int]] = {}
        """Output tokens of the requests that finished, by request id."""

    # the protocol -------------------------------------------------------------------------------------------------

    def horizon(self, decodes: DecodeSet, until: int | None, end: int | None) -> int:
        """A step at a time: every token is computed."""
        return 1

    @torch.inference_mode()
    def submit(self, batch: Batch) -> RunningStep:
        """Launches one step; its result waits for it. One step at a time."""
        if self.closed:
            raise RuntimeError("this executor's KV memory was given back: its engine has made another one since")
        began = time.perf_counter_ns()
        self._arrange(batch)
        self._clock.start()
        if batch.copies:
            self.kv.copy_blocks(batch.copies)
        self.table.stage(self.rows.num_decodes + len(batch.chunks))
        ran = self._decode(batch) if not batch.chunks else self._run_mixed(batch)
        self._clock.launched()
        return RunningStep(self, batch, ran, (time.perf_counter_ns() - began) * PS_PER_NS)

    @property
    def closed(self) -> bool:
        """Whether its memory has been given back."""
        return not self.kv.caches

    def close(self) -> None:
        """Gives K and V and the graphs over them back, whoever still holds the executor; it runs nothing any more."""
        self.kv.release()
        self.decode.steps.forget()
        self.mixed.steps.forget()

    def finish(self, batch: Batch, ran: Ran, host_ps: int) -> StepResult:
        """Waits for the step that was launched; its duration is measured (see `StepTime`)."""
        duration, device = self._clock.wait()
        decodes = self.rows.num_decodes
        new_tokens = batch.num_new_tokens - decodes
        self.steps.append(StepTime(duration, device, host_ps, decodes, new_tokens, self.decode.steps.captures))
        stopped = self._book(ran)
        self._turn(batch.chunks, stopped)
        if not self.rows.requests and not batch.num_waiting:
            self._clock.rest()
        return StepResult(1, duration, stopped, duration)

    # rows ---------------------------------------------------------------------------------------------------------

    def _arrange(self, batch: Batch) -> None:
        """Rows and block tables as the scheduler has decided them."""
        rows, table_of = self.rows, self._table_of
        for request, _ in batch.preempted:
            if request in rows.row_of:
                rows.leave(request)
        for request, _, _ in batch.admitted:
            rows.join(request, table_of(request))
            self._open(request)
        if rows.num_decodes != len(batch.decodes.members):
            for request in rows.decodes():
                if request.decoding is None:  # the step's budget did not reach it, or it owes more than a token
                    rows.demote(request)
        for grant in batch.grants:
            for request in grant.moved:
                if request in rows.row_of:
                    self.table.add_row(rows.row_of[request], table_of(request))
        self._grow(batch)
        rows.bring_forward(chunk.request for chunk in batch.chunks)
        if rows.changed:
            self._fresh = rows.changed = False

    def _table_of(self, request: Request) -> list[int]:
        """The blocks that the model can need: a reservation may be larger than any sequence."""
        return list(self._allocator.block_table(request)[: self.table.max_blocks])

    def _grow(self, batch: Batch) -> None:
        """New blocks of those that run, at the ends of their rows."""
        growth = self._allocator.growth_tokens
        if growth is None:
            grown = self.rows.decodes()
        elif growth:
            grown = batch.decodes.buckets[(batch.clock - 1) % growth]
        else:
            grown = []
        row_of, num_blocks = self.rows.row_of, self.table.num_blocks
        single: list[tuple[int, int]] = []
        for request in (*grown, *(chunk.request for chunk in batch.chunks)):
            row, blocks = row_of[request], self._allocator.block_table(request)
            held = num_blocks[row]
            missing = min(len(blocks), self.table.max_blocks) - held
            if missing == 1:
                single.append((row, blocks[held]))
            elif missing > 0:
                self.table.append_row(row, list(blocks[held : held + missing]))
        if single:
            self.table.append_one_each(*zip(*single, strict=True))

    def _open(self, request: Request) -> None:
        """The request's tokens, from its first admission to its end."""
        if request not in self._tokens:
            self._tokens[request] = RequestTokens(request, self._vocab_size)
            if self._asks is not None:
                self._sampling[request] = self._asks(request)

    # steps --------------------------------------------------------------------------------------------------------

    def _decode(self, batch: Batch) -> Ran:
        """All rows decode."""
        if not self._fresh:
            self._record(self.rows.decodes(), batch.clock)
        ran = self._steady
        assert ran is not None
        logits = self.decode.run(len(ran.requests), filtered=ran.filtered, shared=bool(self.sharing))
        if self._watch is not None:
            self._watch(ran.requests, logits)
        return ran

    def _record(self, requests: list[Request], clock: int) -> None:
        """Tells the device each row's last token and length."""
        cpu, count = self.state.cpu, len(requests)
        cpu["num_rows"][0] = count
        cpu["last_tokens"][:count] = [self._tokens[request].kept[-1] for request in requests]
        cpu["seq_lens"][:count] = [request.base + clock - 1 for request in requests]
        if self._sampling:
            for name, values in zip(SAMPLING_DTYPES, self._columns(requests), strict=True):
                cpu[name][:count] = values
        self.sharing.look(count)
        self.state.upload()
        self._fresh = True
        self._steady = self._ran(requests, self.decode.sampled)

    def _run_mixed(self, batch: Batch) -> Ran:
        """Decodes and chunks, or chunks alone."""
        decodes, chunks = self.rows.decodes(), batch.chunks
        clock, tokens = batch.clock, self._tokens
        count = len(decodes)
        parts = [np.array([tokens[r].kept[-1] for r in decodes], np.int64)]
        ends = [chunk.num_context_tokens + chunk.num_new_tokens for chunk in chunks]
        parts += [tokens[c.request].between(c.num_context_tokens, end) for c, end in zip(chunks, ends, strict=True)]
        lens = [r.base + clock for r in decodes] + ends
        complete = [index for index, chunk in enumerate(chunks) if chunk.completes]
        sampling = [*decodes, *(chunks[index].request for index in complete)]
        inputs = MixedInputs(
            tokens=np.concatenate(parts),
            query_lens=np.array([1] * count + [chunk.num_new_tokens for chunk in chunks], np.int64),
            seq_lens=np.array(lens, np.int64),
            num_decodes=count,
            sampled_rows=np.array([*range(count), *(count + index for index in complete)], np.int64),
            sampling=self._columns(sampling) if self._sampling else RowSampling.columns(()),
            filtered=self._filtered(sampling),
        )
        logits = self.mixed.run(inputs)
        self._fresh = False  # lengths went on without the device's record
        if self._watch is not None and sampling:
            self._watch(sampling, logits)
        return self._ran(sampling, self.mixed.sampled)

    def _ran(self, requests: list[Request], sampled: torch.Tensor) -> Ran:
        """What is to be booked once a step of these has been waited for."""
        own = [self._tokens[request] for request in requests]
        left = min((tokens.limit - tokens.num_outputs for tokens in own), default=0)
        simple = self._stops is None and not any(tokens.forced for tokens in own)
        puts = [tokens.kept.append for tokens in own] if simple else []
        return Ran(requests, own, puts, sampled[: len(requests)].numpy(), self._filtered(requests), left)

    def _filtered(self, requests: list[Request]) -> bool:
        return bool(self._sampling) and any(self._sampling[request].filtered for request in requests)

    def _columns(self, requests: list[Request]) -> list[npt.NDArray[np.generic]]:
        return RowSampling.columns([self._sampling[request] for request in requests])

    # after the step -----------------------------------------------------------------------------------------------

    def _book(self, ran: Ran) -> list[Request]:
        """Keeps the sampled tokens; who stops."""
        sampled = ran.sampled.tolist()
        ran.left -= 1
        if ran.puts:
            for put, token in zip(ran.puts, sampled, strict=True):
                put(token)
            if ran.left > 0:
                return []
            return [r for r, own in zip(ran.requests, ran.tokens, strict=True) if own.num_outputs >= own.limit]
        stopped, stops = [], self._stops
        for request, own, token in zip(ran.requests, ran.tokens, sampled, strict=True):
            if own.append(token) != token:
                self._fresh = False  # forced: the device must go on from another token
            if own.num_outputs >= own.limit or (stops is not None and stops(request, own.outputs)):
                stopped.append(request)
        return stopped

    def _turn(self, chunks: Sequence[Chunk], stopped: Sequence[Request]) -> None:
        """Who decodes from now on, and who leaves."""
        for chunk in chunks:
            if chunk.completes:
                self.rows.promote(chunk.request)
        for request in stopped:
            self.rows.leave(request)
            self.outputs[request.request_id] = self._tokens.pop(request).outputs
            self._sampling.pop(request, None)
