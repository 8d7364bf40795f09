"""The engine over a library's attention on a CUDA device gives the logits that it gives over our kernels.

    PAGELAB_GPU=1 PAGELAB_FA3_LIBRARY=FILE python -m pytest -rs tests/engine/worker/test_gpu_engine_libraries.py

Tokens are forced, so that every step of both engines is the same.
"""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch", reason="the engine computes on torch tensors")

from engine.attention import get_backend  # noqa: E402
from engine.core.content import TokenContent  # noqa: E402
from engine.core.limits import SchedulerConfig  # noqa: E402
from engine.core.registry import PoolConfig, make_allocator  # noqa: E402
from engine.core.request import Request  # noqa: E402
from engine.core.scheduler import Scheduler  # noqa: E402
from engine.core.step import step  # noqa: E402
from engine.worker.engine import Engine, EngineConfig  # noqa: E402
from tests.engine.worker.tiny import ON_DEVICE  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not (ON_DEVICE and torch.cuda.is_available()), reason="no CUDA device, or not PAGELAB_GPU=1"),
]
SHAPE = {
    "model_type": "llama",
    "vocab_size": 4096,
    "hidden_size": 1024,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "intermediate_size": 2048,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
OUTPUT = 12


def logits_of(folder, name, block_size):
    """Each step's logits with their requests, and whether any step was a graph."""
    limits = {"max_num_seqs": 4, "max_num_batched_tokens": 64, "max_model_len": 512}
    engine = Engine(EngineConfig(folder, device="cuda", weights_seed=0, attention=name, **limits))
    allocator = make_allocator("paged", PoolConfig(4096 // block_size, block_size, max_model_len=512))
    scheduler = Scheduler(SchedulerConfig(512, max_num_seqs=4, max_num_batched_tokens=64), allocator)
    rows = []
    executor = engine.executor(
        allocator, watch=lambda asked, logits: rows.append(([one.request_id for one in asked], logits.float().cpu()))
    )
    generator = torch.Generator().manual_seed(3)
    for row in range(4):
        text = torch.randint(0, SHAPE["vocab_size"], (80 + 40 * row,), generator=generator).tolist()
        scheduler.add(Request(row, len(text) - OUTPUT, OUTPUT, content=TokenContent(text)))
    while scheduler.has_work:
        step(scheduler, executor)
    return rows, any(one.graph for one in executor.steps)


@pytest.mark.parametrize("name,block_size", [("flashinfer", 16), ("flash-attn-3", 16), ("flash-attn-2", 256)])
def test_logits_are_those_over_our_kernels(name, block_size, tmp_path):
    if why := get_backend(name).unavailable_because():
        pytest.skip(f"{name}: {why}")
    (tmp_path / "config.json").write_text(json.dumps(SHAPE))
    ours, captured = logits_of(str(tmp_path), "triton", block_size)
    theirs, also = logits_of(str(tmp_path), name, block_size)
    assert captured
    assert not also  # their plans are of one step
    assert len(ours) == len(theirs) >= OUTPUT
    for (who, mine), (same, other) in zip(ours, theirs, strict=True):
        assert who == same
        assert (mine - other).abs().max() < 2e-2 * mine.abs().max()
