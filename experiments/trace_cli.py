"""The verb group `trace` of the command line; what it runs is imported inside."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from experiments.flags import Json, Overwrite
from experiments.session_flags import SessionFlags
from experiments.trace_flags import ReadFlags
from experiments.truth.cli import steps
from experiments.whole import Whole

Plain = Parameter(show_default=False)

trace_app = App(
    name="trace", help="Fetch, look at, convert, make and check request traces.", result_action="return_value"
)

trace_app.command(steps)


@trace_app.command
def inspect(file: Path, *, read: ReadFlags = ReadFlags(), json: Json = False) -> int:  # noqa: B008
    """What a trace is like: rate, burstiness, lengths, prefix hits."""
    from experiments.trace_verbs import inspect_verb

    return inspect_verb(file, read, as_json=json)


@trace_app.command
def convert(
    source: Path,
    target: Path,
    *,
    to: str = "pagelab",
    lossy: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
    read: ReadFlags = ReadFlags(),  # noqa: B008
    overwrite: Overwrite = False,
) -> int:
    """Write a trace in pagelab's own format, by the suffix of TARGET, or in another tool's.

    Parameters
    ----------
    to
        pagelab, azure, blis, burstgpt, mooncake, timed-trace, vidur or vllm-custom.
    lossy
        Write it even where the format cannot hold all of the trace; what is lost is said.
    """
    from experiments.trace_verbs import convert_verb

    return convert_verb(source, target, read, to, lossy=lossy, overwrite=overwrite)


@trace_app.command
def synth(
    target: Path,
    *,
    arrivals: Annotated[str | None, Plain] = None,
    lengths: Annotated[str | None, Plain] = None,
    num_requests: Annotated[Whole | None, Parameter(name=("-n", "--num-requests"), show_default=False)] = None,
    request_rate: Annotated[float | None, Plain] = None,
    cv: Annotated[float | None, Plain] = None,
    clients: Annotated[Path | None, Plain] = None,
    workload: Annotated[str | None, Plain] = None,
    sessions: SessionFlags = SessionFlags(),  # noqa: B008
    seed: Whole = 0,
    overwrite: Overwrite = False,
) -> int:
    """Make a synthetic trace; the same arguments make the same file everywhere.

    Parameters
    ----------
    arrivals
        poisson, gamma, constant, all-at-once, counts, piecewise:RATE@S,RATE@S,... (rates in turn, for so many seconds
        each) or on-off:ON_S,OFF_S (bursts of these mean lengths) [poisson].
    lengths
        sharegpt, alpaca, fixed:IN,OUT, uniform:IN-IN,OUT-OUT or lognormal:MU/SIGMA,MU/SIGMA [sharegpt].
    num_requests
        Rows of the trace [1000; a paper-* workload: its own].
    request_rate
        Requests per second, on average [4; piecewise: its own].
    cv
        Coefficient of variation of the gaps [gamma: 2; piecewise, on-off: 1].
    clients
        TOML file with a [[client]] table for each class: name, request_rate, lengths, arrivals (steady, on-off:...,
        piecewise:WEIGHT@S,...), cv, num_clients, rate_skew. In place of arrivals, lengths, request_rate, cv.
    workload
        A workload by name: chat, few-shot or paper-*. In place of arrivals, lengths, cv, clients.
    """
    from experiments.trace_verbs import mix_verb, synth_verb
    from experiments.workload_synth import workload_verb

    if workload is not None or sessions != SessionFlags():
        others = {"arrivals": arrivals, "lengths": lengths, "cv": cv, "clients": clients}
        said = {"request_rate": request_rate, "num_requests": num_requests}
        return workload_verb(target, workload, sessions, said, others, seed, overwrite=overwrite)
    num_requests = 1000 if num_requests is None else num_requests
    recipe = {"arrival": arrivals, "lengths": lengths, "rate_per_s": request_rate, "cv": cv}
    if clients is not None:
        return mix_verb(target, clients, recipe, num_requests, seed, overwrite=overwrite)
    return synth_verb(target, recipe, num_requests, seed, overwrite=overwrite)


@trace_app.command
def fetch(
    name: str | None = None,
    *,
    output_dir: Annotated[Path, Parameter(name=("-o", "--output-dir"))] = Path(),
    url: Annotated[str | None, Plain] = None,
    overwrite: Overwrite = False,
) -> int:
    """Download a public trace and check it; without NAME, list those whose home is known.

    Parameters
    ----------
    name
        One of the list.
    output_dir
        Folder for it.
    url
        A mirror of the file, https:// or file://; the checksum stays the same.
    """
    from experiments.trace_fetch import fetch_verb

    return fetch_verb(name, output_dir, url, overwrite=overwrite)


@trace_app.command(name="validate")
def validate_trace(file: Path, *, read: ReadFlags = ReadFlags(), json: Json = False) -> int:  # noqa: B008
    """Exit 0 if the file is a trace, 2 if not, with counts and the first reason."""
    from experiments.trace_verbs import validate_verb

    return validate_verb(file, read, as_json=json)
