"""Step-time models: a run of decode steps lasts exactly what its steps last one by one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.batch import Batch, Chunk
from engine.core.decode_set import DecodeSet
from engine.core.request import Request
from sim.cost import (
    PAPER_13B,
    LinearModel,
    RooflineModel,
    StepModel,
    TableModel,
    decode_features,
    features_of,
    parse_step_model,
)
from sim.progression import steps_until, total

MODELS: dict[str, StepModel] = {
    "linear": parse_step_model("linear:9.75e-3,38e-6,0.287e-6,89e-6"),
    "paper-13b": PAPER_13B,
    "free": LinearModel(0, 0, 0, 0),
    "roofline, memory bound": RooflineModel(13 * 10**9, 26 * 10**9, 819_200, 819_200, 187 * 10**12, 16 * 10**11),
    "roofline, with a knee": RooflineModel(10**9, 10**9, 10, 10**6, 10**14, 10**12),
    "table": TableModel((0, 64, 2_048), (10**10, 2 * 10**10, 10**11), (300, 400, 500)),
}


@pytest.mark.parametrize("name", MODELS)
@settings(derandomize=True, deadline=None, max_examples=60)
@given(seqs=st.integers(1, 300), context=st.integers(0, 10**6), steps=st.integers(1, 50))
def test_a_line_is_the_durations_of_its_steps(name, seqs, context, steps):
    model, kv = MODELS[name], context + seqs
    durations = [model.duration(decode_features(seqs, kv + step * seqs)) for step in range(steps)]
    first, slope = model.decode_line(seqs, kv)
    assert first == durations[0]
    if slope is not None:
        assert durations == [first + step * slope for step in range(steps)]


@settings(derandomize=True, deadline=None)
@given(
    first=st.integers(1, 10**12),
    slope=st.integers(0, 10**9),
    duration=st.integers(1, 10**14),
    most=st.integers(1, 10_000),
)
def test_steps_until_is_the_smallest_number_that_lasts_long_enough(first, slope, duration, most):
    steps = steps_until(first, slope, duration, most)
    assert 1 <= steps <= most
    assert steps == most or total(first, slope, steps) >= duration
    assert steps == 1 or total(first, slope, steps - 1) < duration


def test_a_one_token_last_chunk_costs_what_a_decode_at_its_place_costs():
    request = Request(0, 101, 5)
    chunk = Batch(DecodeSet(), [Chunk(request, 100, 1, completes=True)])
    request.computed, request.order = 100, 0
    decodes = DecodeSet.of([request], None)
    decodes.clock += 1
    assert features_of(chunk) == features_of(Batch(decodes, ())) == decode_features(1, 101)


@pytest.mark.parametrize("text", ["linear:1,2", "linear:a,b,c,d", "linear:-1,0,0,0", "roofline", "cubic:1", "table:"])
def test_a_step_model_that_is_none_is_refused_with_the_spellings(text):
    with pytest.raises(ValueError, match=r"linear|coefficient"):
        parse_step_model(text)
