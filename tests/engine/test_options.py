"""Every option of an LLM and of its engine: what it cannot be is refused by its name, before anything is loaded."""

from __future__ import annotations

import inspect
import math
from dataclasses import fields

import pytest

torch = pytest.importorskip("torch", reason="the engine computes on torch tensors")

from engine.construction import CHECKS  # noqa: E402
from engine.core.limits import SchedulerConfig  # noqa: E402
from engine.core.registry import PoolConfig, make_allocator  # noqa: E402
from engine.llm import LLM  # noqa: E402
from engine.worker.budget import EngineError  # noqa: E402
from engine.worker.engine import Engine, EngineConfig  # noqa: E402

OWN = {name: str(one.annotation) for name, one in inspect.signature(LLM).parameters.items() if name in CHECKS}
ENGINES = {field.name: str(field.type) for field in fields(EngineConfig) if field.name != "model"}
OPTIONS = {**ENGINES, **OWN}
NOBODY = "no-such-model"
"""Never looked up: options come first."""


def wrong(kind):
    """Values that no option of such an annotation has; None where it may not be None."""
    none = [] if "None" in kind else [None]
    if "bool" in kind:
        return [*none, 1, 0, "yes"]
    if "int" in kind:
        return [*none, True, False, 2.5, "4", -(1 << 70), [4]]
    if "float" in kind:
        return [*none, True, "0.5", math.nan, math.inf, [0.5]]
    return [*none, True, 3, "", ["paged"]]


BAD = [(name, value) for name, kind in OPTIONS.items() for value in wrong(kind)]


def test_every_option_is_among_these():
    own = set(inspect.signature(LLM).parameters) - {"model", "engine"}
    assert own == set(CHECKS) == set(OWN)
    assert {"attention", "tensor_parallel_size", "kv_limit_bytes", "graphs", "layout", "dtype"} <= set(ENGINES)


@pytest.mark.parametrize("name, value", BAD, ids=lambda value: repr(value)[:20])
def test_a_value_of_another_kind_is_refused_by_name(name, value):
    with pytest.raises(EngineError) as raised:
        LLM(NOBODY, **{name: value})
    said = str(raised.value)
    empty = {"attention": "unknown attention backend ''", "layout": "unknown KV layout ''"}
    assert said.startswith((f"{name}: expected ", f"unknown {name} ", empty.get(name, name + ": expected "))), said
    assert repr(value) in said


@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_without_an_llm_refuses_the_same(name):
    value = wrong(ENGINES[name])[1]
    with pytest.raises(EngineError, match=f"{name}: expected"):
        Engine(EngineConfig(NOBODY, **{name: value}))


@pytest.mark.parametrize(
    "name, value, complaint",
    [
        (
            "attention",
            "trition",
            "unknown attention backend 'trition'; did you mean triton or triton-mla? (known: auto, flash-attn-2, ",
        ),
        ("attention", None, "attention: expected one of auto, reference, "),
        ("layout", "kv-frist", "unknown KV layout 'kv-frist'; did you mean kv-first"),
        ("device", "gpu", "unknown device 'gpu'; did you mean cpu? (known: cpu, cuda)"),
        ("dtype", "bfloat61", "unknown dtype 'bfloat61'; did you mean bfloat16"),
        ("kernel", "page", "unknown kernel 'page'; did you mean paged? (known: contiguous, paged)"),
        ("preemption", "swop", "unknown preemption 'swop'; did you mean swap?"),
        ("kv_scales", "", "kv_scales: expected unit, per-head, per-tensor, or the name of a JSON file, got ''"),
        ("kv_limit_bytes", (1, True), "kv_limit_bytes: expected a whole number of at least 0, got True"),
        ("kv_limit_bytes", (1, 2), "kv_limit_bytes: expected one for all or one for each of 1 ranks"),
        ("gpu_memory_utilization", 1.5, "gpu_memory_utilization: expected a number above 0 and at most 1, got 1.5"),
        ("block_size", 0, "block_size: expected a whole number of at least 1, got 0"),
        ("kv_tokens", 0, "kv_tokens: expected a whole number of at least 1, got 0"),
        ("gpu_memory_utilization", 10**400, "gpu_memory_utilization: expected a number above 0"),
        ("seed", 1 << 63, "seed: expected a whole number"),
    ],
)
def test_what_is_allowed_and_what_is_near_is_said(name, value, complaint):
    with pytest.raises(EngineError) as raised:
        LLM(NOBODY, **{name: value})
    assert str(raised.value).startswith(complaint)


@pytest.mark.parametrize(
    "name, complaint",
    [
        ("tensor_parallel", "unknown option of LLM 'tensor_parallel'; did you mean tensor_parallel_size?"),
        ("max_num_seq", "unknown option of LLM 'max_num_seq'; did you mean max_num_seqs"),
        ("kv_dtype", "unknown option of LLM 'kv_dtype'; did you mean dtype or kv_cache_dtype?"),
        ("zzz", "unknown option of LLM 'zzz'; known: allocator, attention, block_size, "),
    ],
)
def test_an_unknown_option_is_answered_with_the_nearest(name, complaint):
    with pytest.raises(EngineError) as raised:
        LLM(NOBODY, **{name: 1})
    assert str(raised.value).startswith(complaint)


@pytest.mark.parametrize("model", [None, 3, "", ["llama-3-8b"]])
def test_what_is_no_model_is_refused_by_name(model):
    with pytest.raises(EngineError, match=r"model: expected a catalogue name, a Hugging Face folder or a \.gguf file"):
        LLM(model)


RULES = {field.name: str(field.type) for field in fields(SchedulerConfig)}
COUNTS = ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "long_prefill_token_threshold")


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("value", [True, 2.5, "fcsf", -1])
def test_the_schedulers_rules_are_refused_by_name(name, value):
    if isinstance(value, bool) and RULES[name] == "bool":
        pytest.skip("that is what it is")
    with pytest.raises(ValueError, match=f"{name}: expected|unknown {name} 'fcsf'"):
        SchedulerConfig(**{"max_model_len": 8, name: value})


@pytest.mark.parametrize("allocator", ["paged", "orca-max", "virtual"])
@pytest.mark.parametrize("sizes", [(True, 4), (4, True), (4.0, 4), (4, 2.5), (0, 4), (4, 0)])
def test_a_pool_has_whole_sizes(allocator, sizes):
    with pytest.raises(ValueError, match="whole, positive sizes"):
        make_allocator(allocator, PoolConfig(*sizes, max_model_len=8))
