"""The command `validate`, and `trace steps`: what is typed to hold pagelab against files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from experiments.flags import Json, Overwrite
from experiments.whole import MaybeWhole, Whole

Plain = Parameter(show_default=False)


def validate(
    target: Path,
    *,
    against: Annotated[Path | None, Plain] = None,
    tolerance: Annotated[float | None, Plain] = None,
    json: Json = False,
) -> int:
    """Check stored results (hashes, row counts, checks), or a configuration file; or hold results against an engine.

    Parameters
    ----------
    against
        Detailed result of `vllm bench serve`: errors of TTFT, TPOT and E2E of the results, which have replayed it.
    tolerance
        Largest error that is let pass, as a fraction: 0.05; exit code 4 beyond it [none].
    """
    from experiments.exits import UsageError
    from experiments.truth.judge import against_verb
    from experiments.validate import validate_verb

    if against is not None:
        return against_verb(against, target, tolerance, as_json=json)
    if tolerance is not None:
        raise UsageError("--tolerance is of a comparison with an engine: say --against FILE")
    return validate_verb(target, as_json=json)


def steps(
    log: Path,
    target: Path,
    *,
    block_size: Whole = 16,
    kv_tokens: MaybeWhole = None,
    kernel: Annotated[str | None, Plain] = None,
    overwrite: Overwrite = False,
) -> int:
    """Write the steps of a vLLM log as a table (CSV) that `pagelab calibrate` reads.

    Parameters
    ----------
    log
        Of a vLLM that was started with --enable-logging-iteration-details.
    target
        CSV file.
    block_size
        The engine's.
    kv_tokens
        Size of its KV cache in tokens [what the log says].
    kernel
        Its attention back end [what the log says].
    """
    from experiments.truth.steps import steps_verb

    return steps_verb(log, target, block_size, kv_tokens, kernel, overwrite=overwrite)
