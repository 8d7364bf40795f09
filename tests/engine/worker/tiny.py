"""A decoder small enough for tests, its tokens by recomputation from the first on, and a run through the executor."""

from __future__ import annotations

import os
from dataclasses import replace
from random import Random

import numpy as np
import torch

from engine.attention.builders import MetadataBuilder
from engine.attention.registry import get_backend
from engine.core.content import TokenContent
from engine.core.limits import SchedulerConfig
from engine.core.registry import PoolConfig, make_allocator
from engine.core.request import Request
from engine.core.scheduler import Scheduler
from engine.core.step import step
from engine.model.architecture import architecture_of
from engine.model.decoder import Decoder
from engine.model.ops import TorchOps
from engine.model.random_weights import random_weights
from engine.worker.executor import ModelExecutor
from engine.worker.kv_memory import KVMemory
from engine.worker.limits import Limits

VOCAB, LONGEST = 96, 64
ON_DEVICE = os.environ.get("PAGELAB_GPU") == "1"
DEVICE, BACKEND = ("cuda", "triton") if ON_DEVICE else ("cpu", "reference")
CONFIG = {
    "model_type": "llama",
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": LONGEST,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10_000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
}
ARCHITECTURE = architecture_of(CONFIG, "tests")


def sharp_weights():
    """Random weights whose head makes near ties rare."""
    weights = random_weights(ARCHITECTURE, seed=3, dtype=torch.float32, device=DEVICE)
    return replace(weights, lm_head=weights.lm_head * 8)


WEIGHTS = sharp_weights()


def decoder_over(
    num_blocks, block_size, *, backend=BACKEND, layout=None, kernel="paged", ops=None, max_tokens=256, host_blocks=0
):
    """A decoder and its KV memory, poisoned: what is read before it is written shows in every logit."""
    shape = ARCHITECTURE
    kv = KVMemory(
        get_backend(backend),
        [shape.layer_config(layer) for layer in range(shape.num_layers)],
        num_blocks=num_blocks,
        block_size=block_size,
        dtype=torch.float32,
        device=DEVICE,
        layout=layout,
        kernel=kernel,
        host_blocks=host_blocks,
    )
    for cache in kv.caches:
        cache.fill_(float("nan"))
    if kv.host is not None:
        kv.host.blocks.fill_(float("nan"))
    return Decoder(shape, WEIGHTS, ops or default_ops(), kv, max_tokens=max_tokens, max_num_seqs=64), kv


def default_ops():
    """Fused on a device."""
    if not ON_DEVICE:
        return TorchOps()
    from engine.model.kernels.triton_ops import TritonOps

    return TritonOps()


def recomputed(prompt, count):
    """(greedy tokens, logits [count, V]) after `prompt`, each from a computation of everything before it."""
    tokens, rows = list(prompt), []
    for _ in range(count):
        decoder, _ = decoder_over(1, LONGEST)
        size = len(tokens)
        data = MetadataBuilder(LONGEST, torch.device(DEVICE)).build([size], [size], [[0]])
        data = replace(data, num_decodes=0)
        ids, positions = torch.tensor(tokens, device=DEVICE), torch.arange(size, device=DEVICE)
        hidden = decoder.forward(ids, positions, data.slot_mapping, data)
        rows.append(decoder.logits(hidden[-1:])[0].clone())
        tokens.append(int(rows[-1].argmax()))
    return tokens[len(prompt) :], torch.stack(rows)


def executor_over(allocator, *, max_num_seqs=16, max_num_batched_tokens=256, backend=BACKEND, layout=None,
                  kernel="paged", ops=None, **options):  # fmt: skip
    """The executor of an allocator's pool."""
    decoder, kv = decoder_over(
        allocator.num_blocks, allocator.block_size, backend=backend, layout=layout, kernel=kernel, ops=ops,
        host_blocks=getattr(allocator, "host_blocks", 0),
    )  # fmt: skip
    limits = Limits(max_num_seqs, max_num_batched_tokens, LONGEST)
    return ModelExecutor(decoder, kv, allocator, limits, graphs=ON_DEVICE, **options)


def requests(count=8, *, seed=5, content=True, longest_prompt=30, longest_output=24):
    """Two texts between them, prompts of several blocks, outputs long enough to outgrow a small pool together."""
    rng = Random(seed)
    texts = [[rng.randrange(VOCAB) for _ in range(LONGEST)] for _ in range(2)]
    made = []
    for index in range(count):
        prompt, output = rng.randint(1, longest_prompt), rng.randint(1, longest_output)
        tokens = TokenContent(rng.choice(texts)[:prompt]) if content else None
        made.append(Request(index, prompt, output + 3, oracle_output_tokens=output, content=tokens))
    return made


def scheduler_over(name, capacity_slots, block_size, *, caching=True, **limits):
    """A scheduler over an allocator of that many slots."""
    pool = PoolConfig(capacity_slots // block_size, block_size, max_model_len=LONGEST, enable_caching=caching)
    rules = {"max_num_seqs": 16, "max_num_batched_tokens": 256, **limits}
    return Scheduler(SchedulerConfig(LONGEST, **rules), make_allocator(name, pool))


def serve(scheduler, executor, made, *, most_steps=2_000):
    """All requests at once, until none is left; the number of preemptions."""
    for request in made:
        assert not scheduler.refuses_forever(request)
        scheduler.add(request)
    preemptions = 0
    for _ in range(most_steps):
        if not scheduler.has_work:
            return preemptions
        preemptions += len(step(scheduler, executor).batch.preempted)
    raise AssertionError(f"not served in {most_steps} steps")


def prompt_of(request):
    """Its tokens, as given."""
    return list(np.array(request.content.tokens[: request.num_prompt_tokens]))
