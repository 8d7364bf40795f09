"""What every kernel variant takes of a multiprocessor, from compiling ahead of time: no GPU is needed.

    python -m engine.attention.kernels.resources > results/reference/kernels/resources.csv

Triton's wheel brings ptxas and cuobjdump, so cubins of any architecture can be made and read anywhere. Compiling and
interpreting exclude each other in one process: run without TRITON_INTERPRET.
"""

from __future__ import annotations

import csv
import dataclasses
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.experimental.gluon._runtime import GluonASTSource

from engine.attention.kernels.copy_blocks import copy_kernel
from engine.attention.kernels.device import interpreted
from engine.attention.kernels.launch_hopper import ROWS
from engine.attention.kernels.launch_mla_hopper import LATENT, RANK
from engine.attention.kernels.mla_pair import mla_pair_kernel
from engine.attention.kernels.signatures import type_of
from engine.attention.kernels.tuning_mla import HOPPER_HEADS
from engine.attention.kernels.variant import Variant
from engine.attention.kernels.variants import variants

ARCHITECTURES = (80, 90)
SHARED_PER_SM = {80: 164 * 1024, 89: 100 * 1024, 90: 228 * 1024}
"""Bytes of shared memory of a multiprocessor; each resident program takes 1 KiB more than it asks for."""
REGISTERS_PER_SM = 65_536
THREADS_PER_SM = {80: 2_048, 89: 1_536, 90: 2_048}
WARP = 32
TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
SWITCHES = ("WINDOW", "SOFT_CAP", "SPLIT", "SHARED", "TMA", "BOX", "GROUP", "DYNAMIC", "PINGPONG", "FP8")


@dataclass(frozen=True, slots=True)
class Resources:
    """One row of the table."""

    kernel: str
    architecture: str
    dtype: str
    head_size: int | str
    """Of a latent 512+64: what is V, and the rest."""
    pages: str
    tile: str
    """BLOCK_M x BLOCK_N of attention, tokens x elements of the write, runs x elements of the copy."""
    num_warps: int
    num_stages: int | str
    switches: str
    """window, soft_cap, split, shared, tma: those that are compiled in; of hopper_kernel box (slots a load), group
    (none: Q by pointers), dynamic, pingpong."""
    shared_bytes: int
    registers: int
    """A thread at the launch; the warps of hopper_kernel then exchange theirs."""
    spill_bytes: int
    """Stack frame a thread: registers that did not fit."""
    programs_per_sm: int
    """Resident at once, as shared memory, registers and threads allow."""
    wgmma: int
    """Warp-group matrix instructions in the code (sm_90)."""
    serialized: bool
    """Whether ptxas lets each of them wait for the one before (its note C7510 and following): a lost overlap."""
    mma: int
    """Warp matrix instructions in the code."""
    access_bytes: int
    """Of a thread's widest load or store of global memory; copies into shared memory aside."""
    triton: str


def rows(chosen: Iterable[Variant] | None = None, architectures: Iterable[int] = ARCHITECTURES) -> Iterator[Resources]:
    """Compiles each variant (all of them unless `chosen`) for each architecture; RuntimeError under the interpreter."""
    if interpreted(copy_kernel):
        raise RuntimeError("kernels are interpreted in this process: run without TRITON_INTERPRET")
    for architecture in architectures:
        for variant in variants(architecture) if chosen is None else chosen:
            yield measured(variant, architecture)


def measured(variant: Variant, architecture: int) -> Resources:
    """Compiles one variant and reads its cubin."""
    options = dict(variant.options)
    launch = {name: options.pop(name) for name in ("num_warps", "num_stages", "launch_pdl") if name in options}
    compiled = triton.compile(source(variant, options), target=GPUTarget("cuda", architecture, WARP), options=launch)
    registers, stack = usage(compiled.asm["cubin"])
    shared, warps = compiled.metadata.shared, compiled.metadata.num_warps
    ptx = compiled.asm["ptx"]
    wgmma = ptx.count("wgmma.mma_async")
    return Resources(
        kernel=variant.kernel.__name__,
        architecture=f"sm_{architecture}",
        dtype=variant.dtype,
        head_size=head_size_of(variant.kernel, options),
        pages=options.get("PAGES", ""),
        tile=tile_of(options),
        num_warps=warps,
        num_stages=launch.get("num_stages", options.get("STAGES", "")),
        switches=switches_of(options),
        shared_bytes=shared,
        registers=registers,
        spill_bytes=stack,
        programs_per_sm=resident(architecture, shared, registers, warps),
        wgmma=wgmma,
        serialized=wgmma > 0 and serialized(ptx, architecture),
        mma=ptx.count("mma.sync"),
        access_bytes=widest_access(ptx),
        triton=triton.__version__,
    )


def source(variant: Variant, constants: dict[str, Any]) -> ASTSource:
    """The kernel specialised as a launch on aligned tensors would: pointers and strides divisible by 16."""
    signature: dict[str, str] = {}
    aligned: dict[tuple[int, ...], list[list[object]]] = {}
    for position, parameter in enumerate(variant.kernel.params):
        name = parameter.name
        kind = "constexpr" if parameter.is_constexpr else type_of(name, variant.dtype, constants)
        signature[name] = kind
        if kind.startswith("*") or (kind == "i32" and not parameter.do_not_specialize):
            aligned[(position,)] = [["tt.divisibility", 16]]
    names = [parameter.name for parameter in variant.kernel.params]
    constexprs = {(names.index(name),): value for name, value in constants.items()}
    language = GluonASTSource if variant.kernel.is_gluon() else ASTSource
    return language(variant.kernel, signature=signature, constexprs=constexprs, attrs=aligned)


def switches_of(constants: dict[str, Any]) -> str:
    """Names of what is switched on, with numbers where it is more than a switch."""
    found = ((name.lower(), constants[name]) for name in SWITCHES if constants.get(name))
    return " ".join(name if value is True else f"{name}={value}" for name, value in found)


def head_size_of(kernel: Any, constants: dict[str, Any]) -> int | str:
    """Elements of a head, or of the parts of a latent."""
    if "RANK" in constants or kernel is mla_pair_kernel:
        return f"{constants.get('RANK', RANK)}+{constants.get('ROTARY', LATENT - RANK)}"
    return str(constants.get("D", ""))


def tile_of(constants: dict[str, Any]) -> str:
    """The two sizes that say most."""
    if "BLOCK_E" in constants:
        return f"{constants.get('TOKENS', constants.get('BLOCK_R'))}x{constants['BLOCK_E']}"
    if "BOX" in constants:
        return f"{2 * ROWS if 'GROUP' in constants else HOPPER_HEADS}x{constants['BLOCK_N']}"
    first = constants.get("BLOCK_M", constants.get("BLOCK_P", constants.get("TOKENS", 1)))
    return f"{first}x{constants.get('BLOCK_N', constants.get('BLOCK', constants.get('BLOCK_R')))}"


def widest_access(ptx: str) -> int:
    """Bytes of the widest ld.global or st.global."""
    found = re.findall(r"\b(?:ld|st)\.global\S*?(?:\.v(\d))?\.[bfsu](\d+)\s", ptx)
    return max((int(count or 1) * int(bits) // 8 for count, bits in found), default=0)


def serialized(ptx: str, architecture: int) -> bool:
    """What ptxas says of the warp-group instructions when asked for its notes."""
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        command = [str(TOOLS / "ptxas"), "-v", f"--gpu-name=sm_{architecture}a", file.name, "-o", "/dev/null"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    return "instructions are serialized" in done.stderr


def usage(cubin: bytes) -> tuple[int, int]:
    """(registers, stack bytes) a thread, as the wheel's cuobjdump reads them."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run(
            [TOOLS / "cuobjdump", "--dump-resource-usage", file.name], capture_output=True, text=True, check=True
        )
    found = re.search(r"REG:(\d+) STACK:(\d+)", done.stdout)
    if found is None:
        raise RuntimeError(f"cuobjdump: expected REG and STACK, got {done.stdout!r}")
    return int(found[1]), int(found[2])


def resident(architecture: int, shared: int, registers: int, num_warps: int) -> int:
    """Programs that fit on a multiprocessor together; registers are handed out per warp, by 256."""
    per_warp = -(-registers * WARP // 256) * 256
    limits = (
        SHARED_PER_SM[architecture] // (shared + 1024),
        REGISTERS_PER_SM // (per_warp * num_warps),
        THREADS_PER_SM[architecture] // (WARP * num_warps),
        32,
    )
    return min(limits)


def write_table(table: Iterable[Resources], file: TextIO) -> None:
    """As CSV, a row as soon as it is there."""
    names = [field.name for field in dataclasses.fields(Resources)]
    writer = csv.DictWriter(file, names, lineterminator="\n")
    writer.writeheader()
    for row in table:
        writer.writerow(dataclasses.asdict(row))
        file.flush()


if __name__ == "__main__":
    write_table(rows(), sys.stdout)
