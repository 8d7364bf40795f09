"""The command line `pagelab`: verbs, errors and exit codes. Heavy packages are imported inside the verbs.

0 ok · 1 internal error · 2 usage or configuration · 3 failed cells · 4 validation failed · 5 comparison failed ·
6 no device · 130 interrupted.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, CycloptsError, Parameter

from experiments import exits
from experiments.against.flags import AgainstFlags
from experiments.bench.cli import bench_app
from experiments.calibrate.cli import calibrate
from experiments.export_cli import Cells, export, schema
from experiments.flags import Argv, Flags, Json
from experiments.generate import ModelFlags, SamplingFlags
from experiments.output_flags import OutputFlags
from experiments.plot_flags import PlotFlags
from experiments.reproduce_cli import reproduce
from experiments.sweep.cli import sweep
from experiments.trace_cli import trace_app
from experiments.truth.cli import validate
from experiments.whole import MaybeWhole, Whole


def _version() -> str:
    from engine.versions import version_of

    return version_of("pagelab") or "not installed"


app = App(
    name="pagelab",
    help="A research testbed for KV-cache memory in LLM serving: what do paged and contiguous allocators waste?",
    version=_version,
    help_format="plaintext",  # Markdown would cost a fifth of a second before the first line
    result_action="return_value",
)
app.command(trace_app)
app.command(bench_app)
app.command(export)
app.command(schema)
app.command(sweep)
app.command(reproduce)
app.command(calibrate)
app.command(validate)


@app.command
def compare(
    *folders: Path,
    flags: Flags = Flags(),  # noqa: B008
    out: OutputFlags = OutputFlags(),  # noqa: B008
    two: AgainstFlags = AgainstFlags(),  # noqa: B008
    argv: Argv = (),
) -> int:
    """Replay one trace against several allocators and block sizes, at equal capacity: the main job.

    Without arguments: the paper's Figure 2 workload on its stand-in, and a sweep of the block size. With two results
    folders: what changed from the first to the second, cell by cell.
    Defaults are in brackets; paper-* are the paper's workloads. Times are in seconds.
    """
    from experiments.against.verb import against_verb
    from experiments.compare import run_verb

    if not folders and two == AgainstFlags():
        return run_verb("compare", flags, out, argv)
    return against_verb(folders, two, flags, out)


@app.command
def run(*, flags: Flags = Flags(), out: OutputFlags = OutputFlags(), argv: Argv = ()) -> int:  # noqa: B008
    """Replay one trace against one allocator [paged, block size 16]."""
    from experiments.compare import run_verb

    return run_verb("run", flags, out, argv)


@app.command
def generate(
    *prompts: str,
    model: Annotated[str, Parameter(name=("-m", "--model"))],
    token_ids: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
    sampling: SamplingFlags = SamplingFlags(),  # noqa: B008
    flags: ModelFlags = ModelFlags(),  # noqa: B008
    json: Json = False,
) -> int:
    """Continue texts with a real model over any allocator.

    Parameters
    ----------
    prompts
        Texts.
    model
        Hugging Face folder, .gguf file, or catalogue name (random weights).
    token_ids
        Prompts are comma lists of token ids.
    """
    from experiments.generate import generate_verb

    return generate_verb(model, prompts, token_ids=token_ids, sampling=sampling, flags=flags, as_json=json)


@app.command
def report(*folder: Path, json: Json = False) -> int:
    """Write report.html and its figures from stored results.

    Parameters
    ----------
    folder
        Written by run, compare, sweep or bench.
    """
    from experiments.views import report_verb

    return report_verb(folder, as_json=json)


@app.command
def plot(*folders: Path, flags: PlotFlags = PlotFlags(), json: Json = False, argv: Argv = ()) -> int:  # noqa: B008
    """Draw any column of summary.csv over any other, from stored results.

    Bands are 95 % confidence intervals over repeats. The numbers are in a CSV beside each picture.

    Parameters
    ----------
    folders
        Written by run, compare, sweep or bench; of several, rate_per_s (requests a second of each one's trace) is a
        column too.
    """
    from experiments.plotting import plot_verb

    return plot_verb(folders, flags, argv, as_json=json)


@app.command(name="map")
def map_(folder: Path, *, at: float | None = None, cell: Cells = (), width: Whole = 64) -> int:
    """Show who holds which block: the memory map of stored runs.

    Parameters
    ----------
    at
        Simulated second [the middle of the run].
    cell
        Only cells whose name begins so, or with COLUMN=VALUE (!= < <= > >=); may be repeated [all].
    width
        Characters of a line.
    """
    from experiments.views import map_verb

    return map_verb(folder, at, cell, width)


@app.command
def capacity(
    *,
    flags: Flags = Flags(),  # noqa: B008
    rule: Annotated[str | None, Parameter(show_default=False)] = None,
    mean_prompt_len: Annotated[float | None, Parameter(show_default=False)] = None,
    mean_output_len: Annotated[float | None, Parameter(show_default=False)] = None,
    concurrency: Annotated[MaybeWhole, Parameter(show_default=False)] = None,
    simulate: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
    json: Json = False,
) -> int:
    """How many KV blocks fit on a GPU, with every term of the computation, and what a load needs of them.

    Parameters
    ----------
    rule
        default, chapter (three readings of GB) or sosp23 [the configuration's, or default].
    mean_prompt_len
        Tokens of a prompt, on average.
    mean_output_len
        Tokens of an output, on average.
    concurrency
        Requests that are to run at the same time.
    simulate
        Replay the load: what does each allocator really hold on that pool?
    """
    from experiments.capacity_verb import capacity_verb

    return capacity_verb(
        flags,
        rule,
        as_json=json,
        mean_prompt_len=mean_prompt_len,
        mean_output_len=mean_output_len,
        concurrency=concurrency,
        simulate=simulate,
    )


@app.command
def backends(*, wide: Annotated[bool, Parameter(negative=(), show_default=False)] = False, json: Json = False) -> int:
    """What each attention backend can do, and whether it can run here.

    Parameters
    ----------
    wide
        Every word, in a table of more than 200 columns.
    """
    from experiments.backends_verb import backends_verb

    return backends_verb(wide=wide, as_json=json)


@app.command(name="check-allocator")
def check_allocator(name: str, *, seeds: Whole = 20, actions: Whole = 60, json: Json = False) -> int:
    """Run the allocator contract on an allocator: a name, or package.module:Class.

    Parameters
    ----------
    seeds
        Random runs for each shape of the pool.
    actions
        Actions in a run.
    """
    from experiments.check_allocator import check_verb

    return check_verb(name, seeds, actions, as_json=json)


def main(argv: Sequence[str] | None = None) -> int:
    """The console script: parses, runs, and turns errors into exit codes."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        return _dispatch(words)
    except CycloptsError as error:
        return _fail(words, exits.USAGE, str(error))
    except exits.UsageError as error:
        return _fail(words, exits.USAGE, str(error))
    except exits.DeviceMissing as error:
        return _fail(words, exits.NO_DEVICE, str(error))
    except exits.RunBroken as error:
        return _fail(words, exits.FAILED_CELLS, str(error))
    except KeyboardInterrupt:
        return _fail(words, exits.INTERRUPTED, "interrupted")
    except BrokenPipeError:
        # Whoever read stdout has gone: say nothing more, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return exits.OK
    except Exception as error:  # noqa: BLE001 - the last resort: a bug of ours is reported as one
        traceback.print_exc()
        return _fail(words, exits.BUG, f"internal error, a bug in pagelab: {type(error).__name__}: {error}")


def _dispatch(words: list[str]) -> int:
    command, bound, ignored = app.parse_args(words, exit_on_error=False, print_error=False)
    extra: dict[str, Any] = {"argv": ("pagelab", *words)} if "argv" in ignored else {}
    result = command(*bound.args, **bound.kwargs, **extra)
    return result if isinstance(result, int) else exits.OK


def _fail(words: Sequence[str], code: int, message: str) -> int:
    """The reason on stderr; with --json also as the one object on stdout."""
    print(f"pagelab: {message}", file=sys.stderr)
    if "--json" in words:
        from experiments.console import say_json

        say_json({"error": message, "exit_code": code})
    return code


if __name__ == "__main__":
    sys.exit(main())
