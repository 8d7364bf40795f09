"""Kernels compiled ahead of time, in a process of its own: compiling and interpreting exclude each other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[4]
ARCHITECTURES = (80, 90)


def compiled(module: str) -> list[dict[str, Any]]:
    """One record a case and architecture of `module.cases()`; AssertionError with what the compiler said."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", f"from tests.engine.model.kernels.compiled import main; main({module!r})"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return list(map(json.loads, done.stdout.splitlines()))


def main(module: str) -> None:
    """Writes the records to standard output, a line each."""
    import importlib

    for name, kernel, types, options in importlib.import_module(module).cases():
        for architecture in ARCHITECTURES:
            made = record(kernel, types, dict(options), architecture)
            sys.stdout.write(json.dumps({"case": name, **made}) + "\n")


def record(kernel: Any, types: dict[str, str], options: dict[str, Any], architecture: int) -> dict[str, Any]:
    """What a launch on aligned tensors compiles: `types` of the run-time arguments, the rest in `options`."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from engine.attention.kernels.resources import resident, usage, widest_access

    num_warps = options.pop("num_warps")
    names = [parameter.name for parameter in kernel.params]
    assert {*names} == {*types, *options}
    aligned = {
        (at,): [["tt.divisibility", 16]]
        for at, parameter in enumerate(kernel.params)
        if types.get(parameter.name, "").startswith(("*", "i32")) and not parameter.do_not_specialize
    }
    source = ASTSource(
        kernel,
        signature={name: types.get(name, "constexpr") for name in names},
        constexprs={(names.index(name),): value for name, value in options.items()},
        attrs=aligned,
    )
    built = triton.compile(source, target=GPUTarget("cuda", architecture, 32), options={"num_warps": num_warps})
    registers, stack = usage(built.asm["cubin"])
    ptx = built.asm["ptx"]
    return {
        "kernel": kernel.__name__,
        "architecture": architecture,
        "spill_bytes": stack,
        "threads_per_sm": resident(architecture, built.metadata.shared, registers, num_warps) * 32 * num_warps,
        "access_bytes": widest_access(ptx),
        "logarithms": ptx.count("lg2.approx"),
    }
