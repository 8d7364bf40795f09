"""Fig 15: memory saved by sharing, parallel samples and beams, and what the prefix cache saves in place of forks.

The saving is the artifact's: 1 - 1 / (mean over iterations of logical over physical blocks), within 300 to 900 s. The
paper has one run of each. On ShareGPT six samples are a dozen requests at a time, so that runs differ by several points
with the requests that are drawn: compared is the artifact's own draw (its seed 0), and draws of ours stand beside it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from experiments.paper.claims import Claim, Result, over_seeds
from experiments.paper.experiment import Experiment, Table
from experiments.paper.runs import Lab
from experiments.paper.sharing_runs import Draw, GroupKey, Way
from experiments.sharing import BEAM_SPREAD

SAVING: Final = "iter_sharing_saving_frac"
BY_TIME: Final = "sharing_saving_frac"
RATES: Final = {"alpaca": 20.0, "sharegpt": 4.0}
"""Requests a second: as scripted for Fig 15 (Alpaca), and as scripted for ShareGPT in Fig 2, whose memory is measured
the same way."""
PARALLEL: Final = {
    ("alpaca", 2): 6.09,
    ("alpaca", 4): 8.53,
    ("alpaca", 6): 9.79,
    ("sharegpt", 2): 16.2,
    ("sharegpt", 6): 30.5,
}
BEAMS: Final = {
    ("alpaca", 2): 37.56,
    ("alpaca", 4): 53.13,
    ("alpaca", 6): 55.16,
    ("sharegpt", 2): 44.3,
    ("sharegpt", 6): 66.3,
}
FITTED: Final = ("alpaca", 2)
"""The beams whose saving `BEAM_SPREAD` was fitted to."""
TOLERANCE: Final = 1.0
STAND_IN_TOLERANCE: Final = {"alpaca": 2.5, "sharegpt": 9.0}
"""Points. Stand-in pairs are drawn without the tie between a prompt and its answer; ShareGPT's is one short draw."""
MAX_SEEDS: Final = 3
LONG: Final = (900, (300.0, 900.0))
"""Seconds of arrivals, and the window: as in the artifact."""
SHORT: Final = (240, (80.0, 240.0))
"""Searches are slow to simulate: every step of each has a selection."""
QUICK: Final = {"alpaca": (45, (15.0, 45.0)), "sharegpt": (300, (100.0, 300.0))}
REQUESTS: Final = (("alpaca", 4), ("sharegpt", 2), ("sharegpt", 6))
"""Samples that are requests of their own, beside the same as groups."""
WHY_BEAMS: Final = (
    f"beams' ancestry is a model (sim.ancestry) with one parameter, spread {BEAM_SPREAD:g}, fitted to Alpaca's width "
    "2: its candidates are independent, those of real logits are not"
)
WHY_DRAWS: Final = "the paper has one run, and this one is of another draw: runs of a dozen requests at a time differ"
WHY_REQUESTS: Final = "the paper has no prefix cache: shown is what n requests of equal prompts share beside a fork"


def keys_of(lab: Lab, lengths: str, way: Way, width: int, draw: Draw = "own") -> list[GroupKey]:
    """A run a seed; the artifact's draw is one."""
    span, window = QUICK[lengths] if lab.quick else SHORT if way == "beam" else LONG
    many = 1 if lab.quick or draw == "artifact" or way == "beam" else min(lab.num_seeds, MAX_SEEDS)
    if draw == "own" and lengths == "sharegpt" and way == "parallel" and not lab.quick:
        many = lab.num_seeds
    return [GroupKey(lengths, "paged", way, width, RATES[lengths], seed, span, window, draw) for seed in range(many)]


def _judged(lab: Lab, lengths: str, width: int) -> list[GroupKey]:
    """ShareGPT's real pairs in the artifact's draw, else draws of ours."""
    artifact = lengths == "sharegpt" and lab.is_real(lengths)
    return keys_of(lab, lengths, "parallel", width, "artifact" if artifact else "own")


def runs(lab: Lab) -> list[GroupKey]:
    """All of them, the long ones first."""
    wanted = [key for lengths, width in _beams(lab) for key in keys_of(lab, lengths, "beam", width)]
    for lengths, width in PARALLEL:
        wanted += [*_judged(lab, lengths, width), *keys_of(lab, lengths, "parallel", width)]
    wanted += [key for lengths, width in _requests(lab) for key in keys_of(lab, lengths, "requests", width)]
    return list(dict.fromkeys(wanted))


def _beams(lab: Lab) -> list[tuple[str, int]]:
    """All; a quick run has Alpaca's two smaller ones."""
    return [("alpaca", 2), ("alpaca", 4)] if lab.quick else list(BEAMS)


def _requests(lab: Lab) -> Sequence[tuple[str, int]]:
    return REQUESTS[1:] if lab.quick else REQUESTS


def _claim(lab: Lab, name: str, lengths: str, what: str, expected: float, tolerance: float) -> Claim:
    source = "Fig 15" if lengths == "alpaca" else "section 6.3"
    stand_in = () if lab.is_real(lengths) else ("stand-in",)
    short = ("short-traces",) if lab.quick else ()
    rest = ("head-of-file", "quanta", "per-iteration", "step-model", "pool-984", "seeds")
    metric = f"memory saved by sharing, {lengths}, {what}"
    return Claim(f"fig15/{name}", metric, expected, "%", tolerance, source, "A", (*stand_in, *short, *rest))


def _result(lab: Lab, claim: Claim, keys: Sequence[GroupKey]) -> Result:
    values, by_time = (lab.values(keys, name, 100) for name in (SAVING, BY_TIME))
    batch = lab.values(keys, "iter_mean_batch_size")
    running = f"{_mean(batch):.1f} sequences run; ratio of sums over time {_mean(by_time):.2f}"
    return over_seeds(claim, values, running)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _parallel(lab: Lab, lengths: str, width: int) -> list[Result]:
    expected, real = PARALLEL[lengths, width], lab.is_real(lengths)
    tolerance = TOLERANCE if real else STAND_IN_TOLERANCE[lengths]
    if lab.quick:
        tolerance = max(tolerance, STAND_IN_TOLERANCE[lengths])
    claim = _claim(lab, f"{lengths}/parallel-{width}", lengths, f"{width} samples", expected, tolerance)
    if lengths == "alpaca":
        return [_result(lab, claim, _judged(lab, lengths, width))]
    claim = replace(claim, deviations=(*claim.deviations, "sharegpt-rate", "zero-tokens"))
    if not real:
        return [_result(lab, claim, keys_of(lab, lengths, "parallel", width))]
    own = replace(claim, id=f"{claim.id}/own-draws", why_reported=WHY_DRAWS)
    drawn = tuple(key for key in claim.deviations if key != "seeds")
    claim = replace(claim, deviations=drawn)
    own_keys = keys_of(lab, lengths, "parallel", width)
    return [_result(lab, claim, _judged(lab, lengths, width)), _result(lab, own, own_keys)]


def _beam(lab: Lab, lengths: str, width: int) -> Result:
    fitted = (lengths, width) == FITTED
    claim = _claim(lab, f"{lengths}/beam-{width}", lengths, f"{width} beams", BEAMS[lengths, width], 2 * TOLERANCE)
    zero = ("zero-tokens", "sharegpt-rate") if lengths == "sharegpt" else ()
    tolerance = STAND_IN_TOLERANCE["alpaca"] if not lab.is_real(lengths) or lab.quick else claim.tolerance
    claim = replace(claim, deviations=(*claim.deviations, "ancestry", *zero), fitted=fitted, tolerance=tolerance)
    claim = claim if fitted else replace(claim, why_reported=WHY_BEAMS)
    return _result(lab, claim, keys_of(lab, lengths, "beam", width))


def _as_requests(lab: Lab, lengths: str, width: int) -> Result:
    """What n requests save beside what a fork of the same requests does."""
    fork = lab.values(keys_of(lab, lengths, "parallel", width), SAVING, 100)
    keys = keys_of(lab, lengths, "requests", width)
    claim = _claim(
        lab, f"{lengths}/requests-{width}", lengths, f"{width} equal requests, over a fork's", _mean(fork), 0
    )
    claim = replace(claim, why_reported=WHY_REQUESTS, source="the same requests as groups", confidence="R")
    return _result(lab, replace(claim, deviations=(*claim.deviations, "own-law")), keys)


def judge(lab: Lab) -> list[Result]:
    """Parallel samples judged, beams reported but for the fitted one, requests beside forks."""
    results = [result for lengths, width in PARALLEL for result in _parallel(lab, lengths, width)]
    results += [_beam(lab, lengths, width) for lengths, width in _beams(lab)]
    return results + [_as_requests(lab, lengths, width) for lengths, width in _requests(lab)]


COLUMNS: Final = {
    "logical blocks": "mean_logical_blocks",
    "physical blocks": "mean_physical_blocks",
    "forks": "num_forks",
    "copied blocks": "num_copied_blocks",
    "preemptions": "num_preemptions",
    "swapped out": "num_swapped_out_blocks",
    "swaps refused": "num_swaps_refused",
    "recomputed tokens": "num_recomputed_tokens",
    "s/token": "mean_normalized_latency_s",
}


def tables(lab: Lab) -> list[Table]:
    """Every run: what was saved, copied, swapped and computed again."""
    rows = []
    for key in runs(lab):
        (point,) = lab.measure([key])
        saved = [100 * point[name] for name in (SAVING, BY_TIME)]
        counts = [point.get(name) for name in COLUMNS.values()]
        rows.append((key.lengths, key.way, key.width, key.draw, key.seed, *saved, *counts))
    heads = ("lengths", "way", "width", "draw", "seed", "saved %", "by time %", *COLUMNS)
    note = "saved %: mean of ratios over iterations; by time: 1 - mean physical / mean logical blocks over time."
    spread = _spread(lab)
    return [Table("fig15/runs", "Fig 15: every run", heads, tuple(rows), f"{note}{spread}")]


def _spread(lab: Lab) -> str:
    """How much single runs of six samples differ."""
    values = lab.values(keys_of(lab, "sharegpt", "parallel", 6), SAVING, 100)
    if len(values) < 2:
        return ""
    return (
        f" ShareGPT, 6 samples: {min(values):.1f} to {max(values):.1f}, sd {statistics.stdev(values):.1f} over draws."
    )


FIG15: Final = Experiment("fig15", "Fig 15: memory saved by sharing, OPT-13B", judge, runs, tables)
