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
from experiments.bench.cli import bench_app
from experiments.flags import Argv, Flags, Json, OutputFlags
from experiments.generate import ModelFlags, SamplingFlags
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
app.command(validate)


@app.command
def compare(*, flags: Flags = Flags(), out: OutputFlags = OutputFlags(), argv: Argv = ()) -> int:  # noqa: B008
    """Replay one trace against several allocators and block sizes, at equal capacity: the main job.

    Without arguments: the paper's Figure 2 workload on its stand-in, and a sweep of the block size.
    Defaults are in brackets; paper-* are the paper's workloads. Times are in seconds.
    """
    from experiments.compare import run_verb

    return run_verb("compare", flags, out, argv)


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
def report(folder: Path, *, json: Json = False) -> int:
    """Write report.html and its figures from stored results."""
    from experiments.views import report_verb

    return report_verb(folder, as_json=json)


@app.command
def plot(
    *folders: Path,
    var_x: str = "block_size",
    var_y: str = "kv_live_frac",
    curve_by: str = "allocator",
    output: Annotated[Path | None, Parameter(name=("-o", "--output"))] = None,
    json: Json = False,
) -> int:
    """Draw any column of summary.csv over any other, from stored results.

    Parameters
    ----------
    folders
        Results; of several, rate_per_s (requests a second of each one's trace) is a column too.
    var_x
        Column of the x axis.
    var_y
        Column of the y axis: its mean over seeds, with the standard deviation.
    curve_by
        Column of which each value is a curve; none: one curve.
    output
        Picture to write [figures/VAR_Y-by-VAR_X.png in the folder]; its suffix decides the format.
    """
    from experiments.views import plot_verb

    return plot_verb(folders, var_x, var_y, curve_by, output, as_json=json)


@app.command(name="map")
def map_(folder: Path, *, at: float | None = None, cell: str | None = None, width: Whole = 64) -> int:
    """Show who holds which block: the memory map of stored runs.

    Parameters
    ----------
    at
        Simulated second [the middle of the run].
    cell
        Only cells whose name begins so [all].
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


@app.command
def reproduce(
    *names: str,
    quick: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
    lengths: Annotated[tuple[str, ...], Parameter(negative=(), show_default=False)] = (),
    seeds: MaybeWhole = None,
    jobs: Annotated[Whole, Parameter(name=("-j", "--jobs"))] = 1,
    kernels: Annotated[Path | None, Parameter(show_default=False)] = None,
    trace: Annotated[Path | None, Parameter(show_default=False)] = None,
    cache_blocks: Annotated[str, Parameter(show_default=False)] = "",
    out: Annotated[Path | None, Parameter(name=("-o", "--out"), show_default=False)] = None,
    json: Json = False,
) -> int:
    """Redo the paper's claims and print expected against got [all].

    Parameters
    ----------
    names
        fig1, fig2, fig3, fig6, fig7, fig8, fig9, fig11, fig12a, fig12b, fig12c, fig12d, fig12e, fig12f, fig13a, fig13b,
        fig14, fig15, fig16, fig17, fig19a (its times on a CUDA device, too), fig19b, table1, block-size, chapter,
        upper_bound, waste_vs_variance, concurrency, alignment, table-bytes, online_softmax, fig18a,
        kernel-block-size, shared-prefix-decode, fig18b, caching-allocator (these five on a CUDA device; fig18b's memory
        anywhere),
        engine-compare (its times too), mooncake-hit-rate (needs --trace), gate-storm, watermark, prefix-cache-overhead,
        or all; others are not measured yet.
    quick
        Fewer seeds and wider tolerances.
    lengths
        sharegpt=FILE, alpaca=FILE: real length lists in place of the stand-ins.
    seeds
        Runs of each random workload [10; 3 with --quick].
    jobs
        Processes; the numbers do not depend on it.
    kernels
        Results folder of `bench kernel`, instead of measuring kernels here.
    trace
        File with block ids for mooncake-hit-rate, such as `trace fetch mooncake-conversation` gets.
    cache_blocks
        Its cache sizes, a comma list of blocks [1756,7027,56216].
    out
        Folder for the page, its figures and the JSON.
    """
    from experiments.flags import pairs_of
    from experiments.paper.cache_lab import sizes_of
    from experiments.paper.verb import reproduce as verb

    paths = {name: Path(path) for name, path in pairs_of(lengths).items()}
    more: dict[str, Any] = {"trace": trace, "cache_blocks": sizes_of(cache_blocks), "kernels": kernels, "out": out}
    return verb(list(names), quick=quick, lengths=paths, as_json=json, seeds=seeds, jobs=jobs, **more)


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
