"""The executor that computes: a real model, real K and V, on a CPU or a GPU, one step at a time.

Behind the same protocol as the simulator's executors: it is handed batches and never calls the scheduler. Block ids are
the allocator's; ids start at 1, block 0 is the null block.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from engine.core.batch import StepResult
from engine.worker.arrangement import Arrangement
from engine.worker.lead import LONE, Lead
from engine.worker.limits import Limits
from engine.worker.mixed_step import MixedInputs
from engine.worker.order import DecodeArguments, Moves, Order
from engine.worker.ran import SAMPLING_DTYPES, Ran, RowSampling
from engine.worker.sequences import Sequences
from engine.worker.shared_prefix import SharedRows, SharingRule
from engine.worker.step_clock import PS_PER_NS, DeviceClock, HostClock, StepTime
from engine.worker.step_runner import StepRunner

if TYPE_CHECKING:
    from engine.core.allocator import KVAllocator
    from engine.core.batch import Batch, Chunk
    from engine.core.decode_set import DecodeSet
    from engine.core.request import Request
    from engine.model.decoder import Decoder
    from engine.worker.beam_search import BeamParams
    from engine.worker.kv_memory import KVMemory


class RunningStep(NamedTuple):
    """A step that was launched."""

    executor: ModelExecutor
    batch: Batch
    ran: Ran
    host_ps: int
    features: tuple[int, int, bool, int, int, int]
    """The fields of `StepTime` that are no times."""

    @property
    def running(self) -> bool:
        """On the device."""
        return True

    def result(self) -> StepResult:
        """Waits; to be called once."""
        return self.executor.finish(self)


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
        beams: Callable[[Request], BeamParams] | None = None,
        watch: Callable[[list[Request], torch.Tensor], None] | None = None,
        sharing: SharingRule | None = None,
        lead: Lead = LONE,
    ) -> None:
        """`sampling` is asked once a sequence; None: greedy. `stops` is asked with a sequence's outputs after every
        sampled token, `beams` once a search: what is searched for; None: beams of their forced length. `watch` is given
        each step's logits [N, V] with the requests that they belong to, for tests. `padded`: mixed steps have the sizes
        that graphs have; None: on a device they do. `sharing`: when decodes take what rows have in common once for all
        of them; None: never. `lead`: of several ranks, which run the same steps."""
        on_device = kv.caches[0].device.type == "cuda"
        padded = on_device if padded is None else padded
        self.kv = kv
        self.runner = StepRunner(decoder, kv, limits, graphs=graphs, padded=padded)
        self.table, self.state = self.runner.table, self.runner.state
        self.decode, self.mixed = self.runner.decode, self.runner.mixed
        self.rows = Arrangement(self.table, allocator)
        self.sharing = SharedRows(sharing, self.table, self.state)
        self._lead = lead
        self.sequences = Sequences(decoder.architecture.vocab_size, sampling, stops, beams)
        self._watch = watch
        self._clock: HostClock | DeviceClock = DeviceClock(lead.wait_for) if on_device else HostClock()
        self._fresh = False
        """Whether the device's record of rows is the host's."""
        self._steady: Ran | None = None
        """Of decode steps, while the rows stay."""
        self._filtered = False
        """Whether a decoding row has top-k or top-p."""
        self.steps: list[StepTime] = []
        self._launch = partial(self.runner.run, prepared=self._clock.start)

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
        with self._lead.guard():
            ran = self._decode(batch) if not batch.chunks else self._run_mixed(batch)
            self._clock.launched()
        host_ps = (time.perf_counter_ns() - began) * PS_PER_NS
        decodes, attended = self.rows.num_decodes, batch.attended()
        tokens = decodes, batch.num_new_tokens - decodes, self.decode.steps.captures
        features = *tokens, batch.num_context_tokens + batch.num_new_tokens, *attended
        return RunningStep(self, batch, ran, host_ps, features)

    @property
    def outputs(self) -> dict[object, list[int]]:
        """Output tokens of the sequences that are over, by `sequences.output_key`: of a request, its id."""
        return self.sequences.outputs

    @property
    def closed(self) -> bool:
        """Whether its memory has been given back."""
        return not self.kv.caches

    def close(self) -> None:
        """Gives K and V and the graphs over them back, whoever still holds the executor; it runs nothing any more."""
        self.runner.close()

    def finish(self, step: RunningStep) -> StepResult:
        """Waits for the step that was launched; its duration is measured (see `StepTime`)."""
        with self._lead.guard():
            duration, device = self._clock.wait()
        self._lead.check()
        self.steps.append(StepTime(duration, device, step.host_ps, *step.features))
        booked = self.sequences.book(step.ran)
        if booked.changed:
            self._fresh = False
        self._turn(step.batch.chunks, booked.stopped)
        if not self.rows.requests and not step.batch.num_waiting:
            self._clock.rest()
        return StepResult(1, duration, booked.stopped, duration, sampled=booked.sampled, beams=booked.beams)

    # steps --------------------------------------------------------------------------------------------------------

    def _arrange(self, batch: Batch) -> None:
        """Rows, block tables and tokens as the scheduler has decided them."""
        for admission in batch.admitted:
            self.sequences.open(admission.request)
        self.sequences.follow(batch.forks)
        self.rows.arrange(batch)
        if self.rows.changed:
            self._fresh = self.rows.changed = False

    def _decode(self, batch: Batch) -> Ran:
        """All rows decode."""
        behind, requests = not self._fresh, self.rows.decodes()
        if behind:
            self._record(requests, batch.clock)
        step = DecodeArguments(len(requests), self._filtered, bool(self.sharing))
        logits = self._run(batch, step, record=behind)
        if behind:  # while the device computes
            self._steady = self.sequences.ran(requests, self.decode.sampled)
            self._fresh = True
        ran = self._steady
        assert ran is not None
        if ran.beams:
            self.sequences.searches.score(ran.requests, logits)
        if self._watch is not None:
            self._watch(ran.requests, logits)
        return ran

    def _record(self, requests: list[Request], clock: int) -> None:
        """Tells the device each row's last token and length."""
        cpu, count = self.state.cpu, len(requests)
        cpu["num_rows"][0] = count
        cpu["last_tokens"][:count] = [self.sequences.tokens[request].kept[-1] for request in requests]
        cpu["seq_lens"][:count] = [request.base + clock - 1 for request in requests]
        if self.sequences.samples:
            for name, values in zip(SAMPLING_DTYPES, self.sequences.columns(requests), strict=True):
                cpu[name][:count] = values
        self.sharing.look(count)
        self._filtered = self.sequences.filtered(requests)

    def _run_mixed(self, batch: Batch) -> Ran:
        """Decodes and chunks, or chunks alone."""
        decodes, chunks = self.rows.decodes(), batch.chunks
        clock, sequences, tokens = batch.clock, self.sequences, self.sequences.tokens
        count = len(decodes)
        parts = [np.array([tokens[r].kept[-1] for r in decodes], np.int64)]
        ends = [chunk.num_context_tokens + chunk.num_new_tokens for chunk in chunks]
        parts += [tokens[c.request].between(c.num_context_tokens, end) for c, end in zip(chunks, ends, strict=True)]
        lens = [r.base + clock for r in decodes] + ends
        rows, sampling = list(range(count)), list(decodes)
        for row, chunk in enumerate(chunks, count):
            if chunk.completes:
                asking = sequences.sample_from(chunk)
                rows += [row] * len(asking)
                sampling += asking
        inputs = MixedInputs(
            tokens=np.concatenate(parts),
            query_lens=np.array([1] * count + [chunk.num_new_tokens for chunk in chunks], np.int64),
            seq_lens=np.array(lens, np.int64),
            num_decodes=count,
            sampled_rows=np.array(rows, np.int64),
            sampling=sequences.columns(sampling),
            filtered=sequences.filtered(sampling),
        )
        logits = self._run(batch, inputs)
        self._fresh = False  # lengths went on without the device's record
        ran = sequences.ran(sampling, self.mixed.sampled)
        if ran.beams:
            sequences.searches.score(sampling, logits)
        if self._watch is not None and sampling:
            self._watch(sampling, logits)
        return ran

    def _run(self, batch: Batch, step: DecodeArguments | MixedInputs, *, record: bool = False) -> torch.Tensor:
        """Launches it here, and on the other ranks; `record`: the device's record of rows is not good any more."""
        moves = Moves(batch.to_host, batch.to_device, batch.copies)
        entries = self.table.due(self.rows.num_decodes + len(batch.chunks))
        packed = self.state.packed if record else None
        return self._lead.run(Order(moves, entries, packed, step), self._launch)

    # after the step -----------------------------------------------------------------------------------------------

    def _turn(self, chunks: Sequence[Chunk], stopped: Sequence[Request]) -> None:
        """Who decodes from now on, and who leaves."""
        for chunk in chunks:
            if chunk.completes:
                self.rows.promote(chunk.request)
        for request in stopped:
            self.rows.leave_if_there(request)
            self.sequences.close(request)
