"""The device and the versions that a measurement was taken with. Reads only: no clock, no power limit is touched."""

from __future__ import annotations

import importlib
import platform
import subprocess
from typing import Any, Final

from engine.versions import version_of
from experiments.exits import DeviceMissing

VERSIONS: Final = ("numpy", "flashinfer-python", "flash_attn_interface", "vllm")
QUERY: Final = "driver_version,clocks.sm,clocks.mem,temperature.gpu,power.limit"


def need_device() -> str:
    """`cuda`, if torch and a CUDA device are here; DeviceMissing (exit code 6) with what is missing otherwise."""
    missing = why_no_device()
    if missing:
        raise DeviceMissing(f"bench kernel measures on a CUDA device, and {missing}")
    return "cuda"


def why_no_device() -> str:
    """What is missing for measurements on a device; empty where nothing is."""
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        return "torch is not installed (pip install -e '.[engine]')"
    if not torch.cuda.is_available():
        return f"torch {torch.__version__} sees none here"
    try:
        importlib.import_module("triton")
    except ImportError:
        return "triton is not installed"
    return ""


def described() -> dict[str, Any]:
    """Name, size and driver of the current CUDA device, and the versions of what runs on it."""
    import torch

    cudnn: Any = torch.backends.cudnn
    found = torch.cuda.get_device_properties(torch.cuda.current_device())
    return {
        "device": found.name,
        "device_bytes": found.total_memory,
        "num_sms": found.multi_processor_count,
        "l2_bytes": getattr(found, "L2_cache_size", None),
        "capability": f"{found.major}.{found.minor}",
        "driver": _driver(),
        "cuda": torch.version.cuda,
        "cudnn": cudnn.version(),
        "torch": torch.__version__,
        "triton": version_of("triton"),
        "python": platform.python_version(),
        "packages": {name: version for name in VERSIONS if (version := version_of(name))},
    }


def _driver() -> str | None:
    """What nvidia-smi says of the first device: driver, clocks (MHz), temperature (C), power limit (W)."""
    command = ["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.splitlines()[0].strip() if done.returncode == 0 and done.stdout else None
