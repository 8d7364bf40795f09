"""The verb `reproduce`; what it needs is imported inside it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from experiments.flags import Json
from experiments.whole import MaybeWhole, Whole

_KERNELS = "Results folder of `bench kernel`, instead of measuring kernels here."
_FIDELITY = "Folder of `python -m experiments.fidelity.main`, for sim_vs_gpu."
_SIZES = "Folder of `python -m experiments.paper.size_main`, for fig18b and block-size-engine, instead of running here."


def _folder(text: str) -> Parameter:
    return Parameter(show_default=False, help=text)


def reproduce(
    *names: str,
    quick: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
    lengths: Annotated[tuple[str, ...], Parameter(negative=(), show_default=False)] = (),
    seeds: MaybeWhole = None,
    jobs: Annotated[Whole, Parameter(name=("-j", "--jobs"), help="Processes; they change no number.")] = 1,
    kernels: Annotated[Path | None, _folder(_KERNELS)] = None,
    fidelity: Annotated[Path | None, _folder(_FIDELITY)] = None,
    block_sizes: Annotated[Path | None, _folder(_SIZES)] = None,
    trace: Annotated[Path | None, Parameter(show_default=False)] = None,
    cache_blocks: Annotated[str | None, Parameter(show_default=False)] = None,
    out: Annotated[Path | None, Parameter(name=("-o", "--out"), show_default=False)] = None,
    json: Json = False,
) -> int:
    """Redo the paper's claims and print expected against got [all].

    Parameters
    ----------
    names
        fig1, fig2, fig3, fig6, fig7, fig8, fig9, fig11, fig12a, fig12b, fig12c, fig12d, fig12e, fig12f, fig13a,
        fig13b, fig14, fig15, fig16, fig17, fig19a, fig19b, table1, block-size, chapter, upper_bound,
        waste_vs_variance, concurrency, alignment, table-bytes, online_softmax, fig18a, kernel-block-size,
        shared-prefix-decode, fig18b, caching-allocator, engine-compare, mooncake-hit-rate, gate-storm,
        watermark, prefix-cache-overhead, virtual-page-size, allocator-load, reservation-placement,
        prefill-budget, victim-policy, kv-capacity, capacity-search, block-size-engine, one-pool-many-kernels,
        sim_vs_gpu, or all.
    quick
        Fewer seeds and wider tolerances.
    lengths
        sharegpt=FILE, alpaca=FILE: real length lists in place of the stand-ins.
    seeds
        Runs of each random workload [10; 3 with --quick].
    trace
        File with block ids for mooncake-hit-rate; contents of conversations are cut into blocks of 16 tokens.
    cache_blocks
        Its cache sizes, a comma list of blocks [1756,7027,56216].
    out
        Folder for the page, its figures and the JSON.
    """
    from experiments.flags import pairs_of
    from experiments.paper.cache_lab import sizes_of
    from experiments.paper.verb import reproduce as verb

    paths = {name: Path(path) for name, path in pairs_of(lengths).items()}
    folders = {"kernels": kernels, "fidelity": fidelity, "block_sizes": block_sizes, "trace": trace, "out": out}
    more: dict[str, Any] = {**folders, "seeds": seeds}
    sizes = sizes_of(cache_blocks)
    return verb(list(names), quick=quick, lengths=paths, as_json=json, jobs=jobs, cache_blocks=sizes, **more)
