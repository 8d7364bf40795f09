"""Models that cache latents on a CUDA device: transformers' logits by every backend that this machine can run.

    PAGELAB_GPU=1 python -m pytest tests/engine/worker/test_gpu_latent.py

Heads and latents of the published models in two narrow layers, steps as CUDA graphs where the backend can be captured.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="the engine computes on torch tensors")
pytest.importorskip("transformers", reason="the reference extra is not installed")

from tests.engine.worker import latent  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not (latent.ON_DEVICE and torch.cuda.is_available()), reason="no CUDA device, or not PAGELAB_GPU=1"
    ),
]
TEXTS = latent.texts_of(12)
NAMES = ("deepseek-v3", "deepseek-v2", "deepseek-v3-biases-halves")
BACKENDS = list(latent.latent_backends())
WAYS = [(backend, dtype) for backend in BACKENDS for dtype in latent.dtypes_of(backend)]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """From a name to transformers' model and the folder that it saved to."""
    made = {}

    def get(name):
        if name not in made:
            folder = tmp_path_factory.mktemp("model")
            made[name] = latent.saved(folder, name, **latent.REAL), folder
        return made[name]

    return get


def engine_by(backend, dtype, folder, **options):
    reason = latent.latent_backends()[backend]
    if reason:
        pytest.skip(reason)
    name = str(dtype).removeprefix("torch.")
    return latent.engine_of(folder, device="cuda", attention=backend, dtype=name, **options)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("backend,dtype", WAYS)
def test_every_backend_gives_their_logits(backend, dtype, name, models):
    model, folder = models(name)
    engine = engine_by(backend, dtype, folder)
    expected = latent.expected(latent.rounded(model, dtype), TEXTS)
    for size in latent.sizes_of(backend):
        served = latent.forced(engine, TEXTS, block_size=size, num_slots=320)
        assert latent.distance(served.logits, expected, dtype) <= latent.BOUNDS[dtype], size
        assert latent.captured(engine, served)


@pytest.mark.parametrize("backend,dtype", WAYS)
def test_graphs_and_single_commands_give_the_same_logits_bit_by_bit(backend, dtype, models):
    _, folder = models("deepseek-v3")
    both = []
    for graphs in (True, False):
        engine = engine_by(backend, dtype, folder, graphs=graphs)
        both.append(latent.forced(engine, TEXTS, block_size=latent.sizes_of(backend)[-1], num_slots=320).logits)
    assert all(torch.equal(one, other) for one, other in zip(*both, strict=True))


@pytest.mark.parametrize("backend,dtype", WAYS)
def test_swapped_latents_come_back(backend, dtype, models):
    model, folder = models("deepseek-v3")
    engine, size = engine_by(backend, dtype, folder), latent.sizes_of(backend)[0]
    served = latent.forced(engine, TEXTS, block_size=size, num_slots=128, preemption="swap")
    expected = latent.expected(latent.rounded(model, dtype), TEXTS)
    assert served.num_swapped > 0 or size == 64, "a block of 64 tokens holds a whole text: nothing gives way"
    assert latent.distance(served.logits, expected, dtype) <= latent.BOUNDS[dtype]


def test_the_devices_own_backend_is_captured_where_the_registry_has_one(models):
    own = [name for name in BACKENDS if name.startswith("triton")]
    if not own:
        pytest.skip("no backend of Triton's in the registry keeps latents")
    engine = latent.engine_of(models("deepseek-v3")[1], device="cuda", dtype="bfloat16")
    assert engine.backend.get_name() == own[0]
    assert engine.provenance["graphs"]
