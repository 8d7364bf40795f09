"""The kernels of latents compile for sm_80 and sm_90, Hopper's own for sm_90: as in the table, and as launched."""

import csv
import io
import json
import os
import subprocess
import sys

import pytest

from engine.attention.kernels.signatures import type_of
from engine.attention.kernels.variants_mla import of_hopper

TABLE = """
import multiprocessing, sys
from concurrent.futures import ProcessPoolExecutor
from engine.attention.kernels.resources import rows, write_table
from engine.attention.kernels.variants_mla import Model, latents

def row(index):
    variant, architecture = work[index]
    return next(rows([variant], [architecture]))

work = []
for architecture in (90, 80):
    found = {}
    for variant in latents(Model(132, 8192, architecture)):
        options = dict(variant.options)
        whole = options.get("PAGES") in (None, "whole") or options.get("BOX") == 64 or "TOKENS" in options
        if variant.dtype == "bf16" and whole:
            key = variant.kernel.__name__, options.get("BLOCK_M"), options.get("TMA")
            found.setdefault(key, (variant, architecture))
    work += found.values()
work.sort(key=lambda one: one[0].kernel.__name__, reverse=True)
with ProcessPoolExecutor(2, multiprocessing.get_context("fork")) as pool:
    write_table(pool.map(row, range(len(work))), sys.stdout)
"""
PORTABLE = {"mla_decode_kernel", "mla_prefill_kernel", "mla_reduce_kernel", "mla_write_kernel"}
HOPPERS = {"mla_pair_kernel"}
TILES_OF_HOPPER = (64 + 2 * 64) * 576 * 2
"""Bytes: 64 heads' queries and two tiles of 64 latents."""
HOPPER_SPILL_BYTES = 128
"""Scalars that its warps keep over their loops; the smallest vector of scores would be 256."""


def in_a_process_that_compiles(*command):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr or done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def table():
    return list(csv.DictReader(io.StringIO(in_a_process_that_compiles("-c", TABLE))))


def test_every_kernel_compiles_for_its_architectures(table):
    found = {(row["kernel"], row["architecture"]) for row in table}
    assert {kernel for kernel, architecture in found if architecture == "sm_80"} == PORTABLE
    assert {kernel for kernel, architecture in found if architecture == "sm_90"} == PORTABLE | HOPPERS
    assert {row["head_size"] for row in table} == {"512+64", "512"}


def test_decodes_keep_their_sums_in_registers_and_fit(table):
    """16 heads: twice on a Hopper's multiprocessor."""
    for row in table:
        assert int(row["programs_per_sm"]) >= 1, row
        assert row["serialized"] == "False", row
        if row["kernel"] in ("mla_decode_kernel", "mla_reduce_kernel", "mla_write_kernel"):
            assert int(row["spill_bytes"]) <= 16, row
        if row["kernel"] == "mla_decode_kernel" and row["architecture"] == "sm_90" and row["tile"].startswith("16x"):
            assert int(row["programs_per_sm"]) >= 2, row


def test_attention_over_latents_runs_on_tensor_cores(table):
    for row in table:
        if row["kernel"] in HOPPERS:
            assert int(row["wgmma"]) > 0, row
        elif row["kernel"] in ("mla_decode_kernel", "mla_prefill_kernel"):
            assert int(row["wgmma"]) + int(row["mma"]) > 0, row


def test_hoppers_tiles_lie_in_shared_memory_once(table):
    found = [row for row in table if row["kernel"] in HOPPERS]
    assert len(found) == 1
    for row in found:
        assert TILES_OF_HOPPER < int(row["shared_bytes"]) < TILES_OF_HOPPER + 2048, row
        assert int(row["spill_bytes"]) <= HOPPER_SPILL_BYTES, row
        assert row["num_warps"] == "12", row


def test_a_write_moves_whole_vectors(table):
    assert {row["access_bytes"] for row in table if row["kernel"] == "mla_write_kernel"} == {"16"}


@pytest.mark.parametrize(
    "block_size,pages,box", [(16, "boxes", "[16, 64]"), (64, "boxes", "[64, 64]"), (24, "blocks", "[8, 64]")]
)
def test_what_hoppers_kernel_is_compiled_for(block_size, pages, box):
    options = dict(of_hopper("fp16", block_size, split=True).options)
    assert options["PAGES"] == pages
    assert type_of("KV_DESC", "fp16", options).startswith(f"tensordesc<fp16{box},NVMMASharedLayout(")
    assert type_of("Q_DESC", "fp16", options).startswith("tensordesc<fp16[1, 64, 64],NVMMASharedLayout(")


def launched(*words):
    """What `python -m tests.engine.attention.kernels.mla_launches` notes; any that does not compile fails."""
    lines = in_a_process_that_compiles("-m", "tests.engine.attention.kernels.mla_launches", *words).splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.slow
@pytest.mark.parametrize(
    "what,kernels",
    [
        ("rules", PORTABLE | HOPPERS),
        ("search", {"mla_decode_kernel", "mla_reduce_kernel"} | HOPPERS),
        ("device-tests", PORTABLE | HOPPERS),
    ],
)
def test_all_that_a_device_is_asked_for_compiles_as_the_launcher_specializes_it(what, kernels):
    assert {one["kernel"] for one in launched(what)} == kernels | {"plan_kernel"}
