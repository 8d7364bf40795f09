"""DeepSeek models without experts through the whole engine, held against transformers' logits under forced tokens."""

from __future__ import annotations

import os
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Any

import torch

from engine.attention.registry import BACKENDS
from engine.core.content import TokenContent
from engine.core.limits import SchedulerConfig
from engine.core.registry import PoolConfig, make_allocator
from engine.core.request import Request
from engine.core.scheduler import Scheduler
from engine.core.step import step
from engine.worker.backend_choice import never_waits
from engine.worker.engine import Engine, EngineConfig
from engine.worker.warm_up import warm_up
from tests.engine.model.tiny import VOCAB, hugging_face, logits_of

LONGEST = 64
ON_DEVICE = os.environ.get("PAGELAB_GPU") == "1"
SEQS, BUDGET = 8, 48
REAL = {
    "hidden_size": 256,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "intermediate_size": 512,
    "kv_lora_rank": 512,
    "q_lora_rank": 192,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
"""Heads and latents of the published models, in few and narrow layers."""
BOUNDS = {torch.float32: 1e-4, torch.bfloat16: 3e-2}
"""Of `distance`. transformers' own bfloat16 is at 2.0e-2 to 2.6e-2 from its float32 with the same weights."""
Text = list[int]


def saved(folder: Path, name: str, **changes: Any) -> Any:
    """A model of transformers with random weights, also in that folder."""
    model = hugging_face(name, **changes)
    model.save_pretrained(folder, safe_serialization=True)
    return model


def latent_backends() -> dict[str, str]:
    """Every backend of the registry that keeps latents: why it cannot run here, or nothing."""
    return {name: one.unavailable_because() for name, one in BACKENDS.items() if one.capabilities().mla}


def texts_of(count: int, seed: int = 3) -> list[tuple[Text, int]]:
    """(tokens, how many of them are the prompt), two beginnings between them: some find their blocks in the cache."""
    rng = Random(seed)
    beginnings = [[rng.randrange(VOCAB) for _ in range(LONGEST)] for _ in range(2)]
    made = []
    for _ in range(count):
        prompt, outputs, common = rng.randint(1, 34), rng.randint(1, 24), rng.randint(0, 30)
        tokens = rng.choice(beginnings)[:common] + [rng.randrange(VOCAB) for _ in range(LONGEST)]
        made.append((tokens[: prompt + outputs], prompt))
    return made


def expected(model: Any, texts: Sequence[tuple[Text, int]]) -> list[torch.Tensor]:
    """Logits [outputs, V] of each text, from which its tokens behind the prompt would be chosen."""
    return [logits_of(model, tokens)[prompt - 1 : -1].float() for tokens, prompt in texts]


def engine_of(folder: Path, **options: Any) -> Engine:
    """On the CPU unless told otherwise."""
    limits = {"max_num_seqs": SEQS, "max_num_batched_tokens": BUDGET, "max_model_len": LONGEST}
    return Engine(EngineConfig(str(folder), **{**limits, **options}))


class Logits:
    """Keeps what an executor shows, by request, on the host."""

    def __init__(self) -> None:
        self.rows: dict[object, list[torch.Tensor]] = {}

    def __call__(self, requests: Sequence[Request], logits: torch.Tensor) -> None:
        for request, row in zip(requests, logits.float().cpu(), strict=True):
            self.rows.setdefault(request.request_id, []).append(row.clone())


class Served:
    """What became of a run."""

    def __init__(self, logits: list[torch.Tensor], steps: list[Any], preempted: int, swapped: int, hits: int) -> None:
        self.logits, self.steps = logits, steps
        self.num_preempted, self.num_swapped, self.num_hit_tokens = preempted, swapped, hits


def forced(
    engine: Engine,
    texts: Sequence[tuple[Text, int]],
    *,
    block_size: int,
    num_slots: int,
    allocator: str = "paged",
    budget: int = BUDGET,
    preemption: str = "recompute",
    kernel: str = "paged",
    padded: bool | None = None,
) -> Served:
    """Runs all texts at once, their outputs forced; logits [outputs, V] of each, in order."""
    swaps = preemption == "swap"
    pool = PoolConfig(
        num_slots // block_size, block_size, max_model_len=LONGEST, enable_caching=True,
        host_blocks=num_slots // block_size if swaps else 0,
    )  # fmt: skip
    rules = SchedulerConfig(
        LONGEST, max_num_seqs=SEQS, max_num_batched_tokens=budget, full_sequence_gate=False, preemption=preemption
    )
    scheduler = Scheduler(rules, make_allocator(allocator, pool))
    logits = Logits()
    engine.release()
    executor = engine._assemble(scheduler.allocator, kernel, watch=logits, padded=padded)
    if engine.device.type == "cuda":
        warm_up(executor)
    for cache in executor.kv.caches:
        cache.fill_(torch.nan)  # what is read before it is written shows in every logit
    for place, (tokens, prompt) in enumerate(texts):
        content = TokenContent(list(tokens))
        scheduler.add(Request(place, prompt, len(tokens) - prompt, content=content))
    preempted = swapped = 0
    while scheduler.has_work:
        batch = step(scheduler, executor).batch
        preempted += len(batch.preempted)
        swapped += len(batch.to_host)
    executor.close()
    rows = [torch.stack(logits.rows[place]) for place in range(len(texts))]
    return Served(rows, executor.steps, preempted, swapped, scheduler.prefix.hits)


def dtypes_of(name: str) -> list[torch.dtype]:
    """What a backend is tried with."""
    return [dtype for dtype in BOUNDS if dtype in BACKENDS[name].capabilities().dtypes]


def sizes_of(name: str) -> list[int]:
    """Block sizes that a backend is tried with: two, or its own."""
    able = BACKENDS[name].capabilities()
    return [size for size in (16, 64) if able.block_sizes.allows(size)] or [able.default_block_size]


def rounded(model: Any, dtype: torch.dtype) -> Any:
    """A copy with parameters as they are in that type; frequencies are not rounded, as no engine rounds them."""
    copy = deepcopy(model)
    with torch.no_grad():
        for parameter in copy.parameters():
            parameter.copy_(parameter.to(dtype))
    return copy


def computed_in(model: Any, dtype: torch.dtype) -> Any:
    """A copy that computes in that type; frequencies stay as they are."""
    copy = deepcopy(model)
    kept = {name: buffer.clone() for name, buffer in copy.named_buffers()}
    copy.to(dtype)
    for name, buffer in kept.items():
        module, _, own = name.rpartition(".")
        setattr(copy.get_submodule(module), own, buffer)
    return copy


def captured(engine: Engine, served: Served) -> bool:
    """Whether steps were graphs where they should have been, and there were decodes alone, mixed ones, chunks alone."""
    wanted = engine.device.type == "cuda" and engine.config.graphs and never_waits(engine.backend)
    kinds = {(one.num_decodes > 0, one.num_chunk_tokens > 0) for one in served.steps}
    return all(one.graph == wanted for one in served.steps) and len(kinds) == 3


def furthest(got: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]) -> float:
    """The largest difference of any logit; NaN if any is."""
    assert all(one.shape == other.shape for one, other in zip(got, wanted, strict=True))
    return float(torch.stack([(one - other).abs().max() for one, other in zip(got, wanted, strict=True)]).max())


def distance(got: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor], dtype: torch.dtype) -> float:
    """The largest difference of any logit; in a narrower type than float32 the root mean square of all differences, by
    that of the logits."""
    if dtype == torch.float32:
        return furthest(got, wanted)
    apart, whole = torch.cat(list(got)) - torch.cat(list(wanted)), torch.cat(list(wanted))
    return float(apart.square().mean().sqrt() / whole.square().mean().sqrt())
