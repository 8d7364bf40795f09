"""The `triton` backend through the interface, small, in Triton's interpreter; the kernels' own tests go further."""

import math
import os

import pytest
import torch

from engine.attention import AttentionLayer, KVLayout, LayerConfig, MetadataBuilder, get_backend
from tests.engine.attention.scenes import TOLERANCE, Scene, step, worst

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="tensors on the CPU need Triton's interpreter"
)
SHAPE = (4, 2, 16)
CONFIG = LayerConfig(*SHAPE, scale=0.25)
LAYOUTS = get_backend("triton").capabilities().layouts
ROWS = {
    "decode": [(1, 1), (1, 9)],
    "prefill": [(3, 3), (5, 5)],
    "chunked": [(2, 5)],
    "mixed": [(1, 6), (1, 4), (3, 8)],
}
"""(query length, sequence length), about blocks of 4 and of 5."""


def scene_of(kind: str, block_size: int = 4, dtype: torch.dtype = torch.float32) -> Scene:
    return Scene(ROWS[kind], block_size, (*SHAPE, SHAPE[2]), dtype)


@pytest.mark.parametrize("kind", sorted(ROWS))
@pytest.mark.parametrize("layout,block_size", [(LAYOUTS[0], 4), (LAYOUTS[1], 5), (LAYOUTS[2], 4)])
def test_a_step_equals_the_definition(kind, layout, block_size):
    error, cache_is_right = step(scene_of(kind, block_size), "triton", CONFIG, layout)
    assert error < TOLERANCE[torch.float32]
    assert cache_is_right


@pytest.mark.parametrize("window,soft_cap", [(3, 0.0), (0, 1.5)])
def test_window_and_soft_cap_reach_both_kernels(window, soft_cap):
    config = LayerConfig(*SHAPE, scale=0.25, window=window, soft_cap=soft_cap)
    error, cache_is_right = step(scene_of("mixed"), "triton", config)
    assert error < TOLERANCE[torch.float32]
    assert cache_is_right


def test_a_decode_step_may_have_padded_rows_and_its_own_output():
    scene = Scene([(1, 6)], 4, (*SHAPE, SHAPE[2]), torch.float32)
    cache = scene.poisoned("triton", KVLayout.KV_FIRST)
    scene.fill(cache, KVLayout.KV_FIRST)
    metadata = MetadataBuilder(4).build([1], [6], scene.tables, num_padded_seqs=1)
    q, k, v = (torch.cat((x, torch.full_like(x, math.nan))) for x in scene.new_tokens())
    before = cache.isnan().sum()
    out = torch.full_like(q, math.nan)
    result = AttentionLayer(get_backend("triton"), CONFIG, cache)(q, k, v, metadata, out)
    assert result is out
    assert worst(out[:1], scene.expected(CONFIG)) < TOLERANCE[torch.float32]
    assert not out[1].any()
    assert cache.isnan().sum() == before - 2 * SHAPE[1] * SHAPE[2]  # one token's K and V, nothing of the padded row


def test_a_planted_read_before_write_is_nan(monkeypatch):
    def swapped(self, query, key, value, kv_cache, metadata, out=None):
        result = self.attend(query, kv_cache, metadata, out)
        self.write(key, value, kv_cache, metadata)
        return result

    monkeypatch.setattr("engine.attention.triton_backend.TritonImpl.forward", swapped)
    error, cache_is_right = step(scene_of("mixed"), "triton", CONFIG)
    assert error == math.inf
    assert cache_is_right


@pytest.mark.parametrize("layout", LAYOUTS)
def test_block_copies_equal_the_references(layout):
    pairs = torch.tensor([[0, 1], [1, 2], [2, 0]])
    ours = [torch.randn(layout.shape(4, 3, 2, 16)) for _ in range(2)]
    theirs = [cache.clone() for cache in ours]
    get_backend("triton").copy_blocks(ours, pairs, layout)
    get_backend("reference").copy_blocks(theirs, pairs, layout)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
