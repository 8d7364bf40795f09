"""Broken attention must fail the tests that the reference passes: each fault is planted and seen."""

import dataclasses
import math

import pytest
import torch

from engine.attention import KVLayout, LayerConfig
from engine.attention.reference_backends import ReferenceBackend, ReferenceImpl
from engine.attention.registry import BACKENDS
from tests.engine.attention.scenes import TOLERANCE, Scene, batch, step

SHAPE = (4, 2, 8)
CONFIG = LayerConfig(*SHAPE, scale=8**-0.5)


class ReadsBeforeItWrites(ReferenceImpl):
    def forward(self, query, key, value, kv_cache, metadata, out=None):
        result = self.attend(query, kv_cache, metadata, out)
        self.write(key, value, kv_cache, metadata)
        return result


class ReadsPastTheLength(ReferenceImpl):
    def where(self, metadata):
        there = super().where(metadata)
        return there._replace(seq_lens=there.seq_lens + 1)


class StopsShortOfTheLength(ReferenceImpl):
    def where(self, metadata):
        there = super().where(metadata)
        return there._replace(seq_lens=torch.where(there.seq_lens > 2, there.seq_lens - 1, there.seq_lens))


class MixesUpTheTables(ReferenceImpl):
    def where(self, metadata):
        there = super().where(metadata)
        return there._replace(block_table=there.block_table.roll(1, dims=0))


class WritesOneSlotOn(ReferenceImpl):
    def where(self, metadata):
        there = super().where(metadata)
        slots = there.slot_mapping
        return there._replace(slot_mapping=torch.where(slots > 0, slots - 1, slots))


class SwapsKAndV(ReferenceImpl):
    def split(self, kv_cache):
        return super().split(kv_cache)[::-1]


class ForgetsTheWindow(ReferenceImpl):
    def __init__(self, config, layout):
        super().__init__(dataclasses.replace(config, window=0), layout)


class SeesOneTokenMore(ReferenceImpl):
    def __init__(self, config, layout):
        super().__init__(dataclasses.replace(config, window=config.window + 1), layout)


class ForgetsTheCap(ReferenceImpl):
    def __init__(self, config, layout):
        super().__init__(dataclasses.replace(config, soft_cap=0.0), layout)


def plant(monkeypatch, impl) -> None:
    class Planted(ReferenceBackend):
        @staticmethod
        def get_impl_cls():
            return impl

    monkeypatch.setattr("tests.engine.attention.scenes.get_backend", lambda _: Planted)


def judged(monkeypatch, impl, kind, config) -> bool:
    """Whether a step through that impl is right; a refused one is not."""
    plant(monkeypatch, impl)
    scene = Scene(batch(kind, 4), 4, (*SHAPE, SHAPE[2]))
    try:
        error, cache_is_right = step(scene, "reference", config, KVLayout.KV_FIRST)
    except ValueError:
        return False
    return error < TOLERANCE[torch.float64] and cache_is_right


@pytest.mark.parametrize("kind", ["decode", "prefill", "chunked", "mixed"])
@pytest.mark.parametrize(
    "fault,config",
    [
        (ReadsBeforeItWrites, CONFIG),
        (ReadsPastTheLength, CONFIG),
        (StopsShortOfTheLength, CONFIG),
        (MixesUpTheTables, CONFIG),
        (WritesOneSlotOn, CONFIG),
        (SwapsKAndV, CONFIG),
        (ForgetsTheWindow, dataclasses.replace(CONFIG, window=3)),
        (SeesOneTokenMore, dataclasses.replace(CONFIG, window=3)),
        (ForgetsTheCap, dataclasses.replace(CONFIG, soft_cap=0.5)),
    ],
)
def test_a_planted_fault_fails(monkeypatch, fault, config, kind):
    assert judged(monkeypatch, ReferenceImpl, kind, config)
    assert not judged(monkeypatch, fault, kind, config)


@pytest.mark.parametrize("impl,error", [(ReferenceImpl, 0.0), (ReadsPastTheLength, math.inf)])
def test_one_slot_past_the_length_is_nan_in_every_output(monkeypatch, impl, error):
    """Within the last block, where no table entry gives it away."""
    plant(monkeypatch, impl)
    got, _ = step(Scene([(1, 3), (1, 5), (2, 6)], 4, (*SHAPE, SHAPE[2])), "reference", CONFIG)
    assert got == pytest.approx(error, abs=TOLERANCE[torch.float64])


@pytest.mark.parametrize("kind", ["decode", "prefill", "chunked", "mixed"])
def test_what_is_read_before_it_is_written_is_nan(monkeypatch, kind):
    plant(monkeypatch, ReadsBeforeItWrites)
    error, cache_is_right = step(Scene(batch(kind, 4), 4, (*SHAPE, SHAPE[2])), "reference", CONFIG)
    assert error == math.inf
    assert cache_is_right


def test_the_real_backends_are_not_planted():
    assert BACKENDS["reference"].get_impl_cls() is ReferenceImpl
