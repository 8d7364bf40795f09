"""No rule asks for more shared memory than a device has, and what it takes is known before anything is compiled."""

import csv
import itertools
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from engine.attention.kernels import tuning, tuning_mla, tuning_shared
from engine.attention.kernels.inputs import MAX_HEAD_SIZE, MAX_RANK, MAX_ROTARY
from engine.attention.kernels.resources import ARCHITECTURES, head_size_of, switches_of, tile_of
from engine.attention.kernels.shared_memory import OPT_IN_KIB, fitting, program_bytes, room
from engine.attention.kernels.tuning import DecodeConfig, DecodeShape, PrefillConfig, PrefillShape
from engine.attention.kernels.variants import variants

NUM_SMS = 132
TABLE = Path(__file__).parents[4] / "results" / "reference" / "kernels" / "resources.csv"
HEAD_SIZES = range(8, MAX_HEAD_SIZE + 1, 8)
STORED = {"fp8": 1, "16 bits": 2, "float32": 4}
BLOCK_SIZES = (0, 1, 16, 24, 64, 256)
GROUPS = (1, 16, 71)
BATCHES = ((1, 65_536), (32, 512), (512, 65_536))


COLUMNS = ("kernel", "architecture", "dtype", "head_size", "tile", "pages", "num_stages", "switches")


def shapes(capability, stored):
    for head_size, block_size, group, (num_seqs, longest) in itertools.product(
        HEAD_SIZES, BLOCK_SIZES, GROUPS, BATCHES
    ):
        yield DecodeShape(num_seqs, 8, group, head_size, stored, longest, block_size, NUM_SMS, capability)


def prefill_shape(shape):
    fp8 = shape.element_bytes == 1
    return PrefillShape(
        256 * shape.num_seqs, shape.num_seqs, shape.num_kv_heads, shape.group, shape.head_size,
        2 if fp8 else shape.element_bytes, 256, shape.max_seq_len, shape.block_size, NUM_SMS, shape.capability, fp8=fp8,
    )  # fmt: skip


@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize("capability", [80, 86, 89, 90, 100, 120])
def test_no_rule_gives_what_does_not_fit(capability, stored):
    """All head sizes, types and block sizes. A tile of prefill holds whole groups: of 71 heads in float32 that is more
    than small devices have, whatever the tiles of K."""
    for shape in shapes(capability, STORED[stored]):
        decodes = tuning.decode_config(shape), tuning.decode_contiguous_config(shape)
        shared, chunk = tuning_shared.shared_config(shape), tuning.prefill_config(prefill_shape(shape))
        found = [tuning.decode_bytes(config, shape) for config in decodes]
        found += [tuning_shared.shared_bytes(shared, shape)]
        found += [tuning.decode_bytes(shared.own, shape)] if shared.own else []
        if shape.group <= 16 or stored != "float32":
            found += [tuning.prefill_bytes(chunk, prefill_shape(shape))]
        assert max(found) <= room(capability), (shape, decodes, shared, chunk)


@pytest.mark.parametrize("stored", [2, 4])
@pytest.mark.parametrize("capability", [80, 86, 90, 120])
def test_no_rule_of_latents_gives_what_does_not_fit(capability, stored):
    for rank, rotary, heads in itertools.product((64, 256, MAX_RANK), (16, 64, MAX_ROTARY), (1, 16, 17, 128)):
        shape = DecodeShape(8, 1, heads, rank, stored, 8192, 64, NUM_SMS, capability)
        decode = tuning_mla.mla_decode_config(shape, rotary=rotary)
        chunk = tuning_mla.mla_prefill_config(shape, rotary=rotary)
        assert tuning_mla.latent_bytes(decode.block_m, decode.cut, shape, rotary) <= room(capability)
        assert tuning_mla.latent_bytes(chunk.block_m, chunk, shape, rotary) <= room(capability)


@pytest.mark.parametrize("capability", [80, 90])
def test_a_device_with_room_gets_what_was_measured(capability):
    """Ordinary models' rules are not changed by what others have no room for."""
    for shape in shapes(capability, 2):
        if shape.group <= 16:
            assert tuning.decode_config(shape) == tuning._decode(shape)
            assert tuning.prefill_config(prefill_shape(shape)) == tuning._prefill(prefill_shape(shape))
            assert tuning_shared.shared_config(shape) == tuning_shared._shared(shape)
    for shape in shapes(90, 1):
        assert tuning.decode_config(shape) == tuning._fp8_decode(shape)


DEEP = DecodeConfig(block_n=128, num_warps=8, num_stages=5, programs=528, min_piece_tokens=128)


def test_what_did_not_fit_on_a_device_is_known_without_one():
    """Five stages of 128 keys of 256 bytes: 274,432 bytes on an H200, of 232,448."""
    shape = DecodeShape(20, 2, 16, 256, 1, 16_384, 256, NUM_SMS, 90)
    needed = tuning.decode_bytes(DEEP, shape)
    assert 274_432 <= needed <= 274_432 + 1024
    assert room(90) == 232_448
    made = fitting(DEEP, lambda one: tuning.decode_bytes(one, shape), 90)
    assert (made.num_stages, made.block_n) == (4, 128)


@pytest.mark.parametrize(
    "stages,block_n,limit,expected",
    [(4, 64, 4 * 64, (4, 64)), (4, 64, 150, (2, 64)), (4, 64, 40, (1, 32)), (4, 64, 1, (1, 16))],
)
def test_stages_go_before_tiles(monkeypatch, stages, block_n, limit, expected):
    monkeypatch.setitem(OPT_IN_KIB, 90, limit)
    config = PrefillConfig(64, block_n, num_warps=4, num_stages=stages, use_tma=False)
    made = fitting(config, lambda one: 1024 * one.num_stages * one.block_n, 90)
    assert (made.num_stages, made.block_n) == expected


def test_a_device_nobody_knows_has_the_least():
    assert room(99) == min(OPT_IN_KIB.values()) * 1024 == 101_376


def bound_of(row):
    """Of a row of the table; None for kernels without tiles of K, and for Hopper's own, whose tiles are fixed."""
    kernel, fp8 = row["kernel"], "fp8" in row["switches"].split()
    if kernel not in ("decode_kernel", "prefill_kernel", "shared_kernel", "mla_decode_kernel", "mla_prefill_kernel"):
        return None
    block_m, block_n = map(int, row["tile"].split("x"))
    size, _, rotary = row["head_size"].partition("+")
    capability = int(row["architecture"].removeprefix("sm_"))
    config = SimpleNamespace(block_m=block_m, block_n=block_n, num_stages=int(row["num_stages"]))
    shape = DecodeShape(1, 8, block_m, int(size), 1 if fp8 else 2, 8192, 16, NUM_SMS, capability)
    if kernel.startswith("mla"):
        return tuning_mla.latent_bytes(block_m, config, shape, int(rotary))
    if kernel == "decode_kernel":
        return tuning.decode_bytes(config, shape)
    if kernel == "shared_kernel":
        return tuning_shared.shared_bytes(config, shape)
    return tuning.prefill_bytes(config, prefill_shape(shape))


def test_the_bound_holds_for_every_compiled_variant_and_is_near():
    """Of decode, which is cut the finest, up to its slack."""
    with TABLE.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {"fp8"} <= {word for row in rows for word in row["switches"].split()}
    seen = set()
    for row in rows:
        shared, bound = int(row["shared_bytes"]), bound_of(row)
        assert shared <= room(int(row["architecture"].removeprefix("sm_"))), row
        if bound is not None:
            assert shared <= bound <= 2 * shared, row
            if row["kernel"].endswith("decode_kernel"):
                assert bound <= shared + 1024, row
            seen.add(row["kernel"])
    assert seen == {"decode_kernel", "prefill_kernel", "shared_kernel", "mla_decode_kernel", "mla_prefill_kernel"}


def test_the_stored_table_has_a_row_for_every_variant():
    """As the rules are now: `python -m engine.attention.kernels.resources` makes it again."""
    with TABLE.open(newline="") as file:
        stored = [tuple(row[name] for name in COLUMNS) for row in csv.DictReader(file)]
    for architecture in ARCHITECTURES:
        wanted = []
        for variant in variants(architecture):
            options = dict(variant.options)
            stages = str(options.get("num_stages", options.get("STAGES", "")))
            size = str(head_size_of(variant.kernel, options))
            what = size, tile_of(options), options.get("PAGES", ""), stages, switches_of(options)
            wanted.append((variant.kernel.__name__, f"sm_{architecture}", variant.dtype, *what))
        assert Counter(wanted) == Counter(row for row in stored if row[1] == f"sm_{architecture}")


def test_a_bound_by_hand():
    """Two tiles of K and of V on their way, 16 rows of Q and of weights; a warp group's third tile."""
    assert program_bytes(16, 64, 3, 128, 2, 90) == 2 * 2 * 64 * 128 * 2 + 16 * (128 + 64) * 2 + 1024
    assert program_bytes(64, 64, 3, 128, 2, 90) == 3 * 2 * 64 * 128 * 2 + 64 * 128 * 2 + 1024
    assert program_bytes(64, 64, 3, 128, 2, 80) == 2 * 2 * 64 * 128 * 2 + 64 * (128 + 64) * 2 + 1024
