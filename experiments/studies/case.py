"""A run of a study: a configuration as `pagelab run` takes it, and what arrives. Used by every study."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from experiments.paper.runs import Lengths, Measured, numbers_of
from workloads import Trace, synthetic_trace

if TYPE_CHECKING:
    import pandas as pd

    from experiments.paper.runs import Lab

OPT_13B: Final = (
    ("model", "opt-13b"),
    ("gpu", "a100-40g"),
    ("kv_tokens", 15_744),
    ("max_model_len", 2048),
    ("step_model", "paper-13b"),
    ("enable_prefix_caching", False),
    ("max_num_seqs", 256),
)
"""The paper's pool of 984 blocks of 16, under vLLM's rules: chunked prompts, the full-sequence gate, no caching."""
POOL_SAID: Final = "OPT-13B, 15,744 token slots"


class Case(NamedTuple):
    """One run; hashable, so that studies share it."""

    settings: tuple[tuple[str, Any], ...]
    """Keys of the configuration by their names, as in `Config.of`."""
    num_requests: int
    rate_per_s: float
    """Of a Poisson process; 0: all requests are there at the start."""
    seed: int
    lengths: str = "sharegpt"
    """A recipe of `workloads.LENGTHS`, or a set that the caller may have given."""

    def trace(self, lengths: Lengths) -> Trace:
        """What arrives."""
        given = lengths.get(self.lengths)
        if given is not None:
            prompt, output = given
            longest = dict(self.settings)["max_model_len"]
            fits = prompt + output <= longest
            given = prompt[fits], output[fits]
        recipe = self.lengths if given is None else given
        if not self.rate_per_s:
            return synthetic_trace("all-at-once", recipe, self.num_requests, self.seed)
        return synthetic_trace("poisson", recipe, self.num_requests, self.seed, rate_per_s=self.rate_per_s)

    def run(self, lengths: Lengths) -> Measured:
        """Simulates it to its end. AssertionError if its numbers contradict each other."""
        from experiments.api import Config, run

        result = run(Config.of(**dict(self.settings), map_frames=0), self.trace(lengths))
        failed = result.outcome.failed_checks
        assert not failed, f"{self}: {failed}"
        return numbers_of(result.outcome.summary or {})


def case(settings: Sequence[tuple[str, Any]], count: int, rate_per_s: float, seed: int, **changes: Any) -> Case:
    """A case whose settings are those with some changed."""
    return Case(tuple({**dict(settings), **changes}.items()), count, rate_per_s, seed)


def mean_of(lab: Lab, cases: Sequence[Case], name: str, scale: float = 1.0) -> float:
    """One measured quantity, averaged over the runs."""
    return math.fsum(lab.values(cases, name, scale)) / len(cases)


def frame_of(lab: Lab, cases: Sequence[tuple[dict[str, Any], Case]], names: Sequence[str]) -> pd.DataFrame:
    """A row a run: the columns given with it, its seed, and what was measured."""
    import pandas as pd

    measured = lab.measure([one for _, one in cases])
    rows = [
        {**columns, "seed": one.seed, **{name: run.get(name) for name in names}}
        for (columns, one), run in zip(cases, measured, strict=True)
    ]
    return pd.DataFrame(rows)
