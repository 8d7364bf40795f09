"""Contiguous virtual and paged physical memory: slots, mapped pages, deferred reclamation."""

from __future__ import annotations

from random import Random

import pytest

from engine.core.allocator import Grant, Reason
from engine.core.contract import run_contract
from engine.core.request import Request
from engine.core.virtual import VirtualAllocator


def pool(pages: int = 10, tokens: int = 4, *, longest: int = 32, **options: bool) -> VirtualAllocator:
    return VirtualAllocator(pages, tokens, max_model_len=longest, **options)


def admitted(allocator: VirtualAllocator, name: str, num_tokens: int) -> Request:
    request = Request(name, num_tokens, 4)
    assert isinstance(allocator.admit(request, num_tokens), Grant)
    request.computed = num_tokens
    return request


@pytest.mark.parametrize("deferred", [True, False])
def test_with_and_without_deferral_the_contract_holds(deferred):
    for seed in range(40):
        run_contract(
            lambda p: VirtualAllocator(
                p.capacity_blocks, p.block_size, max_model_len=p.max_model_len, watermark=0.25, deferred=deferred
            ),
            seed=seed,
        )


def test_every_page_is_in_one_place_whoever_comes_and_goes():
    allocator, rng, inside = pool(40, longest=64), Random(1), list[Request]()
    for step in range(400):
        if inside and rng.random() < 0.45:
            allocator.free(inside.pop(rng.randrange(len(inside))))
        else:
            request = Request(str(step), rng.randint(1, 60), 4)
            if isinstance(allocator.admit(request, request.num_prompt_tokens), Grant):
                inside.append(request)
        allocator.check()
        held = sum(-(-request.num_prompt_tokens // 4) for request in inside)
        assert allocator.stats().num_referenced == held
    assert allocator.num_maps > 40, "pages were taken from one slot for another"


def test_addresses_are_contiguous_and_stay_while_physical_pages_lie_anywhere():
    allocator = pool()
    one, other = admitted(allocator, "one", 5), admitted(allocator, "other", 5)
    assert allocator.virtual_pages(one) == range(2)
    assert allocator.virtual_pages(other) == range(8, 10), "slots are max_model_len tokens apart: 32 / 4 pages"
    for total in range(6, 13):
        allocator.extend((one, other), (total, total))
        one.computed = other.computed = total
    assert allocator.virtual_pages(one) == range(3)
    assert allocator.virtual_pages(other) == range(8, 11)
    assert list(allocator.block_table(one)) == [1, 2, 5]


def test_pages_that_stay_mapped_are_free_and_are_had_again_without_a_call():
    allocator = pool()
    first = admitted(allocator, "first", 20)
    table = list(allocator.block_table(first))
    allocator.free(first)
    assert (allocator.stats().num_free, allocator.num_maps) == (10, 5)
    again = admitted(allocator, "again", 17)
    assert list(allocator.block_table(again)) == table
    assert (allocator.num_maps, allocator.num_slots) == (5, 1)


def test_without_deferral_every_page_is_mapped_anew():
    allocator = pool(deferred=False)
    for name in "abc":
        allocator.free(admitted(allocator, name, 20))
    assert allocator.num_maps == 15


def test_a_request_takes_the_idle_slot_whose_pages_fit_best():
    allocator = pool(longest=64)
    old = [admitted(allocator, str(tokens), tokens) for tokens in (4, 16, 12)]
    slots = {request.num_prompt_tokens: allocator.virtual_pages(request).start for request in old}
    for request in old:
        allocator.free(request)
    assert allocator.virtual_pages(admitted(allocator, "three pages", 9)).start == slots[12]
    assert allocator.virtual_pages(admitted(allocator, "nine pages", 20)).start == slots[16], "most, if none suffices"


def test_surplus_of_others_is_taken_before_anybody_is_refused():
    allocator = pool()
    allocator.free(admitted(allocator, "gone", 32))
    tall = admitted(allocator, "small", 4)
    other = admitted(allocator, "other", 32)
    assert allocator.virtual_pages(other) == range(8, 16)
    assert allocator.stats().num_free == 1
    refusal = allocator.extend((tall,), (12,))
    assert (refusal.reason, refusal.needed_blocks, refusal.free_blocks) == (Reason.NO_FREE_BLOCKS, 2, 1)
    allocator.check()


def test_the_watermark_and_the_gate_are_those_of_a_paged_pool():
    allocator = VirtualAllocator(9, 4, max_model_len=36, watermark=0.2)
    admitted(allocator, "first", 24)
    late = Request("late", 8, 4)
    assert allocator.admit(late, 8, others_running=True).reason is Reason.WATERMARK
    assert allocator.admit(late, 4, whole=16).reason is Reason.FULL_SEQUENCE
    assert allocator.refuses_forever(Request("long", 20, 16)) is None
    assert VirtualAllocator(8, 4, max_model_len=99).refuses_forever(Request("long", 20, 14)).needed_blocks == 9


@pytest.mark.parametrize("watermark", [-0.1, 1.0])
def test_a_watermark_is_a_fraction(watermark):
    with pytest.raises(ValueError, match="must lie in"):
        VirtualAllocator(4, 4, max_model_len=8, watermark=watermark)
