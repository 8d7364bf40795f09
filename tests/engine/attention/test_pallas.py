"""The backend `pallas`, interpreted on the CPU: equal to attention by its definition over pools full of NaN."""

import dataclasses
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from engine.attention import AttentionInputError, AttentionLayer, KVLayout, LayerConfig, get_backend
from tests.engine.attention.kernels.pools import causal
from tests.engine.attention.libraries.shared_pool import SharedPool, bits
from tests.engine.attention.scenes import TOLERANCE, Scene, batch, step, worst

pytest.importorskip("jax", reason="the extra pallas is not installed")

ROOT = Path(__file__).resolve().parents[3]
SHAPE, ODD = (4, 2, 16), (6, 2, 24)
"""H, KH, D: one in which the group and the head size are no powers of two."""
LAYOUT = KVLayout.INTERLEAVED


def config_of(shape, **more):
    return LayerConfig(*shape, scale=0.25, **more)


def scene_of(rows, block_size, shape=SHAPE, dtype=torch.float32):
    return Scene(rows, block_size, (*shape, shape[2]), dtype)


@pytest.mark.parametrize(
    "kind,block_size,shape",
    [
        ("decode", 1, SHAPE),
        ("decode", 16, ODD),
        ("decode", 32, SHAPE),
        ("prefill", 4, ODD),
        ("chunked", 16, SHAPE),
        ("mixed", 3, ODD),
    ],
)
def test_a_step_equals_the_definition(kind, block_size, shape):
    error, cache_is_right = step(scene_of(batch(kind, block_size), block_size, shape), "pallas", config_of(shape))
    assert error < TOLERANCE[torch.float32]
    assert cache_is_right


@pytest.mark.parametrize("window,soft_cap", [(5, 0.0), (0, 1.5)])
def test_window_and_soft_cap_equal_the_definition(window, soft_cap):
    rows = [(1, 40), (1, 3), (7, 33)]
    error, cache_is_right = step(scene_of(rows, 4), "pallas", config_of(SHAPE, window=window, soft_cap=soft_cap))
    assert error < TOLERANCE[torch.float32]
    assert cache_is_right


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_narrow_types_are_within_their_rounding(dtype):
    error, cache_is_right = step(scene_of([(1, 40), (1, 3), (1, 17)], 4, dtype=dtype), "pallas", config_of(SHAPE))
    assert error < TOLERANCE[dtype]
    assert cache_is_right


def prepared(rows=((1, 6), (1, 19)), block_size=4):
    """Scene, its cache with what was there before the step, its metadata."""
    scene = scene_of(list(rows), block_size)
    cache = scene.poisoned("pallas", LAYOUT)
    scene.fill(cache, LAYOUT)
    return scene, cache, scene.metadata(get_backend("pallas").get_builder_cls()(block_size))


def layer_of(cache):
    return AttentionLayer(get_backend("pallas"), config_of(SHAPE), cache)


def test_rows_of_length_0_and_tokens_of_no_row_give_0_and_are_not_written():
    scene, cache, _ = prepared()
    builder = get_backend("pallas").get_builder_cls()(4)
    metadata = builder.build([1, 1], [6, 19], scene.tables, num_padded_seqs=2)
    slots = torch.cat([metadata.slot_mapping, torch.full((3,), -1)])
    metadata = dataclasses.replace(metadata, slot_mapping=slots)
    q, k, v = (torch.cat([x, torch.full((5, *x.shape[1:]), math.nan)]) for x in scene.new_tokens())
    before, out = cache.isnan().sum(), torch.full_like(q, math.nan)
    assert layer_of(cache)(q, k, v, metadata, out) is out
    assert worst(out[:2], scene.expected(config_of(SHAPE))) < TOLERANCE[torch.float32]
    assert not out[2:].any()
    assert cache.isnan().sum() == before - 2 * 2 * SHAPE[1] * SHAPE[2]


def test_rows_from_num_seqs_on_are_never_looked_at():
    scene, cache, made = prepared()
    behind = torch.full((2,), 10**6, dtype=torch.int32)
    no_blocks = torch.full((2, made.block_tables.shape[1]), -3, dtype=torch.int32)
    roomy = dataclasses.replace(
        made,
        block_tables=torch.cat([made.block_tables, no_blocks]),
        context_lens=torch.cat([made.context_lens, behind]),
        query_start_loc=torch.cat([made.query_start_loc, behind]),
    )
    out = layer_of(cache)(*scene.new_tokens(), roomy)
    assert worst(out, scene.expected(config_of(SHAPE))) < TOLERANCE[torch.float32]


def test_the_pool_is_read_where_it_lies():
    """Nothing of it is copied: JAX's array has its address, a value planted there is seen at once."""
    pool = SharedPool([(1, 5), (1, 40), (1, 17)], LAYOUT, 4, SHAPE, torch.float32, "cpu")
    layer, metadata = pool.impl("pallas"), pool.metadata("pallas")
    assert layer._from_torch(pool.cache, copy=False).unsafe_buffer_pointer() == pool.cache.data_ptr()
    layer.write(pool.k, pool.v, pool.cache, metadata)
    before = bits(pool.cache).clone()
    assert pool.worst(layer.attend(pool.q, pool.cache, metadata), pool.expected()) < 1e-5
    assert torch.equal(bits(pool.cache), before)
    _, values = pool.views()
    values[pool.tables[1][2], 3] = 30.0
    pool.held[1][1][2 * 4 + 3] = 30.0
    planted = causal(pool.q[1:2], pool.held[0][1], pool.held[1][1], 39, pool.config().scale, 0, 0.0)
    out = layer.attend(pool.q, pool.cache, metadata)
    assert (out[1:2] - planted).abs().max() < 1e-5 * planted.abs().max()


def test_all_layers_of_a_step_find_its_addresses():
    scene, cache, metadata = prepared()
    layer_of(cache)(*scene.new_tokens(), metadata)
    made = metadata.plans["pallas"]
    layer_of(cache.clone())(*scene.new_tokens(), metadata)
    assert metadata.plans["pallas"] is made
    assert not dataclasses.replace(metadata, context_lens=metadata.context_lens - 1).plans


@pytest.mark.parametrize(
    "cache",
    [torch.zeros(8, 4, 4, 16)[::2], torch.zeros(1000)[1:513].view(2, 4, 4, 16)],
    ids=["strided", "not aligned"],
)
def test_a_pool_that_jax_would_copy_is_refused_before_anything_is_written(cache):
    scene, _, metadata = prepared([(1, 3)])
    with pytest.raises(AttentionInputError, match="kv_cache: expected contiguous, and on a CPU at a multiple of 64"):
        layer_of(cache)(*scene.new_tokens(), metadata)
    assert not cache.any()


def test_a_planted_read_before_write_is_nan(monkeypatch):
    def swapped(self, query, key, value, kv_cache, metadata, out=None):
        result = self.attend(query, kv_cache, metadata, out)
        self.write(key, value, kv_cache, metadata)
        return result

    monkeypatch.setattr("engine.attention.pallas_backend.PallasImpl.forward", swapped)
    error, cache_is_right = step(scene_of([(1, 6), (1, 19)], 4), "pallas", config_of(SHAPE))
    assert error == math.inf
    assert cache_is_right


def test_block_copies_equal_the_references():
    ours = [torch.randn(LAYOUT.shape(4, 3, 2, 16)) for _ in range(2)]
    theirs, pairs = [cache.clone() for cache in ours], torch.tensor([[0, 1], [1, 2], [2, 0]])
    get_backend("pallas").copy_blocks(ours, pairs)
    get_backend("reference").copy_blocks(theirs, pairs, LAYOUT)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize(
    "kind,sizes,dtype",
    [
        (1, (8, 8, 32, 8, 128, 16), "bfloat16"),
        (16, (64, 8, 32, 8, 128, 16), "bfloat16"),
        (21, (64, 8, 6, 2, 80, 5), "float32"),
        (16, (64, 8, 32, 8, 256, 16), "float16"),
    ],
)
def test_the_kernel_lowers_to_triton_for_a_gpu(kind, sizes, dtype):
    """What a device would compile, made without one: sizes that Triton does not take are found here."""
    import jax

    from engine.attention import pallas_kernel

    if jax.__version_info__ >= (0, 11):
        pytest.skip("this version of jax asks for the device itself")
    tokens, rows, heads, kv_heads, size, block_size = sizes

    def like(*shape, kind="int32"):
        return jax.ShapeDtypeStruct(shape, kind)

    addresses = pallas_kernel.Step(like(rows, 8), like(rows), like(rows + 1), like(1))
    tiling = pallas_kernel.Tiling(heads, 0.1, 10, 2.0, queries=kind, keys=32, interpret=False)
    arrays = like(tokens, heads, size, kind=dtype), like(100, block_size, 2 * kv_heads, size, kind=dtype)
    lowered = pallas_kernel.compiled.trace(*arrays, addresses, tiling=tiling).lower(lowering_platforms=("cuda",))
    assert "xla.gpu.triton" in lowered.as_text()


WITHOUT_JAX = """
import sys
import torch
from engine.attention import *
print("jax" in sys.modules)
sys.modules["jax"] = None
backend, config = get_backend("pallas"), LayerConfig(4, 2, 16, 0.25)
print({row["backend"]: row["unavailable_because"] for row in capability_table()}["pallas"])
(cache,) = allocate_kv_caches(backend, config, num_layers=1, num_blocks=2, block_size=4, dtype=torch.float32)
try:
    AttentionLayer(backend, config, cache)
except AttentionInputError as error:
    print(error)
"""


def test_nothing_imports_jax_before_a_layer_is_made_and_without_it_that_says_what_to_install():
    done = subprocess.run([sys.executable, "-c", WITHOUT_JAX], cwd=ROOT, capture_output=True, text=True, check=False)
    said = "jax is not installed: pip install -e '.[pallas]' (on a GPU: 'jax[cuda13]')"
    assert done.stdout.splitlines() == ["False", said, said], done.stderr
