"""Launches that end before the device: compiled as the launcher would compile them, for a device that is not there.

    with launches(90) as made:
        mla_decode(...)   # tensors on the CPU
    made[0].kernel, made[0].error

Triton's own binder says what each argument is specialized on (1, divisible by 16, descriptors), so that nothing differs
from a launch but the launch. Compiling and interpreting exclude each other in one process: run without
TRITON_INTERPRET.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from engine.attention.kernels import launch_mla, launch_mla_hopper
from engine.attention.kernels.resources import WARP, usage

SHARED_PER_PROGRAM = {80: 163 * 1024, 90: 227 * 1024}
"""Bytes of shared memory that a program may ask for."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel that was compiled, or why it could not be."""

    kernel: str
    shared_bytes: int
    registers: int
    spill_bytes: int
    error: str = ""


class AbsentDevice:
    """What Triton asks of its driver before a launch."""

    def __init__(self, architecture: int) -> None:
        self.target = GPUTarget("cuda", architecture, WARP)

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> int:
        return self.target.arch

    def get_current_stream(self, device: int) -> int:
        return 0


@contextlib.contextmanager
def launches(architecture: int) -> Iterator[list[Launch]]:
    """Every launch within compiles, and is noted, once a kernel and specialization; none raises.

    The process is left without another driver: where there is no device, Triton has none to go back to.
    """
    made: list[Launch] = []
    seen: set[int] = set()
    run = JITFunction.run

    def compile_only(self: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> None:
        name = self.__name__
        try:
            kernel = run(self, *arguments, grid=grid, warmup=True, **options)
            if id(kernel) not in seen:
                seen.add(id(kernel))
                made.append(_noted(name, kernel, architecture))
        except Exception:  # noqa: BLE001 - whatever a compiler raises is what is asked for
            made.append(Launch(name, 0, 0, 0, traceback.format_exc()))

    triton.runtime.driver.set_active(AbsentDevice(architecture))
    with (
        mock.patch.object(JITFunction, "run", compile_only),
        mock.patch.object(launch_mla, "launches_early", return_value=architecture >= 90),
        mock.patch.object(launch_mla, "capability", return_value=architecture),
        mock.patch.object(launch_mla, "chosen_decode", lambda *call: _chosen(architecture, *call)),
    ):
        yield made


def _chosen(architecture: int, q: torch.Tensor, kv_cache: torch.Tensor, rank: int, max_seq_len: int) -> Any:
    """`chosen_decode` as on a device: tensors say that they are on the CPU."""
    hopper = architecture // 10 == 9 and launch_mla_hopper.takes(q, kv_cache, rank)
    return launch_mla.mla_decode_config(launch_mla.mla_shape_of(q, rank, max_seq_len, kv_cache.shape[1]), hopper=hopper)


def _noted(name: str, kernel: Any, architecture: int) -> Launch:
    registers, spill_bytes = usage(kernel.asm["cubin"])
    shared = kernel.metadata.shared
    over = shared > SHARED_PER_PROGRAM[architecture]
    return Launch(name, shared, registers, spill_bytes, f"{shared} bytes of shared memory" if over else "")
