"""Stored results with everything that exporters read: preemptions, swaps, rejections, a cut, several allocators."""

import pytest

from experiments.cli import main
from workloads import save_trace, synthetic_trace

POOL = ("--kv-tokens", "1500", "--step-model", "linear:0.02,0.0001,0.000001,0.0001", "--max-model-len", "600")


@pytest.fixture(scope="session")
def results(tmp_path_factory):
    """Sixty requests in pools that are too small, cut while some are still there: `compared` and `swapped`."""
    folder = tmp_path_factory.mktemp("exports")
    save_trace(synthetic_trace("poisson", "uniform:20-700,5-120", 60, 3, rate_per_s=8.0), folder / "t.csv")
    words = ["--trace", str(folder / "t.csv"), *POOL, "--map-frames", "40", "--no-report", "--quiet", "--end", "12"]
    words += ["--no-full-sequence-gate"]
    grid = ["--allocator", "paged,orca-oracle", "-o", str(folder / "compared")]
    swap = ["--preemption", "swap", "--host-blocks", "400", "-o", str(folder / "swapped")]
    assert main(["compare", *words, *grid]) == 0
    assert main(["run", *words, *swap]) == 0
    return folder
