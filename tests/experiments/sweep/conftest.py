from pathlib import Path

import pytest

from experiments.settings import Config
from workloads import save_trace, synthetic_trace

LINEAR = "linear:0.02,0.0001,0.000001,0.0001"
BASE = {"kv_tokens": 4000, "step_model": LINEAR, "max_model_len": 2048}


@pytest.fixture(scope="session")
def tiny_file(tmp_path_factory):
    """A dozen requests, as a file."""
    path = tmp_path_factory.mktemp("traces") / "tiny.csv"
    save_trace(synthetic_trace("poisson", "uniform:20-200,5-60", 12, 3, rate_per_s=8.0), path)
    return path


@pytest.fixture
def base(tiny_file):
    """A configuration of milliseconds."""
    return Config.of(trace=str(tiny_file), **BASE)


@pytest.fixture
def sweep(pagelab, tiny_file):
    """`pagelab sweep` on the tiny trace in this process, in an empty folder."""

    def call(*words, jobs=1):
        fixed = ("--kv-tokens", "4000", "--step-model", LINEAR, "--max-model-len", "2048", "--jobs", jobs)
        return pagelab("sweep", "--trace", tiny_file, *fixed, *words)

    return call


@pytest.fixture
def cells():
    """Bytes of all that must not depend on who ran the cells, by name."""

    def read(folder: Path):
        paths = [folder / "summary.csv", folder / "plan.csv", *sorted(folder.glob("cells/*/*"))]
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}

    return read
