"""The engine over the backend `pallas`: transformers' logits under forced tokens, on the CPU, interpreted."""

import pytest

torch = pytest.importorskip("torch", reason="the engine computes on torch tensors")
pytest.importorskip("transformers", reason="the reference extra is not installed")
pytest.importorskip("jax", reason="the extra pallas is not installed")

from tests.engine.model.tiny import hugging_face, text  # noqa: E402
from tests.engine.worker.latent import engine_of, expected, forced  # noqa: E402

TOLERANCE = 1e-4
TEXTS = [(text(24, seed=1), 19), (text(12, seed=2), 7), (text(30, seed=3), 27)]
"""(tokens, how many of them are the prompt)."""


def test_llama_gives_transformers_logits(tmp_path):
    """Prompts cut by a budget of 16 tokens, so that steps hold decodes and chunks; blocks of 4 tokens."""
    model = hugging_face("llama")
    model.save_pretrained(tmp_path, safe_serialization=True)
    engine = engine_of(tmp_path, attention="pallas", dtype="float32")
    served = forced(engine, TEXTS, block_size=4, num_slots=256, budget=16)
    assert {bool(one.num_decodes) + 2 * bool(one.num_chunk_tokens) for one in served.steps} == {1, 2, 3}
    for got, wanted in zip(served.logits, expected(model, TEXTS), strict=True):
        assert wanted.std() > 0.3
        assert (got - wanted).abs().max() <= TOLERANCE
