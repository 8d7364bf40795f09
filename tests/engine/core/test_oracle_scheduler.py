"""Recorded decisions of vLLM 0.33's scheduler, reproduced step by step with all recorded fields."""

from __future__ import annotations

from typing import Any

import pytest

from engine.core.batch import Batch, StepResult
from engine.core.content import TokenContent
from engine.core.limits import SchedulerConfig
from engine.core.paged import PagedAllocator
from engine.core.request import Request
from engine.core.scheduler import Scheduler
from tests.engine.core.recordings import RECORDED, of_kind


class Replayed:
    """Our scheduler fed with a recording's requests; its steps in the recording's form."""

    def __init__(self, recorded: dict[str, Any]) -> None:
        config = recorded["config"]
        self.allocator = PagedAllocator(
            config["usable_blocks"],
            config["block_size"],
            max_model_len=config["max_model_len"],
            enable_caching=config["enable_caching"],
            watermark=config["watermark"],
        )
        limits = SchedulerConfig(
            max_model_len=config["max_model_len"],
            max_num_seqs=config["max_num_seqs"],
            max_num_batched_tokens=config["max_num_batched_tokens"],
            chunked_prefill=config["enable_chunked_prefill"],
            full_sequence_gate=config["reserve_full_isl"],
            policy=config["policy"],
            long_prefill_token_threshold=config["long_prefill_token_threshold"],
        )
        self.scheduler = Scheduler(limits, self.allocator)
        self.outputs = {r["id"]: r["output"] for r in recorded["requests"]}
        self.totals = dict.fromkeys(("scheduled_tokens", "preemptions", "finished", "hit_tokens_at_admission"), 0)

    def arrive(self, row: dict[str, Any]) -> None:
        request = Request(
            row["id"],
            len(row["prompt"]),
            len(row["output"]),
            arrival=row["arrival_step"],
            priority=row["priority"],
            content=TokenContent(list(row["prompt"])),
        )
        assert not self.scheduler.refuses_forever(request)
        self.scheduler.add(request)

    def step(self, index: int) -> dict[str, Any]:
        scheduler = self.scheduler
        batch = scheduler.schedule()
        items = list(batch.items())
        shown = {
            "step": index,
            "scheduled": {r.request_id: new for r, _, new in items},
            "new": {a.request.request_id: a.num_hit_tokens for a in batch.admitted if not a.resumed},
            "resumed": {a.request.request_id: a.num_hit_tokens for a in batch.admitted if a.resumed},
            "preempted": sorted(p.request.request_id for p in batch.preempted),
            "running": [r.request_id for r in scheduler.running],
            "waiting": [r.request_id for r in scheduler.waiting],
            "free_blocks": self.allocator.stats().num_free,
            "blocks_held": {r.request_id: len(self.allocator.block_table(r)) for r in scheduler.running},
        }
        sampled, stopped = self._sample(batch)
        finished = scheduler.update(batch, StepResult(1, 1, stopped))
        self.allocator.check()
        shown |= {
            "sampled": [r.request_id for r in sampled],
            "finished": sorted(r.request_id for r in finished),
            "free_blocks_after": self.allocator.stats().num_free,
        }
        self.totals["scheduled_tokens"] += sum(new for _, _, new in items)
        self.totals["preemptions"] += len(batch.preempted)
        self.totals["finished"] += len(finished)
        self.totals["hit_tokens_at_admission"] += sum(a.num_hit_tokens for a in batch.admitted)
        return shown

    def _sample(self, batch: Batch) -> tuple[list[Request], list[Request]]:
        """Appends each forced token; those that sampled, and those that are done."""
        completing = {c.request: c.completes for c in batch.chunks}
        sampled = [r for r, _, _ in batch.items() if completing.get(r, True)]
        stopped = []
        for request in sampled:
            forced = self.outputs[request.request_id]
            done = request.num_output_tokens
            assert isinstance(request.content, TokenContent)
            request.content.tokens.append(forced[done])
            if done + 1 == len(forced):
                stopped.append(request)
        return sampled, stopped


@pytest.mark.parametrize("name", of_kind("scheduler"))
def test_scheduler_reproduces_the_recorded_oracle_trace(name: str) -> None:
    recorded = RECORDED[name]
    replayed = Replayed(recorded)
    arrivals = recorded["requests"]
    for expected in recorded["steps"]:
        for row in arrivals:
            if row["arrival_step"] == expected["step"]:
                replayed.arrive(row)
        shown = replayed.step(expected["step"])
        expected = {"sampled": [], **expected}
        for order_matters_not in ("scheduled", "new", "resumed", "blocks_held"):
            assert shown[order_matters_not] == expected[order_matters_not], expected["step"]
        assert shown == expected

    prefix = replayed.scheduler.prefix
    totals = replayed.totals | {
        "prefix_queries": prefix.queries,
        "prefix_hits": prefix.hits,
        "preempted_queries": prefix.preempted_queries,
        "preempted_hits": prefix.preempted_hits,
        "steps": len(recorded["steps"]),
    }
    assert totals == recorded["totals"]
