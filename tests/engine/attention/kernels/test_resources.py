"""Every kernel compiles ahead of time for sm_80 and sm_90, in a process that does not interpret."""

import csv
import io
import os
import subprocess
import sys

import pytest

from engine.attention.kernels.pages import Pages
from engine.attention.kernels.resources import Resources, resident, rows, write_table
from engine.attention.kernels.variants import variants

KERNELS = {"plan_kernel", "decode_kernel", "reduce_kernel", "prefill_kernel", "write_kernel", "copy_kernel"}
COMPILE = """
import sys
from engine.attention.kernels.resources import rows, write_table
from engine.attention.kernels.tuning import DecodeConfig
from engine.attention.kernels.variants import swept, variants

def chosen(architecture):
    seen = {}
    for variant in variants(architecture):
        options = dict(variant.options)
        plain = bool(options.get("WINDOW")) == bool(options.get("SOFT_CAP"))
        if variant.dtype == "bf16" and options.get("D", 128) == 128 and plain:
            seen[variant.kernel.__name__, options.get("PAGES"), options.get("WINDOW")] = variant
    return seen.values()


def table():
    for architecture in (80, 90):
        yield from rows(chosen(architecture), [architecture])
    twins = swept([DecodeConfig(64, 4, 3, 264, 128)], 16) + swept([DecodeConfig(64, 4, 3, 264, 128)], 0)
    yield from rows(twins, [90])


write_table(table(), sys.stdout)
"""


@pytest.fixture(scope="module")
def table():
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", COMPILE], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return list(csv.DictReader(io.StringIO(done.stdout)))


def test_every_kernel_and_address_arithmetic_compiles_for_both_architectures(table):
    found = {(row["kernel"], row["pages"], row["architecture"]) for row in table}
    for architecture in ("sm_80", "sm_90"):
        assert {kernel for kernel, _, arch in found if arch == architecture} == KERNELS
        for kernel in ("decode_kernel", "prefill_kernel"):
            for mode in ("contiguous", "shift", "divide", "whole"):
                assert (kernel, mode, architecture) in found


def test_decode_spills_nothing_and_several_programs_share_a_multiprocessor(table):
    for row in table:
        if row["kernel"] != "prefill_kernel" and row["architecture"] == "sm_90":
            assert row["spill_bytes"] == "0", row
        if row["kernel"] == "decode_kernel" and row["architecture"] == "sm_90" and row["pages"] != "contiguous":
            assert int(row["programs_per_sm"]) >= 2, row


def test_attention_runs_on_tensor_cores(table):
    """The group's heads in M: warp-wide instructions in decode, warp-group-wide ones in prefill on sm_90."""
    for row in table:
        if row["kernel"] == "decode_kernel":
            assert int(row["mma"]) > 0, row
        if row["kernel"] == "prefill_kernel":
            assert int(row["wgmma" if row["architecture"] == "sm_90" else "mma"]) > 0, row


def test_every_variant_fits_on_its_multiprocessor(table):
    for row in table:
        assert int(row["programs_per_sm"]) >= 1, row


def test_matrix_instructions_overlap_with_what_is_beside_them(table):
    for row in table:
        assert row["serialized"] == "False", row


def test_the_paged_kernel_takes_the_shared_memory_of_its_twin(table):
    """Table entries come a tile ahead, so an indirect load takes no stage of the pipeline for itself."""
    shared = {
        (row["pages"], row["switches"], row["num_warps"], row["num_stages"]): int(row["shared_bytes"])
        for row in table
        if row["kernel"] == "decode_kernel" and row["architecture"] == "sm_90"
    }
    twins = [key for key in shared if key[0] == "contiguous" and ("shift", *key[1:]) in shared]
    assert twins
    for twin in twins:
        assert shared["shift", *twin[1:]] == shared[twin]


def test_variants_are_distinct_and_of_every_kernel():
    found = variants(90)
    assert len(set(found)) == len(found)
    assert {variant.kernel.__name__ for variant in found} == KERNELS


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
