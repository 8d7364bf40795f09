"""The engine on a CUDA device: graphs give what single commands give, memory stays where it is, time is all there.

PAGELAB_GPU=1 python -m pytest tests/engine/worker/test_gpu_engine.py
"""

from __future__ import annotations

import gc
import json
import os
import time

import pytest

torch = pytest.importorskip("torch", reason="the engine computes on torch tensors")

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
    "model_type": "qwen3",
    "vocab_size": 32_000,
    "hidden_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "intermediate_size": 2816,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
LONGEST, SEQS, BUDGET = 1024, 64, 512


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    (path / "config.json").write_text(json.dumps(SHAPE))
    return str(path)


def engine_of(folder, **options):
    limits = {"max_num_seqs": SEQS, "max_num_batched_tokens": BUDGET, "max_model_len": LONGEST}
    return Engine(EngineConfig(folder, device="cuda", weights_seed=0, **limits, **options))


def requests(count, *, prompt=90, output=40):
    rng = torch.Generator().manual_seed(1)
    draw = lambda low, high: int(torch.randint(low, high, (1,), generator=rng))  # noqa: E731
    made = []
    for index in range(count):
        length = draw(1, 2 * prompt)
        tokens = torch.randint(0, SHAPE["vocab_size"], (length,), generator=rng).tolist()
        made.append(Request(index, length, draw(1, 2 * output), content=TokenContent(tokens)))
    return made


class Logits:
    """Keeps what the executor shows, on the host."""

    def __init__(self):
        self.rows = []

    def __call__(self, asked, logits):
        self.rows.append(([request.request_id for request in asked], logits.float().cpu().clone()))


def serve(engine, name="paged", *, slots=4096, size=16, count=80, kernel="paged", watch=None, each=None, warm_up=True):
    """Runs all requests at once; the executor, preemptions and seconds."""
    pool = PoolConfig(slots // size, size, max_model_len=LONGEST)
    limits = SchedulerConfig(LONGEST, max_num_seqs=SEQS, max_num_batched_tokens=BUDGET)
    scheduler = Scheduler(limits, make_allocator(name, pool))
    executor = engine.executor(scheduler.allocator, kernel=kernel, watch=watch, warm_up=warm_up)
    for request in requests(count):
        scheduler.add(request)
    preemptions = 0
    torch.cuda.synchronize()
    began = time.perf_counter()
    while scheduler.has_work:
        preemptions += len(step(scheduler, executor).batch.preempted)
        if each is not None:
            each(executor)
    torch.cuda.synchronize()
    return executor, preemptions, time.perf_counter() - began


def test_graphs_and_single_commands_give_the_same_logits_bit_by_bit(folder):
    by_graph, by_command = Logits(), Logits()
    first, preemptions, _ = serve(engine_of(folder), watch=by_graph)
    second, _, _ = serve(engine_of(folder, graphs=False), watch=by_command)
    assert preemptions > 0
    assert any(one.graph for one in first.steps)
    assert not any(one.graph for one in second.steps)
    assert first.outputs == second.outputs
    assert len(by_graph.rows) == len(by_command.rows)
    for (who, left), (same, right) in zip(by_graph.rows, by_command.rows, strict=True):
        assert who == same
        assert torch.equal(left, right)


@pytest.mark.parametrize("name", ["paged", "orca-max", "contiguous-chunk(64)-first-fit"])
def test_after_the_warm_up_nothing_asks_the_device_for_memory(folder, name):
    calls, places = set(), set()

    def look(executor):
        calls.add(torch.cuda.memory_stats()["segment.all.allocated"])
        places.add(tuple(executor.kv.data_ptrs))

    executor, _, _ = serve(engine_of(folder), name, each=look)
    assert len(executor.steps) > 50
    assert len(calls) == 1
    assert len(places) == 1


@pytest.mark.skipif("PYTEST_XDIST_WORKER" in os.environ, reason="other processes' kernels stand between the events")
@pytest.mark.parametrize("kernel", ["paged", "contiguous"])
def test_steps_add_up_to_the_wall_clock(folder, kernel):
    gc.collect()
    gc.disable()
    try:
        executor, _, seconds = serve(engine_of(folder), "orca-pow2", kernel=kernel, slots=65_536)
    finally:
        gc.enable()
    measured = sum(one.duration_ps for one in executor.steps) / 1e12
    assert measured == pytest.approx(seconds, rel=0.03)


def test_forced_tokens_give_the_logits_of_the_reference(folder):
    """bf16 on the device against float32 on the CPU, same weights, same tokens: within 2 % of the largest logit."""
    engine = engine_of(folder)
    found = Logits()
    pool = PoolConfig(64, 16, max_model_len=LONGEST)
    limits = SchedulerConfig(LONGEST, max_num_seqs=4, max_num_batched_tokens=64)
    tokens = [torch.randint(0, SHAPE["vocab_size"], (110 + 20 * row,)).tolist() for row in range(3)]

    def run(served, watch):
        scheduler = Scheduler(limits, make_allocator("paged", pool))
        executor = served.executor(scheduler.allocator, watch=watch, warm_up=False)
        for row, text in enumerate(tokens):
            content = TokenContent(list(text))
            scheduler.add(Request(row, len(text) - 12, 12, content=content))
        while scheduler.has_work:
            step(scheduler, executor)

    run(engine, found)
    exact = Logits()
    plain = engine_of(folder)
    plain.device, plain.backend, plain.dtype = torch.device("cpu"), _reference(), torch.float32
    plain.model = _on_cpu(plain.model)
    run(plain, exact)
    assert len(found.rows) == len(exact.rows)
    for (who, left), (same, right) in zip(found.rows, exact.rows, strict=True):
        assert who == same
        assert (left - right).abs().max() < 2e-2 * right.abs().max()


def _reference():
    from engine.attention.registry import get_backend

    return get_backend("reference")


def _on_cpu(loaded):
    """The same weights in float32 on the host."""
    from dataclasses import fields, replace

    def moved(value):
        if isinstance(value, torch.Tensor):
            return value.float().cpu()
        if isinstance(value, list | tuple):
            return type(value)(moved(item) for item in value)
        if hasattr(value, "__dataclass_fields__"):
            return replace(value, **{one.name: moved(getattr(value, one.name)) for one in fields(value)})
        return value

    return replace(loaded, weights=moved(loaded.weights))
