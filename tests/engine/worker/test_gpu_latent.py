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
TOLERANCE, RELATIVE = 1e-4, 2e-2
"""Of a logit in float32; of the largest one in half types."""
TEXTS = latent.texts_of(12)
NAMES = ("deepseek-v3", "deepseek-v2", "deepseek-v3-biases-halves")
BACKENDS = list(latent.latent_backends())


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


def engine_by(backend, folder, **options):
    reason = latent.latent_backends()[backend]
    if reason:
        pytest.skip(reason)
    dtype, sizes = latent.sizes_of(backend)
    name = str(dtype).removeprefix("torch.")
    return latent.engine_of(folder, device="cuda", attention=backend, dtype=name, **options), dtype, sizes


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_backend_gives_their_logits(backend, name, models):
    model, folder = models(name)
    engine, dtype, sizes = engine_by(backend, folder)
    expected = latent.expected(latent.rounded(model, dtype), TEXTS)
    bound = TOLERANCE if dtype == torch.float32 else RELATIVE * float(torch.cat(expected).abs().max())
    for size in sizes:
        served = latent.forced(engine, TEXTS, block_size=size, num_slots=320)
        assert latent.furthest(served.logits, expected) <= bound, size
        assert latent.captured(engine, served)


@pytest.mark.parametrize("backend", BACKENDS)
def test_graphs_and_single_commands_give_the_same_logits_bit_by_bit(backend, models):
    _, folder = models("deepseek-v3")
    both = []
    for graphs in (True, False):
        engine, _, sizes = engine_by(backend, folder, graphs=graphs)
        both.append(latent.forced(engine, TEXTS, block_size=sizes[-1], num_slots=320).logits)
    assert all(torch.equal(one, other) for one, other in zip(*both, strict=True))


@pytest.mark.parametrize("backend", BACKENDS)
def test_swapped_latents_come_back(backend, models):
    _, folder = models("deepseek-v3")
    engine, _, sizes = engine_by(backend, folder)
    tight = latent.forced(engine, TEXTS, block_size=sizes[0], num_slots=128, preemption="swap")
    roomy = latent.forced(engine, TEXTS, block_size=sizes[0], num_slots=1024)
    assert tight.num_swapped > 0
    assert latent.furthest(tight.logits, roomy.logits) <= RELATIVE * float(torch.cat(roomy.logits).abs().max())


def test_the_devices_own_backend_is_captured_where_the_registry_has_one(models):
    own = [name for name in BACKENDS if name.startswith("triton")]
    if not own:
        pytest.skip("no backend of Triton's in the registry keeps latents")
    engine = latent.engine_of(models("deepseek-v3")[1], device="cuda", dtype="bfloat16")
    assert engine.backend.get_name() == own[0]
    assert engine.provenance["graphs"]
