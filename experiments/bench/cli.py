"""The verb group `bench` of the command line; what it runs is imported inside."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from experiments.bench.engine_flags import EngineFlags
from experiments.bench.kernel_flags import KernelFlags
from experiments.flags import Argv, Json, Overwrite
from experiments.whole import Whole, Wholes

Several = Parameter(negative=(), show_default=False)

bench_app = App(name="bench", help="Measure on a device.", result_action="return_value")


@bench_app.command
def kernel(
    *,
    flags: KernelFlags = KernelFlags(),  # noqa: B008
    output_dir: Annotated[Path | None, Parameter(name=("-o", "--output-dir"))] = None,
    measured_in: Annotated[tuple[Path, ...], Parameter(name="--from", negative=(), show_default=False)] = (),
    overwrite: Overwrite = False,
    json: Json = False,
    argv: Argv = (),
) -> int:
    """Time the attention kernels inside CUDA graphs, beside every library that can be imported.

    Every row is checked against float32 on the same inputs. Without a CUDA device: exit code 6.

    Parameters
    ----------
    output_dir
        Results folder: rows, manifest, figures, report.
    measured_in
        Take the rows from this folder (of experiments.bench.kernel_main, or of this verb) and measure nothing. May be
        given again: measurements of one device, type and seed go together.
    """
    from experiments.bench.verb import kernel_verb

    return kernel_verb(flags.wanted(), argv, output_dir, measured_in, overwrite=overwrite, as_json=json)


@bench_app.command
def engine(
    *,
    flags: EngineFlags = EngineFlags(),  # noqa: B008
    output_dir: Annotated[Path | None, Parameter(name=("-o", "--output-dir"))] = None,
    measured_in: Annotated[Path | None, Parameter(name="--from", show_default=False)] = None,
    overwrite: Overwrite = False,
    json: Json = False,
    argv: Argv = (),
) -> int:
    """Time the real engine on a closed batch of equal requests: tokens per second, decode steps, host time.

    Random weights where the model is a name or a folder without any. Without the device: exit code 6.

    Parameters
    ----------
    output_dir
        Results folder: a row a run, the steps of the best one, manifest.
    measured_in
        Take the measurements from this folder (of experiments.bench.engine_main) and measure nothing.
    """
    from experiments.bench.engine_verb import engine_verb

    return engine_verb(asdict(flags), argv, output_dir, measured_in, overwrite=overwrite, as_json=json)


@bench_app.command
def alloc(
    *,
    allocator: Annotated[tuple[str, ...], Several] = (),
    pool_tokens: Annotated[Wholes, Several] = (),
    block_size: Annotated[Wholes, Several] = (),
    prefix_caching: Annotated[bool, Parameter(name="--prefix-caching", negative="--no-prefix-caching")] = False,
    seed: Whole = 0,
    output_dir: Annotated[Path | None, Parameter(name=("-o", "--output-dir"))] = None,
    overwrite: Overwrite = False,
    json: Json = False,
    argv: Argv = (),
) -> int:
    """Time the calls of allocators on the host; with a CUDA device also a tensor a request, without any pool.

    Parameters
    ----------
    allocator
        May be given again [the four of the paper, and three contiguous ones].
    pool_tokens
        Size of the pool; may be given again [16384 and 262144].
    block_size
        May be given again [1, 16, 128].
    prefix_caching
        Whether blocks are hashed and kept.
    seed
        Of the requests' lengths.
    output_dir
        Results folder: a row an operation, manifest.
    """
    from experiments.bench.alloc_verb import alloc_verb

    options: dict[str, Any] = {"allocators": allocator, "pool_tokens": pool_tokens, "block_sizes": block_size}
    options |= {"prefix_caching": prefix_caching, "seed": seed}
    return alloc_verb(options, argv, output_dir, overwrite=overwrite, as_json=json)
