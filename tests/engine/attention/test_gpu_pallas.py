"""The backend `pallas` on a CUDA device, compiled by JAX, over the very pool that our Triton kernels use.

    PAGELAB_GPU=1 python -m pytest -rs tests/engine/attention/test_gpu_pallas.py

Skips where JAX was installed without CUDA.
"""

import pytest
import torch

from engine.attention import KVLayout, get_backend
from tests.engine.attention.libraries.shared_pool import KINDS, SharedPool, bits
from tests.engine.worker.tiny import ON_DEVICE

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not (ON_DEVICE and torch.cuda.is_available()), reason="no CUDA device, or not PAGELAB_GPU=1"),
]
BOUND = {torch.bfloat16: 5e-3, torch.float16: 5e-3, torch.float32: 1e-5}
ROUNDS = 30


@pytest.fixture(autouse=True)
def _jax_has_the_device():
    """Skips where it has not; gives memory back, which JAX shares with torch."""
    if why := get_backend("pallas").unavailable_because():
        pytest.skip(why)
    import jax

    try:
        jax.devices("cuda")
    except RuntimeError as error:
        pytest.skip(f"jax has no CUDA device: {error}")
    yield
    torch.cuda.empty_cache()


def pool_of(kind, block_size=16, **more):
    return SharedPool(KINDS[kind], KVLayout.INTERLEAVED, block_size, **more)


@pytest.mark.parametrize(
    "heads,dtype",
    [
        ((32, 8, 128), torch.bfloat16),
        ((6, 2, 80), torch.float16),
        ((8, 8, 256), torch.bfloat16),
        ((4, 1, 64), torch.float32),
    ],
)
@pytest.mark.parametrize("block_size", [1, 16, 24])
@pytest.mark.parametrize("kind", KINDS)
def test_one_pool_gives_the_definitions_output(kind, block_size, heads, dtype):
    pool = pool_of(kind, block_size, heads=heads, dtype=dtype)
    layer, metadata = pool.impl("pallas"), pool.metadata("pallas")
    layer.write(pool.k, pool.v, pool.cache, metadata)
    before, out = bits(pool.cache).clone(), torch.full_like(pool.q, torch.nan)
    assert layer.attend(pool.q, pool.cache, metadata, out) is out
    assert pool.worst(out, pool.expected()) <= BOUND[dtype]
    assert torch.equal(bits(pool.cache), before)
    pool.impl("triton").write(pool.k, pool.v, pool.cache, pool.metadata("triton"))
    assert torch.equal(bits(pool.cache), before)


@pytest.mark.parametrize("window,soft_cap", [(100, 0.0), (0, 20.0), (1000, 20.0)])
@pytest.mark.parametrize("kind", KINDS)
def test_window_and_soft_cap(kind, window, soft_cap):
    pool = pool_of(kind)
    asks = {"window": window, "soft_cap": soft_cap}
    out = pool.impl("pallas", **asks).forward(pool.q, pool.k, pool.v, pool.cache, pool.metadata("pallas"))
    assert pool.worst(out, pool.expected(**asks)) <= BOUND[torch.bfloat16]


def test_nothing_of_the_pool_is_copied_and_half_of_it_lies_beyond_two_to_the_31_elements():
    """9 GiB: what JAX and torch hold besides stays below a twentieth of it."""
    import jax

    pool = pool_of("decode", 256, spare_blocks=9000)
    assert pool.cache.numel() > 2**32
    layer, metadata = pool.impl("pallas"), pool.metadata("pallas")
    assert layer._from_torch(pool.cache, copy=False).unsafe_buffer_pointer() == pool.cache.data_ptr()
    out = layer.forward(pool.q, pool.k, pool.v, pool.cache, metadata)
    assert pool.worst(out, pool.expected()) <= BOUND[torch.bfloat16]
    assert max(max(table) for table in pool.tables) * pool.cache.stride(0) > 2**31
    peak = jax.devices("cuda")[0].memory_stats()
    assert peak is None or peak["peak_bytes_in_use"] < pool.cache.nbytes / 20


@pytest.mark.parametrize("own_stream", [False, True])
def test_writes_reads_and_uses_of_the_output_keep_their_order(own_stream):
    """Torch fills the pool late, JAX reads it, torch changes it at once: no hand-over may overtake another."""
    pool = pool_of("decode")
    layer, metadata = pool.impl("pallas"), pool.metadata("pallas")
    _, values = pool.views()
    busy = torch.randn(4096, 4096, device="cuda")
    layer.attend(pool.q, pool.cache, metadata)  # compiles
    stream = torch.cuda.Stream() if own_stream else torch.cuda.current_stream()
    stream.wait_stream(torch.cuda.current_stream())
    sums = []
    with torch.cuda.stream(stream):
        for value in range(ROUNDS):
            for _ in range(4):
                busy = busy @ busy * 1e-4
            values.fill_(value)
            out = layer.attend(pool.q, pool.cache, metadata)
            values.fill_(-1.0)
            for _ in range(4):
                busy = busy @ busy * 1e-4
            sums.append((out.float().amin(), out.float().amax()))
            del out
    torch.cuda.synchronize()
    for value, (least, most) in enumerate(sums):
        assert float(least) == pytest.approx(value, rel=1e-2)
        assert float(most) == pytest.approx(value, rel=1e-2)
