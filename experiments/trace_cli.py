"""The verb group `trace` of the command line; what it runs is imported inside."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from experiments.flags import Json, Overwrite

Format = Annotated[str, Parameter(help="Format, if not to be recognised: azure, lengths, mooncake, pagelab, vidur.")]
BadRow = Annotated[str, Parameter(help="refuse or drop (and count).")]

trace_app = App(name="trace", help="Look at, convert, make and check request traces.", result_action="return_value")


@trace_app.command
def inspect(file: Path, *, trace_format: Format = "auto", on_bad_row: BadRow = "refuse", json: Json = False) -> int:
    """What a trace is like: rate, burstiness, lengths, prefix hits."""
    from experiments.trace_verbs import inspect_verb

    return inspect_verb(file, trace_format, on_bad_row, as_json=json)


@trace_app.command
def convert(
    source: Path,
    target: Path,
    *,
    trace_format: Format = "auto",
    on_bad_row: BadRow = "refuse",
    overwrite: Overwrite = False,
) -> int:
    """Write a trace in pagelab's own format, by the suffix of TARGET."""
    from experiments.trace_verbs import convert_verb

    return convert_verb(source, target, trace_format, on_bad_row, overwrite=overwrite)


@trace_app.command
def synth(
    target: Path,
    *,
    arrivals: str = "poisson",
    lengths: str = "sharegpt",
    num_requests: Annotated[int, Parameter(name=("-n", "--num-requests"))] = 1000,
    request_rate: float = 4.0,
    cv: float = 2.0,
    seed: int = 0,
    overwrite: Overwrite = False,
) -> int:
    """Make a synthetic trace; the same arguments make the same file everywhere.

    Parameters
    ----------
    arrivals
        poisson, gamma, constant, all-at-once or counts.
    lengths
        sharegpt, alpaca, fixed:IN,OUT, uniform:IN-IN,OUT-OUT or lognormal:MU/SIGMA,MU/SIGMA.
    num_requests
        Rows of the trace.
    request_rate
        Requests per second.
    cv
        Coefficient of variation of gamma gaps.
    """
    from experiments.trace_verbs import synth_verb

    recipe = {"arrival": arrivals, "lengths": lengths, "num_requests": num_requests, "seed": seed}
    return synth_verb(target, {**recipe, "rate_per_s": request_rate, "cv": cv}, overwrite=overwrite)


@trace_app.command(name="validate")
def validate_trace(
    file: Path, *, trace_format: Format = "auto", on_bad_row: BadRow = "refuse", json: Json = False
) -> int:
    """Exit 0 if the file is a trace, 2 if not, with counts and the first reason."""
    from experiments.trace_verbs import validate_verb

    return validate_verb(file, trace_format, on_bad_row, as_json=json)
