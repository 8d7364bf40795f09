"""Decode sets: derived counts equal naive ones, buckets say exactly who grows."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.decode_set import DecodeSet
from engine.core.request import Request

laws = settings(max_examples=100, deadline=None, derandomize=True, database=None)


def decoding_request(name: int, computed: int) -> Request:
    request = Request(name, computed, 10_000)
    request.computed, request.known, request.order = computed, computed + 1, name
    return request


@given(data=st.data(), period=st.sampled_from([0, 1, 3, 4, 16]))
@laws
def test_derived_counts_and_buckets_equal_naive_ones(data, period):
    decoding, naive, name = DecodeSet(period), {}, 0
    for _ in range(data.draw(st.integers(1, 40))):
        action = data.draw(st.sampled_from(["add", "late", "remove", "step"]))
        if action in ("add", "late"):
            name += 1
            request = decoding_request(name, data.draw(st.integers(1, 70)))
            if action == "late":  # one that was running all along, and decodes only now
                request.order = -name
            naive[request] = request.computed
            decoding.add(request)
        elif action == "remove" and naive:
            request = data.draw(st.sampled_from(sorted(naive, key=lambda r: r.order)))
            decoding.remove(request)
            assert (request.computed, request.known) == (naive[request], naive.pop(request) + 1)
        elif action == "step":
            steps = data.draw(st.integers(1, 20))
            decoding.clock += steps
            decoding.sampled += steps
            naive = {request: computed + steps for request, computed in naive.items()}
        check(decoding, naive, period)


def check(decoding, naive, period):
    running = sorted(naive, key=lambda r: r.order)
    assert list(decoding) == running
    assert len(decoding) == len(naive)
    assert decoding.num_computed_tokens == sum(naive.values())
    for request, computed in naive.items():
        assert (request.num_computed_tokens, request.num_tokens) == (computed, computed + 1)
    for step in range(2 * period):
        assert list(decoding.growing(step)) == [r for r in running if (naive[r] + step) % period == 0]
        filling = [r for r in running if (naive[r] + step + 1) % period == 0]
        assert list(decoding.filling(period, step)) == filling


def test_between_schedule_and_update_a_token_is_computed_but_not_sampled():
    request = decoding_request(1, 5)
    decoding = DecodeSet.of([request], 4)
    decoding.clock += 1
    assert (request.num_computed_tokens, request.num_tokens) == (6, 6)
    decoding.sampled += 1
    assert (request.num_computed_tokens, request.num_tokens) == (6, 7)


def test_a_late_request_grows_in_its_place_in_running_order():
    first, second = decoding_request(1, 4), decoding_request(2, 8)
    assert list(DecodeSet.of([second, first], 4).growing()) == [first, second]


def test_a_set_without_a_period_keeps_no_buckets():
    decoding = DecodeSet.of([decoding_request(1, 4)], None)
    assert list(decoding.growing()) == []
    with pytest.raises(ValueError, match="period 0"):
        decoding.filling(4)
