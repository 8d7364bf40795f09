"""Arguments of the launchers that cannot be: refused before anything is launched; odd ones that can: the numbers."""

import dataclasses
import math

import pytest
import torch

from engine.attention.checks import AttentionInputError
from engine.attention.kernels.launch import (
    decode_attention,
    decode_contiguous,
    mixed_attention,
    plan_decode,
    prefill_attention,
    prefill_contiguous,
    write_kv,
)
from engine.attention.kernels.launch_decode import shape_of
from engine.attention.kernels.tuning import DecodeConfig, MixedConfig, PrefillConfig, WriteConfig
from tests.engine.attention.kernels.pools import Case, assert_close

PIECES = DecodeConfig(block_n=32, num_warps=2, num_stages=2, programs=3, min_piece_tokens=32)
OTHER = DecodeConfig(block_n=16, num_warps=2, num_stages=2, programs=8, min_piece_tokens=32)
NARROW = PrefillConfig(block_m=2, block_n=32, num_warps=4, num_stages=2, use_tma=False)
QUERIES = {"decode": (1, 1, 1, 1), "prefill": (2, 7, 17, 1), "mixed": (1, 1, 5, 9)}
LENGTHS = (3, 70, 17, 20)


class Call:
    """A launcher with good arguments, to be changed; its output is 5 until somebody writes it."""

    def __init__(self, kind, *, twin=False, **options):
        self.case = Case(LENGTHS, QUERIES[kind], block_size=8)
        names = ("q", "k", "v", "starts") if twin else ("q", "k_cache", "v_cache", "block_table")
        where = self.case.contiguous() if twin else self.case.paged()
        self.values = dict(zip(names, (self.case.q, *where), strict=True))
        self.values |= {"seq_lens": self.case.seq_lens, "scale": self.case.scale, "max_seq_len": 70}
        self.values["out"] = torch.full_like(self.case.q, 5.0)
        if kind != "decode":
            self.values |= {"query_start_loc": self.case.query_start_loc, "max_query_len": self.case.max_query_len}
        if kind == "mixed":
            self.values["num_decodes"] = 2
        self.values |= {name: value(self) if callable(value) else value for name, value in options.items()}
        self.launch = {
            ("decode", False): decode_attention,
            ("decode", True): decode_contiguous,
            ("prefill", False): prefill_attention,
            ("prefill", True): prefill_contiguous,
            ("mixed", False): mixed_attention,
        }[kind, twin]

    def refused(self, message):
        out = self.values["out"]
        before = out.clone()
        with pytest.raises(AttentionInputError, match=message):
            self.launch(**self.values)
        assert torch.equal(out, before)

    def plan(self, config=PIECES, window=0):
        shape = shape_of(self.case.q, 1, 70, 8)
        return plan_decode(self.case.seq_lens, shape, config, window=window)


PLACES = [("decode", False), ("decode", True), ("prefill", False), ("prefill", True), ("mixed", False)]


@pytest.mark.parametrize("kind,twin", PLACES)
@pytest.mark.parametrize(
    "name,values",
    [
        ("max_seq_len", (-1, True, 70.0, math.nan, None)),
        ("max_query_len", (-1, True, 7.0, math.nan, None)),
        ("num_decodes", (-1, True, 2.0, math.nan, None, 5)),
        ("window", (-1, True, 1.5, math.nan, None)),
        ("scale", (0, -1.0, True, math.nan, math.inf, "1", None)),
        ("soft_cap", (-1.0, True, math.nan, math.inf, "1", None)),
    ],
)
def test_a_number_that_cannot_be(kind, twin, name, values):
    has = name in ("window", "soft_cap") or name in Call(kind, twin=twin).values
    for value in values if has else ():
        Call(kind, twin=twin, **{name: value}).refused(f"{name}: expected .*got")


@pytest.mark.parametrize("kind,twin", PLACES)
def test_an_output_without_places_of_its_own(kind, twin):
    Call(kind, twin=twin, out=lambda call: call.values["out"][:1].expand_as(call.case.q)).refused(
        "out: expected a place in memory for each element"
    )


@pytest.mark.parametrize("kind,twin", PLACES)
def test_the_output_may_be_the_query(kind, twin):
    call = Call(kind, twin=twin, out=lambda call: call.case.q)
    expected = call.case.expected()
    assert_close(call.launch(**call.values), expected)


@pytest.mark.parametrize("kind", ["decode", "mixed"])
@pytest.mark.parametrize(
    "workspace", [torch.empty(3), torch.empty(10**5).double(), torch.empty(10**5)[::2], [0.0], torch.empty(9, 9).t()]
)
def test_a_workspace_that_does_not_fit_is_refused_before_the_plan_is_made(kind, workspace, monkeypatch):
    monkeypatch.setattr("engine.attention.kernels.launch_decode.plan_decode", None)
    config = PIECES if kind == "decode" else MixedConfig(PIECES)
    Call(kind, workspace=workspace, config=config).refused("workspace: expected")


def test_a_plan_and_another_config():
    Call("decode", plan=Call.plan, config=OTHER).refused("config: expected none beside a plan, or the plan's")


def test_a_plan_and_its_own_config():
    call = Call("decode", plan=Call.plan, config=PIECES)
    assert_close(call.launch(**call.values), call.case.expected())


@pytest.mark.parametrize("name,value", [("plan", 3), ("config", NARROW), ("config", 3)])
def test_something_else_for_a_plan(name, value):
    Call("decode", **{name: value}).refused(f"{name}: expected a Decode(Plan|Config) or None")


@pytest.mark.parametrize("overlap", ["none", "prefill_first", "decode_first"])
def test_chunks_that_cannot_be_keep_decodes_from_being_launched(overlap):
    Call("mixed", config=MixedConfig(None, NARROW, overlap)).refused("at most block_m=2 query heads")


@pytest.mark.parametrize(
    "good,changes",
    [
        (PIECES, {"block_n": (0, 8, 48, -32, 32.0, True), "num_warps": (0, 3), "num_stages": (0,), "programs": (0,)}),
        (PIECES, {"min_piece_tokens": (0, -1, 1.5), "whole_programs": (-1, 0.5)}),
        (NARROW, {"block_m": (0, 48, -2), "block_n": (0, 8, 48), "num_warps": (0, 3), "num_stages": (0, 1.0)}),
        (WriteConfig(1, 128, 4), {"tokens": (0, 3), "block_elements": (0, 100), "num_warps": (0, 3)}),
        (MixedConfig(), {"overlap": ("both", None)}),
    ],
)
def test_a_config_that_cannot_be(good, changes):
    for name, values in changes.items():
        for value in values:
            with pytest.raises(AttentionInputError, match=f"{name}: expected .*got"):
                dataclasses.replace(good, **{name: value})


@pytest.mark.parametrize("sizes", [(3, 0, 2, 16), (3, 4, 0, 16), (3, 4, 2, 0)])
def test_a_cache_without_slots_heads_or_elements(sizes):
    cache, new = torch.zeros(2, *sizes), torch.zeros(2, *sizes[2:])
    with pytest.raises(AttentionInputError, match=r"expected .*got"):
        write_kv(new, new, *cache, torch.full((2,), -1))
    q, table, lengths = torch.zeros(2, 4, sizes[3]), torch.zeros(2, 1).int(), torch.zeros(2).int()
    with pytest.raises(AttentionInputError, match=r"expected .*got"):
        decode_attention(q, *cache, table, lengths, scale=1.0, max_seq_len=0)


def test_a_cache_without_places_of_its_own_is_not_written():
    cache = torch.zeros(2, 1, 4, 2, 16).expand(2, 3, 4, 2, 16)
    with pytest.raises(AttentionInputError, match="k_cache: expected a place in memory for each element"):
        write_kv(torch.ones(1, 2, 16), torch.ones(1, 2, 16), *cache, torch.zeros(1, dtype=torch.int64))
    assert not cache.any()


@pytest.mark.parametrize("max_blocks", [0, 1])
@pytest.mark.parametrize("num_blocks", [0, 3])
@pytest.mark.parametrize("kind", ["decode", "prefill", "mixed"])
def test_empty_rows_read_nothing(kind, num_blocks, max_blocks):
    """Tables without an entry, caches without a block: nothing is there to be read, and zeros come out."""
    q, (k, v) = torch.full((2, 4, 16), math.nan), torch.zeros(2, num_blocks, 4, 2, 16)
    table, lengths, starts = torch.full((2, max_blocks), -7).int(), torch.zeros(2).int(), torch.arange(3).int()
    shared = {"scale": 1.0, "max_seq_len": 0, "out": torch.full((2, 4, 16), math.nan)}
    if kind == "decode":
        out = decode_attention(q, k, v, table, lengths, **shared)
    elif kind == "prefill":
        out = prefill_attention(q, k, v, table, starts, lengths, max_query_len=1, **shared)
    else:
        out = mixed_attention(q, k, v, table, starts, lengths, num_decodes=1, max_query_len=1, **shared)
    assert not out.any()
