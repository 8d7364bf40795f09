"""Whatever a layer cannot work with is refused by name before its cache or the output has changed, by every backend."""

import dataclasses
import math
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch

from engine.attention import (
    AttentionInputError,
    AttentionLayer,
    LayerConfig,
    allocate_kv_caches,
    get_backend,
)
from engine.attention.reference_mla import UpProjections
from tests.engine.attention.scenes import TOLERANCE, Scene, worst

needs_interpreter = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="tensors on the CPU need Triton's interpreter"
)
TRITON, TRITON_MLA = (pytest.param(name, marks=needs_interpreter) for name in ("triton", "triton-mla"))
PALLAS = pytest.param(
    "pallas", marks=pytest.mark.skipif(find_spec("jax") is None, reason="the extra pallas is not installed")
)
KV_BACKENDS = ["reference", "reference-pallas", TRITON, PALLAS]
ALL = [*KV_BACKENDS, "reference-mla", TRITON_MLA]
NOT_COUNTS = [-1, True, 2.0, math.nan, None, "2"]
WITHOUT_INTERPRETER = """
import torch
from engine.attention import *
backend, config = get_backend("triton"), LayerConfig(4, 2, 16, 0.25)
(cache,) = allocate_kv_caches(backend, config, num_layers=1, num_blocks=2, block_size=4, dtype=torch.float32)
step = MetadataBuilder(4).build([1], [1], [[0]])
try:
    AttentionLayer(backend, config, cache)(torch.ones(1, 4, 16), torch.ones(1, 2, 16), torch.ones(1, 2, 16), step)
except AttentionInputError as error:
    print(error, bool(cache.any()))
"""


class Step:
    """Two decodes and two chunks: what a layer is called with, to be spoilt piece by piece."""

    def __init__(self, name: str) -> None:
        backend, mla = get_backend(name), "mla" in name
        config = LayerConfig(4, 1 if mla else 2, 16, 0.25, kv_lora_rank=8 if mla else 0)
        (self.cache,) = allocate_kv_caches(
            backend, config, num_layers=1, num_blocks=9, block_size=4, dtype=torch.float32
        )
        self.layer = AttentionLayer(backend, config, self.cache)
        tables = [[0], [1, 2, 3], [4, 5], [6, 7]]
        self.metadata = backend.get_builder_cls()(4).build([1, 1, 3, 5], [3, 9, 7, 5], tables)
        self.query = torch.randn(10, 4, 16)
        self.key = torch.randn(10, *((1, 8) if mla else (2, 16)))
        self.value = torch.randn(10, *((1, 8) if mla else (2, 16)))
        self.out = torch.full((10, 4, 8 if mla else 16), 5.0)

    def changed(self, **values) -> None:
        """Other metadata."""
        self.metadata = dataclasses.replace(self.metadata, **values)

    def run(self) -> torch.Tensor:
        return self.layer(self.query, self.key, self.value, self.metadata, self.out)

    def refused(self, message: str) -> None:
        """By name; nothing has changed."""
        held, before = self.cache.clone(), self.out
        output = before.clone() if before.device.type == "cpu" else None
        with pytest.raises(AttentionInputError, match=message):
            self.run()
        assert torch.equal(self.cache, held)
        assert output is None or torch.equal(self.out, output)


def set_out(change):
    return lambda step: setattr(step, "out", change(step.out))


SPOILT = {
    "expanded tokens": (set_out(lambda out: out[:1].expand_as(out)), "out: expected a place in memory for each"),
    "expanded heads": (set_out(lambda out: out[:, :1].expand_as(out)), "out: expected a place in memory for each"),
    "overlapping rows": (
        set_out(lambda out: torch.zeros(10_000).as_strided(out.shape, (out.shape[2], out.shape[2], 1))),
        "out: expected a place in memory for each",
    ),
    "strided": (set_out(lambda out: torch.stack([out, out], -1)[..., 0]), "out: expected stride 1"),
    "elsewhere": (set_out(lambda out: out.to("meta")), "out: expected on cpu"),
    "no metadata": (lambda step: setattr(step, "metadata", None), "metadata: expected .*Metadata, got NoneType"),
    "an array": (
        lambda step: setattr(step, "query", step.query.numpy()),
        "query: expected a torch.Tensor, got ndarray",
    ),
    "no key": (lambda step: setattr(step, "key", None), "(key|k): expected a torch.Tensor, got NoneType"),
    "a float64 query": (lambda step: setattr(step, "query", step.query.double()), "expected float32, got float64"),
    "a bfloat16 value": (lambda step: setattr(step, "value", step.value.bfloat16()), "expected float32, got bfloat16"),
}


@pytest.mark.parametrize("backend", ALL)
@pytest.mark.parametrize("what", SPOILT)
def test_a_spoilt_call_changes_nothing(backend, what):
    step = Step(backend)
    spoil, message = SPOILT[what]
    spoil(step)
    step.refused(message)


@pytest.mark.parametrize("backend", ALL)
def test_metadata_of_another_backend_changes_nothing(backend):
    step = Step(backend)
    step.metadata = Step("reference" if "mla" in backend else "reference-mla").metadata
    step.refused("metadata: expected .*Metadata, got .*Metadata")


@pytest.mark.parametrize("backend", ["reference", TRITON])
@pytest.mark.parametrize("name", ["max_query_len", "max_seq_len", "num_decodes"])
@pytest.mark.parametrize("value", NOT_COUNTS)
def test_bounds_of_a_step_are_counts(backend, name, value):
    with pytest.raises(AttentionInputError, match=f"{name}: expected"):
        Step(backend).changed(**{name: value})


@pytest.mark.parametrize("backend", ["reference", "reference-pallas", "reference-mla"])
def test_two_tokens_in_one_slot_are_refused_where_contents_are_looked_at(backend):
    step = Step(backend)
    slots = step.metadata.slot_mapping.clone()
    slots[4] = slots[7]
    step.changed(slot_mapping=slots)
    step.refused(rf"slot_mapping: expected each slot once, got \[{int(slots[7])}\] again")


@pytest.mark.parametrize("num_seqs", [[-1], [5]])
def test_pallas_rows_are_counted(num_seqs):
    step = Step("reference-pallas")
    step.changed(num_seqs=torch.tensor(num_seqs, dtype=torch.int32))
    step.refused("num_seqs: expected 0 to 4")


@pytest.mark.parametrize(
    "values,message",
    [
        ({"num_seqs": torch.tensor([2, 2], dtype=torch.int32)}, r"num_seqs: expected shape \[1\]"),
        ({"num_seqs": torch.tensor([2.0])}, "num_seqs: expected int32"),
        ({"num_seqs": 3}, "num_seqs: expected a torch.Tensor"),
        ({"context_lens": torch.zeros(3, dtype=torch.int32)}, "block_tables: expected shape"),
        ({"slot_mapping": torch.zeros(10, dtype=torch.int64, device="meta")}, "expected on meta"),
    ],
)
def test_pallas_metadata_agrees_with_itself(values, message):
    with pytest.raises(AttentionInputError, match=message):
        Step("reference-pallas").changed(**values)


@pytest.mark.parametrize(
    "values,message",
    [
        *(({"num_decodes": value}, "num_decodes: expected") for value in [*NOT_COUNTS, 40]),
        *(({"num_prefills": value}, "num_prefills: expected") for value in NOT_COUNTS),
        ({"num_decodes": 0}, "decode: expected a part for 0 rows"),
        ({"num_prefills": 0}, "prefill: expected a part for 0 rows"),
        ({"decode": None}, "decode: expected a part for 2 rows"),
        ({"prefill": None}, "prefill: expected a part for 2 rows"),
        ({"num_decodes": 1}, r"decode.seq_lens: expected shape \[1\], got \[2\]"),
        ({"num_prefills": 3}, r"prefill.seq_lens: expected shape \[3\], got \[2\]"),
        ({"slot_mapping": torch.zeros(10, dtype=torch.int64, device="meta")}, "expected on meta"),
    ],
)
def test_mla_metadata_agrees_with_itself(values, message):
    with pytest.raises(AttentionInputError, match=message):
        Step("reference-mla").changed(**values)


def test_up_projections_of_another_type_change_nothing():
    step = Step("reference-mla")
    step.layer.impl.up = UpProjections(torch.randn(4, 8, 8).double(), torch.randn(4, 8, 5).double())
    step.out = torch.full((10, 4, 5), 5.0)
    step.refused("w_uk and w_uv: expected float32, got float64")


@pytest.mark.parametrize("backend", ALL)
@pytest.mark.parametrize("name", ["query", "key", "value", "out", "cache"])
def test_tensors_that_want_gradients_give_the_same_numbers(backend, name):
    plain, wanting = Step(backend), Step(backend)
    for tensor in ("query", "key", "value"):
        setattr(wanting, tensor, getattr(plain, tensor).clone())
    getattr(wanting, name).requires_grad_()
    assert torch.equal(plain.run(), wanting.run().detach())
    assert torch.equal(plain.cache, wanting.cache.detach())


@pytest.mark.parametrize("backend", KV_BACKENDS)
def test_the_output_may_be_the_query(backend):
    plain, same = Step(backend), Step(backend)
    for tensor in ("query", "key", "value"):
        setattr(same, tensor, getattr(plain, tensor).clone())
    same.out = same.query
    assert torch.equal(plain.run(), same.run())


@pytest.mark.parametrize("backend", ALL)
def test_rows_that_are_all_padding_give_zeros(backend):
    step = Step(backend)
    step.metadata = get_backend(backend).get_builder_cls()(4).build([], [], [], num_padded_seqs=3)
    for name in ("query", "key", "value", "out"):
        setattr(step, name, torch.full_like(getattr(step, name)[:3], math.nan))
    assert not step.run().any()
    assert not step.cache.any()


@pytest.mark.parametrize("backend", KV_BACKENDS)
def test_tokens_of_no_row_disturb_nobody(backend):
    """More slots than rows have tokens: a step padded to a size that was captured."""
    scene = Scene([(1, 6), (1, 3)], 4, (4, 2, 16, 16), torch.float32)
    chosen, config = get_backend(backend), LayerConfig(4, 2, 16, 0.25)
    cache = scene.poisoned(backend, chosen.pick_layout())
    scene.fill(cache, chosen.pick_layout())
    step = scene.metadata(chosen.get_builder_cls()(4))
    step = dataclasses.replace(step, slot_mapping=torch.cat([step.slot_mapping, torch.tensor([-1])]))
    q, k, v = (torch.cat((x, torch.full_like(x[:1], math.nan))) for x in scene.new_tokens())
    out = AttentionLayer(chosen, config, cache)(q, k, v, step)
    assert worst(out[:2], scene.expected(config)) < TOLERANCE[torch.float32]


def test_other_lengths_get_another_plan():
    """A step made from another one must not keep what was worked out for the lengths of that."""
    step = Step("reference").metadata
    step.plans["key"] = "of the old lengths"
    assert not dataclasses.replace(step, seq_lens=step.seq_lens - 1).plans


def test_tensors_on_a_cpu_need_the_interpreter():
    """Said before the write, not by Triton in the middle of the step."""
    pytest.importorskip("triton")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_INTERPRETER], capture_output=True, text=True, check=False, env=environment
    )
    assert done.stdout == (
        "kv_cache: expected on a CUDA device (or TRITON_INTERPRET=1 before the start), got cpu False\n"
    ), done.stderr
