"""The four allocators on the real engine in one pinned pool, and the same runs simulated: what is run, and where.

On a CUDA device a model of a billion random parameters serves chat lengths; without one a model of two tiny layers
serves short ones, which takes seconds and shows the decisions alone.
"""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from experiments.paper.runs import ORCAS, Lab
from experiments.series import AttentionKernel, series_of

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from experiments.cells import Outcome
    from experiments.settings import Config
    from workloads import Trace

ALLOCATORS: Final = ("paged", *ORCAS)


class Place(NamedTuple):
    """One allocator under one attention kernel."""

    allocator: str
    kernel: AttentionKernel = "paged"

    @property
    def slug(self) -> str:
        """As a part of a claim's name."""
        return self.allocator if self.kernel == "paged" else f"{self.allocator}-{self.kernel}-kernel"

    @property
    def series(self) -> str:
        """As a table calls it."""
        return series_of(self.allocator, self.kernel)


PLACES: Final = (Place("paged"), *(Place(name, kernel) for name in ORCAS for kernel in ("paged", "contiguous")))


class Setup(NamedTuple):
    """What is served, in how much memory, under which limits; a pool that the requests overfill several times."""

    backend: str
    model: str
    """Catalogue name; empty for TINY."""
    lengths: str
    num_requests: int
    kv_tokens: int
    max_model_len: int
    max_num_seqs: int
    """Reached by the paged pool alone, while its requests are short."""
    max_num_batched_tokens: int


ON_GPU: Final = Setup("gpu", "llama-3.2-1b", "sharegpt", 400, 65_536, 2_048, 256, 2_048)
ON_GPU_QUICK: Final = ON_GPU._replace(num_requests=150, kv_tokens=24_576)
"""The same tokens of memory a request."""
ON_CPU: Final = Setup("cpu", "", "uniform:8-40,4-24", 24, 256, 64, 24, 48)
TINY: Final[dict[str, Any]] = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "vocab_size": 128,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10_000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
}
"""A config.json; its weights are drawn."""
BLOCK_SIZE: Final = 16
WEIGHTS_SEED: Final = 0
STEP_MODEL: Final = "linear:0.01,0,0,0"
"""Of the simulated runs: with all requests there from the start, no decision depends on the clock."""


class Measured(NamedTuple):
    """The runs of every place on the engine, and of every allocator in the simulator."""

    setup: Setup
    device: str
    real: dict[Place, Outcome]
    simulated: dict[str, Outcome]

    def value(self, place: Place, name: str) -> float:
        """One number of the summary of a run on the engine."""
        summary = self.real[place].summary
        assert summary is not None
        return float(summary[name])


def setup_for(lab: Lab) -> Setup:
    """What fits this machine; torch must be there."""
    from experiments.bench.machine import why_no_device

    if why_no_device():
        return ON_CPU
    return ON_GPU_QUICK if lab.quick else ON_GPU


def measured(lab: Lab) -> Measured:
    """All runs; once in a lab's life. RuntimeError where one breaks."""
    return lab.once("engine-compare", lambda: _measured(lab, setup_for(lab)))


def _measured(lab: Lab, setup: Setup) -> Measured:
    trace = _trace(lab, setup)
    _say(
        f"engine-compare: {len(trace)} requests, {setup.kv_tokens:,} token slots, on the {setup.backend} and simulated"
    )
    with _model(setup) as model:
        simulated = _outcomes(config_for(setup, model, step_model=STEP_MODEL, record_steps=True), trace)
        real = _outcomes(
            config_for(setup, model, backend=setup.backend, weights_seed=WEIGHTS_SEED, kernel="both"), trace
        )
    by_place = {Place(found.cell.allocator, found.cell.kernel): found for found in real}
    assert tuple(by_place) == PLACES, tuple(by_place)
    device = str(real[0].engine["device"])
    return Measured(setup, device, by_place, {found.cell.allocator: found for found in simulated})


def _trace(lab: Lab, setup: Setup) -> Trace:
    from workloads import synthetic_trace

    recipe = lab.lengths.get(setup.lengths, setup.lengths)
    return synthetic_trace("all-at-once", recipe, setup.num_requests, 0, name=f"engine-compare-{setup.num_requests}")


def _model(setup: Setup) -> AbstractContextManager[str]:
    """The catalogue's name, or a folder of the tiny model that is gone afterwards."""
    if setup.model:
        return nullcontext(setup.model)
    folder = TemporaryDirectory(prefix="pagelab-")
    (Path(folder.name) / "config.json").write_text(json.dumps(TINY), encoding="utf-8")
    return folder


def config_for(setup: Setup, model: str, **keys: Any) -> Config:
    """vLLM's rules on that pool."""
    from experiments.settings import Config

    return Config.of(
        model={"name": model},
        max_model_len=setup.max_model_len,
        allocator=ALLOCATORS,
        block_size=BLOCK_SIZE,
        kv_tokens=setup.kv_tokens,
        preset="vllm",
        max_num_seqs=setup.max_num_seqs,
        max_num_batched_tokens=setup.max_num_batched_tokens,
        too_long="truncate",
        map_frames=0,
        **keys,
    )


def _outcomes(config: Config, trace: Trace) -> list[Outcome]:
    from experiments.api import compare

    outcomes = [result.outcome for result in compare(config, trace).results]
    broken = {found.cell.name: found.failed_checks for found in outcomes if found.failed_checks}
    assert not broken, f"engine-compare: {broken}"
    return outcomes


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
