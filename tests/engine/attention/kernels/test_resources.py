"""Every kernel compiles ahead of time for sm_80 and sm_90, in a process that does not interpret."""

import csv
import io
import os
import subprocess
import sys

import pytest

from engine.attention.kernels.pages import Pages
from engine.attention.kernels.resources import (
    TOOLS,
    Resources,
    resident,
    rows,
    serialized,
    usage,
    widest_access,
    write_table,
)
from engine.attention.kernels.signatures import hopper_descriptor
from engine.attention.kernels.variants import hopper, variants

KERNELS = {
    *("plan_kernel", "decode_kernel", "reduce_kernel", "prefill_kernel", "write_kernel", "copy_kernel"),
    *("shared_kernel", "shared_plan_kernel", "merge_kernel"),
}
ALL = {"sm_80": KERNELS, "sm_90": KERNELS | {"hopper_kernel"}}
LATENTS = {"mla_decode_kernel", "mla_prefill_kernel", "mla_reduce_kernel", "mla_write_kernel"}
"""Compiled in test_mla_resources.py."""
OF_LATENTS = {"sm_80": LATENTS, "sm_90": LATENTS | {"mla_pair_kernel"}}
HOPPER_SPILL_BYTES = 96
"""Scalars that its warps keep over their loops; the smallest vector of scores would be 256."""
COMPILE = """
import multiprocessing, sys
from concurrent.futures import ProcessPoolExecutor
from engine.attention.kernels.resources import rows, write_table
from engine.attention.kernels.tuning import DecodeConfig
from engine.attention.kernels.variants import Variant, hopper, swept, variants

def chosen(architecture):
    seen = {}
    for variant in variants(architecture):
        options = dict(variant.options)
        if variant.kernel.__name__.startswith("mla_"):
            continue
        plain = bool(options.get("WINDOW")) == bool(options.get("SOFT_CAP")) and "BOX" not in options
        if variant.dtype == "bf16" and options.get("D", 128) == 128 and plain:
            apart = architecture == 90 and options.get("WINDOW")  # on sm_80 the last one serves: window and soft-cap
            fp8 = options.get("FP8")
            if not fp8 or variant.kernel.__name__ != "prefill_kernel" or options["PAGES"] != "divide":
                seen[variant.kernel.__name__, options.get("PAGES"), apart, options.get("SHARED"), fp8] = variant
    return seen.values()


def row(index):
    variant, architecture = work[index]
    return next(rows([variant], [architecture]))


def by_bits(variant):  # as devices before 8.9 convert E4M3
    return Variant.of(variant.kernel, variant.dtype, dict(variant.options) | {"NATIVE": False})


hoppers = [hopper("bf16", 128, 4, 16), hopper("fp16", 64, 5, 256), hopper("bf16", 64, 1, 0)]
twins = swept([DecodeConfig(64, 4, 3, 264, 128)], 16) + swept([DecodeConfig(64, 4, 3, 264, 128)], 0)
work = [(variant, 90) for variant in [*hoppers, *twins, *chosen(90)]] + [(variant, 80) for variant in chosen(80)]
work += [(by_bits(variant), 80) for variant in variants(90) if dict(variant.options).get("FP8")][:1]
with ProcessPoolExecutor(2, multiprocessing.get_context("fork")) as pool:
    write_table(pool.map(row, range(len(work))), sys.stdout)
"""
PRODUCT = """
.version 8.3
.target sm_90a
.address_size 64
.visible .entry product(.param .u64 a, .param .u64 b, .param .u64 out)
{{
    .reg .f32 %f<{number}>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [a];
    ld.param.u64 %rd2, [b];
    ld.param.u64 %rd3, [out];
    {loads}
    wgmma.fence.sync.aligned;
    {products}
    wgmma.commit_group.sync.aligned;
    wgmma.wait_group.sync.aligned 0;
    {stores}
    ret;
}}
"""


def products(count):
    """PTX with `count` warp-group products in flight, of 64 accumulators a thread each."""
    numbers = [f"%f{index}" for index in range(64 * count)]
    products = [
        f"wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {{{', '.join(numbers[first : first + 64])}}}, "
        "%rd1, %rd2, 1, 1, 1, 0, 0;"
        for first in range(0, 64 * count, 64)
    ]
    return PRODUCT.format(
        number=64 * count,
        loads="\n".join(f"ld.global.f32 {number}, [%rd3 + {4 * at}];" for at, number in enumerate(numbers)),
        products="\n".join(products),
        stores="\n".join(f"st.global.f32 [%rd3 + {4 * at}], {number};" for at, number in enumerate(numbers)),
    )


@pytest.fixture(scope="module")
def table():
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", COMPILE], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return list(csv.DictReader(io.StringIO(done.stdout)))


def test_every_kernel_and_address_arithmetic_compiles_for_both_architectures(table):
    found = {(row["kernel"], row["pages"], row["architecture"]) for row in table}
    for architecture, kernels in ALL.items():
        assert {kernel for kernel, _, arch in found if arch == architecture} == kernels
        for kernel in ("decode_kernel", "prefill_kernel"):
            for mode in ("contiguous", "shift", "divide", "whole"):
                assert (kernel, mode, architecture) in found
    assert {pages for kernel, pages, _ in found if kernel == "hopper_kernel"} == {"boxes", "blocks", "contiguous"}


def test_what_reads_an_fp8_cache_compiles_by_instructions_and_by_bits(table):
    found = {(row["kernel"], row["pages"], row["architecture"]) for row in table if "fp8" in row["switches"].split()}
    for kernel, modes in {
        "decode_kernel": ("contiguous", "shift", "divide", "whole"),
        "prefill_kernel": ("contiguous", "shift", "whole"),
        "shared_kernel": ("shift", "whole"),
        "write_kernel": ("shift",),
    }.items():
        assert {(kernel, mode, "sm_90") for mode in modes} <= found
    assert ("decode_kernel", "shift", "sm_80") in found


def test_decode_spills_nothing_and_several_programs_share_a_multiprocessor(table):
    for row in table:
        if row["kernel"] not in ("prefill_kernel", "hopper_kernel") and row["architecture"] == "sm_90":
            assert row["spill_bytes"] == "0", row
        if row["kernel"] == "decode_kernel" and row["architecture"] == "sm_90" and row["pages"] != "contiguous":
            assert int(row["programs_per_sm"]) >= 2, row


def test_attention_runs_on_tensor_cores(table):
    """The group's heads in M: warp-wide instructions in decode, warp-group-wide ones in prefill on sm_90."""
    for row in table:
        if row["kernel"] == "decode_kernel":
            assert int(row["mma"]) > 0, row
        if row["kernel"] in ("prefill_kernel", "hopper_kernel", "shared_kernel"):
            assert int(row["wgmma" if row["architecture"] == "sm_90" else "mma"]) > 0, row


def test_writes_and_copies_move_whole_vectors(table):
    """Which takes every number that bounds one to be known as divisible by 16."""
    found = [row for row in table if row["kernel"] in ("write_kernel", "copy_kernel")]
    assert found
    for row in found:
        assert row["access_bytes"] == "16", row


def test_every_variant_fits_on_its_multiprocessor(table):
    for row in table:
        assert int(row["programs_per_sm"]) >= 1, row


def test_matrix_instructions_overlap_with_what_is_beside_them(table):
    for row in table:
        assert row["serialized"] == "False", row


def test_the_paged_kernel_takes_the_shared_memory_of_its_twin(table):
    """Table entries come a tile ahead, so an indirect load takes no stage of the pipeline for itself."""
    shared = {
        (row["pages"], row["switches"], row["tile"], row["num_warps"], row["num_stages"]): int(row["shared_bytes"])
        for row in table
        if row["kernel"] == "decode_kernel" and row["architecture"] == "sm_90"
    }
    twins = [key for key in shared if key[0] == "contiguous" and ("shift", *key[1:]) in shared]
    assert twins
    for twin in twins:
        assert shared["shift", *twin[1:]] == shared[twin]


def test_hopper_keeps_its_vectors_in_registers_and_its_tiles_in_shared_memory(table):
    """Two tiles of 128 query rows, two of 128 keys of K and of V; barriers and the work ring take less than 1 KiB."""
    found = [row for row in table if row["kernel"] == "hopper_kernel"]
    assert {row["head_size"] for row in found} == {"64", "128"}
    for row in found:
        tiles = (2 * 128 + 2 * 2 * 128) * int(row["head_size"]) * 2
        assert tiles < int(row["shared_bytes"]) < tiles + 1024, row
        assert int(row["spill_bytes"]) <= HOPPER_SPILL_BYTES, row
        assert row["num_warps"] == "12", row


@pytest.mark.parametrize("count,lost", [(1, False), (4, True)])
def test_products_that_need_too_many_registers_are_seen_to_wait_and_to_spill(count, lost, tmp_path):
    """The second: 256 accumulators a thread, of 255 registers."""
    code, cubin = tmp_path / "product.ptx", tmp_path / "product.cubin"
    code.write_text(products(count))
    subprocess.run([TOOLS / "ptxas", "--gpu-name=sm_90a", code, "-o", cubin], check=True)
    registers, spilled = usage(cubin.read_bytes())
    assert serialized(code.read_text(), 90) is lost
    assert (spilled > HOPPER_SPILL_BYTES) is lost
    assert registers == (255 if lost else pytest.approx(90, abs=20))


@pytest.mark.parametrize(
    "ptx,expected",
    [
        ("ld.global.b16 %rs1, [%rd1];\n@%p1 ld.global.v4.b32 {%r1, %r2, %r3, %r4}, [ %rd1 + 0 ];", 16),
        ("ld.global.L1::evict_first.L2::cache_hint.v2.b32 {%r1, %r2}, [%rd1];\nst.shared.v4.b32 [%r1], {};", 8),
        ("st.global.b16 [%rd1], {%rs1};\nld.param.b64 %rd1, [x];", 2),
        ("cp.async.cg.shared.global [%r1], [%rd1], 16;", 0),
    ],
)
def test_the_widest_access_by_hand(ptx, expected):
    assert widest_access(ptx) == expected


@pytest.mark.parametrize("architecture", [80, 90])
def test_variants_are_distinct_and_of_every_kernel(architecture):
    found = variants(architecture)
    assert len(set(found)) == len(found)
    assert {variant.kernel.__name__ for variant in found} == ALL[f"sm_{architecture}"] | OF_LATENTS[
        f"sm_{architecture}"
    ]


@pytest.mark.parametrize(
    "head_size,group,block_size,pages,keys,queries",
    [
        (128, 4, 16, "boxes", "[16, 64]", "[16, 4, 128]"),
        (64, 1, 64, "boxes", "[64, 64]", "[64, 1, 64]"),
        (128, 8, 128, "boxes", "[128, 64]", "[8, 8, 128]"),
        (128, 4, 256, "blocks", "[128, 64]", "[16, 4, 128]"),
        (128, 4, 24, "blocks", "[8, 64]", "[16, 4, 128]"),
        (128, 4, 0, "contiguous", "[128, 64]", "[16, 4, 128]"),
        (128, 5, 16, "boxes", "[16, 64]", ""),
    ],
)
def test_what_hopper_is_compiled_for(head_size, group, block_size, pages, keys, queries):
    """Loads of a block, or of its largest part that is a power of two; no box of Q where a group divides no tile."""
    options = dict(hopper("bf16", head_size, group, block_size).options)
    assert options["PAGES"] == pages
    for name in ("K_DESC", "V_DESC"):
        assert hopper_descriptor(name, "bf16", options).startswith(f"tensordesc<bf16{keys},NVMMASharedLayout(")
    q = hopper_descriptor("Q_DESC", "bf16", options)
    assert q.startswith(f"tensordesc<bf16{queries},NVMMASharedLayout(") if queries else q == "*bf16"


def test_an_interpreting_process_is_refused():
    with pytest.raises(RuntimeError, match="run without TRITON_INTERPRET"):
        next(rows())


@pytest.mark.parametrize(
    "architecture,shared,registers,num_warps,expected",
    [
        (90, 71_680, 102, 4, 3),
        (90, 38_912, 168, 2, 5),
        (90, 98_304, 255, 4, 2),
        (80, 71_680, 102, 4, 2),
        (90, 0, 24, 4, 16),
    ],
)
def test_residency_by_hand(architecture, shared, registers, num_warps, expected):
    assert resident(architecture, shared, registers, num_warps) == expected


def test_the_table_has_a_column_for_every_field():
    file = io.StringIO()
    write_table([], file)
    assert file.getvalue().strip().split(",") == list(Resources.__dataclass_fields__)


@pytest.mark.parametrize(
    "block_size,block_n,mode,shift",
    [
        (16, 64, "shift", 4),
        (1, 64, "shift", 0),
        (64, 64, "whole", 0),
        (256, 64, "whole", 0),
        (24, 16, "divide", 0),
        (48, 16, "whole", 0),
    ],
)
def test_the_address_arithmetic_of_a_block_size(block_size, block_n, mode, shift):
    assert Pages.of(block_size, block_n) == Pages(mode, block_size, shift)
