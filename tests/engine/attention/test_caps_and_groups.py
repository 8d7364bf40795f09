"""Soft-caps, and groups of sixteen query heads, through every backend that keeps K and V and runs here."""

import os

import pytest
import torch

from engine.attention import BACKENDS, LayerConfig
from tests.engine.attention.scenes import TOLERANCE, Scene, step

ROWS = {"decode": [(1, 1), (1, 35), (1, 16)], "mixed": [(1, 20), (3, 19), (1, 33), (17, 17)]}
"""(query length, sequence length), about blocks of 16."""
CASES = [((16, 1, 64), 0.0), ((32, 2, 64), 1.5)]
"""(H, KH, D), sixteen query heads a KV head, and the cap."""
KV = [name for name, backend in BACKENDS.items() if not backend.capabilities().mla]


def here(name):
    """Skips with the backend's own reason where it cannot run on this machine's CPU."""
    if why := BACKENDS[name].unavailable_because():
        pytest.skip(why)
    if name.startswith("flash") or (name == "triton" and os.environ.get("TRITON_INTERPRET") != "1"):
        pytest.skip("its tensors lie on a device")


@pytest.mark.parametrize("shape, soft_cap", CASES)
@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize("name", KV)
def test_caps_and_groups_equal_the_definition(name, kind, shape, soft_cap):
    here(name)
    config = LayerConfig(*shape, scale=0.5, soft_cap=soft_cap)
    assert BACKENDS[name].capabilities().soft_cap
    scene = Scene(ROWS[kind], 16, (*shape, shape[2]), torch.float32)
    error, cache_is_right = step(scene, name, config)
    assert error < TOLERANCE[torch.float32]
    assert cache_is_right


def test_a_cap_of_this_size_is_seen():
    """Scores reach far beyond it: who forgets it does not pass."""
    scene = Scene(ROWS["decode"], 16, (16, 1, 64, 64), torch.float32)
    capped, plain = (scene.expected(LayerConfig(16, 1, 64, 0.5, soft_cap=cap)) for cap in (1.5, 0.0))
    assert float((capped - plain).abs().max() / plain.abs().max()) > 0.2
