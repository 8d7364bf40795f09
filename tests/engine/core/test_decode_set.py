"""Decode sets: derived counts equal naive ones, buckets say exactly who grows."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core import decode_set
from engine.core.decode_set import DecodeSet
from engine.core.request import Request

laws = settings(max_examples=100, deadline=None, derandomize=True, database=None)


def decoding_request(name: int, computed: int) -> Request:
    request = Request(name, computed, 10_000)
    request.computed, request.known, request.order = computed, computed + 1, name
    return request


@pytest.mark.parametrize("most_listed", [decode_set.MOST_LISTED, 0], ids=["listed", "sparse"])
@given(data=st.data(), period=st.sampled_from([0, 1, 3, 4, 16]))
@laws
def test_derived_counts_and_buckets_equal_naive_ones(most_listed, data, period):
    with patch.object(decode_set, "MOST_LISTED", most_listed):
        decoding = DecodeSet(period)
    naive, name = {}, 0
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
    if period:
        grown = [[r for r in running if (naive[r] + step) % period == 0] for step in range(3 * period)]
        for num_steps in (1, period, period + 1, 3 * period):
            assert decoding.growth_counts(num_steps) == [len(some) for some in grown[:num_steps]]
            assert list(decoding.growing_in(num_steps)) == [r for some in grown[:num_steps] for r in some]
        for num_blocks in range(2 * len(running) if running else 0):
            steps = decoding.steps_within(num_blocks, 3 * period)
            assert sum(map(len, grown[:steps])) <= num_blocks
            assert steps == 3 * period or sum(map(len, grown[: steps + 1])) > num_blocks


def test_buckets_of_large_blocks_are_no_more_than_who_decodes():
    decoding = DecodeSet(10**9)
    requests = [decoding_request(name, 7 * name) for name in range(1, 9)]
    for request in requests:
        decoding.add(request)
    assert sum(decoding.growth_counts(3)) == len(decoding.growing(10**9 - 7)) - 1 == 0
    decoding.clock += 10**9 - 14
    decoding.sampled += 10**9 - 14
    assert list(decoding.growing()) == [requests[1]]
    assert decoding.steps_within(0, 10**6) == 0
    assert decoding.steps_within(1, 10**6) == 7
    assert len(decoding.buckets) == len(requests)
    for request in requests:
        decoding.remove(request)
    assert len(decoding.buckets) == 0


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
