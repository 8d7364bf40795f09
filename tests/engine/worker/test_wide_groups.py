"""Sixteen query heads a KV head, with and without a soft-cap, through the engine over every backend that runs here."""

from __future__ import annotations

import dataclasses

import pytest

torch = pytest.importorskip("torch", reason="the engine computes on torch tensors")
pytest.importorskip("transformers", reason="logits are held against its")

from engine.model.architecture import Architecture, architecture_of  # noqa: E402
from tests.engine.attention.test_caps_and_groups import KV, here  # noqa: E402
from tests.engine.model.tiny import CONFIGS  # noqa: E402
from tests.engine.worker import latent  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")
WIDE = {"num_attention_heads": 16, "num_key_value_heads": 1, "head_dim": 64, "hidden_size": 64}
TEXTS = latent.texts_of(4, seed=5)
ALL = [pytest.param(name, marks=pytest.mark.slow if name == "triton" else ()) for name in KV]
"""Triton's interpreter takes ten seconds for a text or two."""
OTHERS = [one for one in ALL if one.values != ("reference",)]
CAP = 0.5


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """(folder, transformers' logits, the specification's with a soft-cap)."""
    folder = tmp_path_factory.mktemp("wide")
    model = latent.saved(folder, "llama", **WIDE)
    with pytest.MonkeyPatch.context() as patch:
        cap(patch)
        capped = forced(folder, "reference")
    return folder, latent.expected(model, TEXTS), capped


def cap(patch):
    """Every layer asks for a soft-cap, as those of Gemma 2 do."""
    plain = Architecture.layer_config
    patch.setattr(Architecture, "layer_config", lambda self, n: dataclasses.replace(plain(self, n), soft_cap=CAP))


def forced(folder, name, **options):
    engine = latent.engine_of(folder, attention=name)
    return latent.forced(engine, TEXTS, block_size=16, num_slots=256, budget=24, **options).logits


@pytest.mark.parametrize("name", ALL)
def test_sixteen_heads_share_a_kv_head(name, served):
    here(name)
    folder, expected, _ = served
    assert latent.furthest(forced(folder, name), expected) < 1e-4


@pytest.mark.parametrize("name", OTHERS)
def test_a_soft_cap_is_every_backends(name, served, monkeypatch):
    here(name)
    folder, plain, capped = served
    cap(monkeypatch)
    assert latent.furthest(forced(folder, name), capped) < 1e-4
    assert latent.furthest(capped, plain) > 1e-2


@pytest.mark.slow
def test_the_contiguous_twin_caps_too(served, monkeypatch):
    here("triton")
    folder, _, capped = served
    cap(monkeypatch)
    assert latent.furthest(forced(folder, "triton", allocator="orca-oracle", kernel="contiguous"), capped) < 1e-4


@pytest.mark.parametrize("key", ["attn_logit_softcapping", "final_logit_softcapping"])
def test_a_configuration_with_a_cap_is_refused_not_ignored(key):
    config = {"model_type": "llama", **CONFIGS["llama"][1], key: 30.0}
    with pytest.raises(ValueError, match=f"{key}=30.0: what this changes in a 'llama' model is not done here"):
        architecture_of(config, "config.json")
