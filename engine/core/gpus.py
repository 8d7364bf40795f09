"""The GPUs that capacities and roofline step times can be asked for."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from engine.core.suggestion import unknown_name


@dataclass(frozen=True, slots=True)
class Gpu:
    """One device. Peaks are the vendor's dense figures, not what a kernel reaches."""

    name: str
    total_bytes: int
    """Device memory as the driver reports it (cudaDeviceProp.totalGlobalMem); drivers differ by a few MiB."""
    nominal_gb: int
    """The number in the card's name."""
    bf16_flops_per_s: float
    """Tensor-core peak for bf16 inputs without sparsity, fp32 accumulation."""
    bandwidth_bytes_per_s: float
    """Peak of the device memory."""
    source: str
    """Where total_bytes comes from. Peaks are from the vendor's data sheets."""


_LISTING = "a published deviceQuery listing"
_PAPER = "the value with which Table 1 of the SOSP'23 paper comes out; not measured"
_TABLE = (
    Gpu("a100-40g", 42_314_694_656, 40, 312e12, 1.555e12, _PAPER),
    Gpu("a100-80g", 85_031_714_816, 80, 312e12, 2.039e12, _PAPER),
    Gpu("h100-80g", 85_028_896_768, 80, 989.4e12, 3.35e12, _LISTING),
    Gpu("h200-141g", 150_109_880_320, 141, 989.4e12, 4.8e12, "measured, driver 580.159.04"),
    Gpu("l4-24g", 23_612_293_120, 24, 121e12, 0.3e12, _LISTING),
    Gpu("l40s-48g", 47_576_711_168, 48, 362e12, 0.864e12, _LISTING),
    Gpu("a10g-24g", 23_826_792_448, 24, 70e12, 0.6e12, "a published listing in whole MiB (22,723)"),
    Gpu("rtx4090", 25_250_627_584, 24, 165.2e12, 1.008e12, _LISTING),
)
GPUS: Mapping[str, Gpu] = MappingProxyType({gpu.name: gpu for gpu in _TABLE})
"""By name. The SXM form where a card comes in several."""

_ALIASES = MappingProxyType(
    {
        "a100": "a100-80g",
        "h100": "h100-80g",
        "h200": "h200-141g",
        "l4": "l4-24g",
        "l40s": "l40s-48g",
        "a10g": "a10g-24g",
        "rtx4090-24g": "rtx4090",
    }
)


def lookup_gpu(name: str) -> Gpu:
    """The GPU of that name, in any case. ValueError with the nearest names on a miss."""
    key = name.lower().replace("_", "-").replace(" ", "-").removeprefix("nvidia-")
    key = key.removesuffix("b") if key.endswith("gb") else key
    gpu = GPUS.get(_ALIASES.get(key, key))
    if gpu is None:
        raise unknown_name("GPU", name, GPUS)
    return gpu
