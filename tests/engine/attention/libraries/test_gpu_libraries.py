"""The libraries on a CUDA device, over the very pool, block table and slots that our kernels use, without any copy.

    PAGELAB_GPU=1 PAGELAB_FA3_LIBRARY=FILE PAGELAB_FLASH_MLA_LIBRARY=FILE \
        python -m pytest -rs tests/engine/attention/libraries/test_gpu_libraries.py

What is not installed is skipped with its reason. FlashInfer compiles a module for each head size, type, window and
soft-cap at first use; what needs more than the plain module is marked slow.
"""

import pytest
import torch
import triton

from engine.attention import AttentionInputError, KVLayout, LayerConfig, get_backend
from engine.attention.reference_mla import ReferenceMLAImpl
from tests.engine.attention.libraries.shared_pool import KINDS, SharedPool, bits

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or triton.knobs.runtime.interpret, reason="no CUDA device, or not PAGELAB_GPU=1"
    ),
]
BOUND = 5e-3
LIBRARIES = ["flashinfer", "flash-attn-3", "flash-attn-2"]
POOLS = [(KVLayout.KV_FIRST, 16), (KVLayout.BLOCK_FIRST, 64), (KVLayout.INTERLEAVED, 16), (KVLayout.BLOCK_FIRST, 256)]


def here(name):
    """Skips where the library is not."""
    if why := get_backend(name).unavailable_because():
        pytest.skip(f"{name}: {why}")
    return name


def pool_of(name, kind, layout, block_size, **more):
    here(name)
    if not get_backend(name).get_supported_block_sizes().allows(block_size):
        pytest.skip(f"{name} takes blocks of {get_backend(name).get_supported_block_sizes()}")
    return SharedPool(KINDS[kind], layout, block_size, **more)


@pytest.fixture(autouse=True)
def _memory_is_given_back():
    yield
    torch.cuda.empty_cache()


@pytest.mark.parametrize("layout,block_size", POOLS, ids=lambda value: getattr(value, "name", value))
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", LIBRARIES)
def test_a_library_and_our_kernel_give_the_same_on_one_pool(name, kind, layout, block_size):
    pool = pool_of(name, kind, layout, block_size)
    ours, theirs = pool.impl("triton"), pool.impl(name)
    theirs.write(pool.k, pool.v, pool.cache, pool.metadata(name))
    before = bits(pool.cache).clone()
    ours.write(pool.k, pool.v, pool.cache, pool.metadata("triton"))
    assert torch.equal(bits(pool.cache), before)
    expected = pool.expected()
    for layer, metadata in ((ours, pool.metadata("triton")), (theirs, pool.metadata(name))):
        out = torch.full_like(pool.q, torch.nan)
        assert layer.attend(pool.q, pool.cache, metadata, out) is out
        assert pool.worst(out, expected) <= BOUND
        assert pool.worst(layer.attend(pool.q, pool.cache, metadata), expected) <= BOUND
    assert torch.equal(bits(pool.cache), before)


@pytest.mark.parametrize("layout", [KVLayout.KV_FIRST, KVLayout.BLOCK_FIRST, KVLayout.INTERLEAVED])
@pytest.mark.parametrize("name", LIBRARIES)
def test_nothing_of_the_pool_is_copied(name, layout):
    """A pool of 2 GiB: a call of the library takes less than a twentieth of it, and sees what is planted there."""
    pool = pool_of(name, "mixed", layout, 256, spare_blocks=2048)
    assert pool.cache.nbytes > 2**31
    layer, metadata = pool.impl(name), pool.metadata(name)
    layer.write(pool.k, pool.v, pool.cache, metadata)
    layer.attend(pool.q, pool.cache, metadata)  # plans, takes workspaces
    torch.cuda.synchronize()
    held = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    out = layer.attend(pool.q, pool.cache, metadata)
    torch.cuda.synchronize()
    assert torch.cuda.max_memory_allocated() - held < pool.cache.nbytes // 20
    assert pool.worst(out, pool.expected()) <= BOUND
    _, v = pool.views()
    first = pool.tables[0][0]
    v[first, 3] = pool.held[1][0][3] = 40.0  # the fourth token of the first sequence
    planted = pool.expected()
    after = layer.attend(pool.q, pool.cache, metadata)
    assert pool.worst(out, planted) > 10 * BOUND
    assert pool.worst(after, planted) <= BOUND


@pytest.mark.parametrize("kind", ["decode", "mixed"])
@pytest.mark.parametrize("name", LIBRARIES)
def test_a_planned_step_is_captured_and_replayed_with_other_queries_and_values(name, kind):
    pool = pool_of(name, kind, KVLayout.BLOCK_FIRST, 256)
    layer, metadata, out = pool.impl(name), pool.metadata(name), torch.empty_like(pool.q)
    layer.forward(pool.q, pool.k, pool.v, pool.cache, metadata, out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        layer.forward(pool.q, pool.k, pool.v, pool.cache, metadata, out)
    pool.q.copy_(pool.q.flip(0))
    out.fill_(torch.nan)
    graph.replay()
    torch.cuda.synchronize()
    assert pool.worst(out, pool.expected()) <= BOUND


def test_flashinfer_says_that_a_step_is_planned_outside_of_a_graph():
    pool = pool_of("flashinfer", "decode", KVLayout.BLOCK_FIRST, 16)
    layer = pool.impl("flashinfer")
    layer.attend(pool.q, pool.cache, pool.metadata("flashinfer"))
    fresh = pool.metadata("flashinfer")
    torch.cuda.synchronize()
    with (
        pytest.raises(AttentionInputError, match="planned before the capture"),
        torch.cuda.graph(torch.cuda.CUDAGraph()),
    ):
        layer.attend(pool.q, pool.cache, fresh)


@pytest.mark.parametrize("name", LIBRARIES)
def test_steps_that_alternate_over_one_layer_keep_their_own_plans(name):
    pools = [pool_of(name, "decode", KVLayout.KV_FIRST, 256, seed=seed) for seed in (0, 1)]
    layer = pools[0].impl(name)
    steps = [pool.metadata(name) for pool in pools]
    for pool, step in zip(pools, steps, strict=True):
        layer.write(pool.k, pool.v, pool.cache, step)
    for _ in range(2):
        for pool, step in zip(pools, steps, strict=True):
            assert pool.worst(layer.attend(pool.q, pool.cache, step), pool.expected()) <= BOUND


@pytest.mark.parametrize("name", LIBRARIES)
def test_rows_behind_the_batch_give_zero(name):
    pool = pool_of(name, "decode", KVLayout.KV_FIRST, 256)
    metadata = pool.metadata(name, num_padded_seqs=3)
    layer, filler = pool.impl(name), torch.zeros(3, *pool.q.shape[1:], dtype=pool.dtype, device="cuda")
    kv_filler = filler[:, : pool.heads[1]]
    q, k, v = torch.cat((pool.q, filler)), torch.cat((pool.k, kv_filler)), torch.cat((pool.v, kv_filler))
    out = torch.full_like(q, torch.nan)
    layer.forward(q, k, v, pool.cache, metadata, out)
    assert pool.worst(out[:-3], pool.expected()) <= BOUND
    assert not out[-3:].any()


@pytest.mark.parametrize("name", LIBRARIES)
def test_the_output_may_be_the_query(name):
    pool = pool_of(name, "mixed", KVLayout.KV_FIRST, 256)
    expected, q = pool.expected(), pool.q.clone()
    out = pool.impl(name).forward(q, pool.k, pool.v, pool.cache, pool.metadata(name), q)
    assert out is q
    assert pool.worst(out, expected) <= BOUND


@pytest.mark.parametrize("window,soft_cap", [(100, 0.0), (0, 20.0), (300, 20.0)])
@pytest.mark.parametrize("kind", ["decode", "mixed"])
@pytest.mark.parametrize("name", [pytest.param("flashinfer", marks=pytest.mark.slow), "flash-attn-3", "flash-attn-2"])
def test_windows_and_soft_caps(name, kind, window, soft_cap):
    pool = pool_of(name, kind, KVLayout.KV_FIRST, 256)
    layer = pool.impl(name, window=window, soft_cap=soft_cap)
    out = layer.forward(pool.q, pool.k, pool.v, pool.cache, pool.metadata(name))
    assert pool.worst(out, pool.expected(window, soft_cap)) <= BOUND


@pytest.mark.parametrize("num_heads", [16, 128])
def test_flash_mla_reads_the_latents_as_the_specification_does(num_heads):
    here("flash-mla")
    backend, rank = get_backend("flash-mla"), 512
    config = LayerConfig(num_heads, 1, 576, 192**-0.5, kv_lora_rank=rank)
    lengths = [1, 63, 64, 65, 4000]
    counts = [-(-length // 64) for length in lengths]
    generator = torch.Generator("cuda").manual_seed(0)
    cache = torch.randn(sum(counts) + 8192, 64, 576, generator=generator, device="cuda").bfloat16()
    ids = torch.randperm(sum(counts), generator=torch.Generator().manual_seed(0)).tolist()
    tables = [[ids.pop() for _ in range(count)] for count in counts]
    step = backend.get_builder_cls()(64, torch.device("cuda")).build([1] * 5, lengths, tables)
    q = torch.randn(5, num_heads, 576, generator=generator, device="cuda").bfloat16()
    layout = backend.pick_layout()
    wanted = ReferenceMLAImpl(config, layout).attend(q.float(), cache.float(), step)
    layer = backend.get_impl_cls()(config, layout)
    assert layer.split(cache)[0].data_ptr() == cache.data_ptr()
    layer.attend(q, cache, step)
    held = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    out = layer.attend(q, cache, step)
    assert torch.cuda.max_memory_allocated() - held < cache.nbytes // 6
    error = (out.float() - wanted).flatten(1).norm(dim=1) / wanted.flatten(1).norm(dim=1)
    assert float(error.max()) <= BOUND
