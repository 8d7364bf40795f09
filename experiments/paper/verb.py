"""`pagelab reproduce`: measures the claims of the named experiments, prints them beside the paper, and judges."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from engine.core.suggestion import unknown_name
from experiments.exits import BUG, NO_DEVICE, UsageError
from experiments.fidelity.judge import SIM_VS_GPU
from experiments.paper import show
from experiments.paper.alignment import ALIGNMENT
from experiments.paper.block_size import BLOCK_SIZE
from experiments.paper.cache_lab import CacheLab
from experiments.paper.caching_allocator import CACHING_ALLOCATOR
from experiments.paper.chapter import CHAPTER
from experiments.paper.claims import Result
from experiments.paper.concurrency import CONCURRENCY
from experiments.paper.deviations import DEVIATIONS
from experiments.paper.engine_compare import ENGINE_COMPARE
from experiments.paper.experiment import Experiment, Table
from experiments.paper.fig1 import FIG1
from experiments.paper.fig2 import FIG2
from experiments.paper.fig11 import FIG11, means
from experiments.paper.fig12 import FIG12
from experiments.paper.fig13a import FIG13A
from experiments.paper.fig13b import FIG13B
from experiments.paper.fig14 import FIG14
from experiments.paper.fig15 import FIG15
from experiments.paper.fig16 import FIG16
from experiments.paper.fig17 import FIG17
from experiments.paper.fig18a import FIG18A, KERNEL_BLOCK_SIZE
from experiments.paper.fig18b import FIG18B
from experiments.paper.fig19 import FIG19A, FIG19B
from experiments.paper.kernels import KernelLab
from experiments.paper.mooncake import MOONCAKE
from experiments.paper.online_softmax import ONLINE_SOFTMAX
from experiments.paper.prefix_overhead import PREFIX_OVERHEAD
from experiments.paper.pressure import GATE_STORM, WATERMARK
from experiments.paper.runs import NUM_QUICK_SEEDS, NUM_SEEDS, Lab, Pairs
from experiments.paper.shared_prefix import SHARED_PREFIX_DECODE
from experiments.paper.table1 import TABLE1
from experiments.paper.table_bytes import TABLE_BYTES
from experiments.paper.upper_bound import UPPER_BOUND
from experiments.paper.walks import FIG3, FIG6, FIG7
from experiments.paper.walks_sharing import FIG8, FIG9
from experiments.paper.waste_vs_variance import WASTE_VS_VARIANCE
from experiments.studies.all import STUDIES
from experiments.studies.block_size_engine import BLOCK_SIZE_ENGINE
from experiments.studies.one_pool_many_kernels import ONE_POOL
from sim.metrics import strict_json
from workloads import load_trace

OK, NOTHING_MEASURED, MISSED = 0, 3, 4
EXPERIMENTS: Final[dict[str, Experiment]] = {
    experiment.name: experiment
    for experiment in (
        *(FIG1, FIG2, FIG3, FIG6, FIG7, FIG8, FIG9, FIG11, TABLE1, *FIG12, FIG13A, FIG13B, BLOCK_SIZE, CHAPTER),
        *(FIG14, FIG15, FIG16, FIG17, FIG19A, FIG19B),
        *(UPPER_BOUND, WASTE_VS_VARIANCE, CONCURRENCY, ALIGNMENT, TABLE_BYTES),
        *(ONLINE_SOFTMAX, FIG18A, KERNEL_BLOCK_SIZE, FIG18B, ENGINE_COMPARE, CACHING_ALLOCATOR),
        SHARED_PREFIX_DECODE,
        *(MOONCAKE, GATE_STORM, WATERMARK, PREFIX_OVERHEAD),
        *STUDIES,
        *(BLOCK_SIZE_ENGINE, ONE_POOL, SIM_VS_GPU),
    )
}
NAMES: Final = tuple(EXPERIMENTS)
LENGTH_SETS: Final = ("sharegpt", "alpaca")
SCHEMA_VERSION: Final = 1


class Section(NamedTuple):
    """One experiment's outcome."""

    name: str
    title: str
    results: Sequence[Result]
    tables: Sequence[Table] = ()


def reproduce(
    names: Sequence[str],
    *,
    quick: bool = False,
    lengths: dict[str, Path] | None = None,
    as_json: bool = False,
    seeds: int | None = None,
    jobs: int = 1,
    kernels: Path | None = None,
    fidelity: Path | None = None,
    block_sizes: Path | None = None,
    trace: Path | None = None,
    cache_blocks: Sequence[int] = (),
    out: Path | None = None,
) -> int:
    """Exit code: 0 nothing missed, 1 a figure failed, 3 only names whose file was not named, 4 a miss, 6 only what this
    machine lacks something for; UsageError for unknown names.

    No name, or `all`, means everything. `seeds` is their number (10, or 3 with `quick`). Tables, or exactly one JSON
    object, go to standard output, everything else to standard error; JSON, figures and a page also into `out`.
    """
    try:
        chosen = _chosen(names)
        lab = _lab(quick, lengths or {}, seeds, jobs, KernelLab(kernels, quick))
        lab.cached, lab.fidelity, lab.block_sizes = CacheLab.of(trace, cache_blocks), fidelity, block_sizes
    except (OSError, ValueError) as error:
        raise UsageError(str(error)) from error
    if out is not None:
        make_folder(out)
    sections = measure(chosen, lab)
    results = [result for section in sections for result in section.results]
    if as_json:
        print(json.dumps(strict_json(document(sections, lab)), allow_nan=False, ensure_ascii=False, indent=1))
    else:
        _print(sections, results)
    code = exit_code(results)
    if out is not None and _write(out, sections, lab):
        code = BUG
    for lacking in dict.fromkeys(result.lacking for result in results if result.lacking):
        _say(lacking)
    return code


def make_folder(out: Path) -> None:
    """Before anything runs; UsageError where that cannot be."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--out {out}: {error.strerror or error}") from error


def _write(out: Path, sections: Sequence[Section], lab: Lab) -> list[str]:
    """The page; the figures that failed."""
    from experiments.paper import page

    path, failed = page.write(out, document(sections, lab), sections, lab)
    _say(f"page: {path}")
    for line in failed:
        _say(f"figure failed: {line}")
    return failed


def exit_code(results: Sequence[Result]) -> int:
    """A miss decides; claims that were all `not yet`, or need what this machine lacks, are no success either."""
    verdicts = {result.verdict for result in results}
    if "miss" in verdicts:
        return MISSED
    if verdicts == {"not here"} and not all(result.needs_file for result in results):
        return NO_DEVICE
    return NOTHING_MEASURED if verdicts <= {"not yet", "not here"} else OK


def measure(chosen: Sequence[str], lab: Lab) -> list[Section]:
    """All runs first, so that they share processes; then the verdicts, name by name."""
    wanted = [EXPERIMENTS[name] for name in chosen]
    keys = list(dict.fromkeys(key for experiment in wanted for key in experiment.runs(lab)))
    if keys:
        num_seeds = len({key.seed for key in keys})
        _say(f"{_counted(len(keys), 'simulated run')}, {_counted(num_seeds, 'seed')}")
    lab.measure(keys, _progress)
    return [Section(e.name, e.title, e.judge(lab), e.tables(lab)) for e in wanted]


def document(sections: Sequence[Section], lab: Lab) -> dict[str, Any]:
    """The JSON object."""
    results = [result for section in sections for result in section.results]
    used = show.numbers_of(results)
    return {
        "schema_version": SCHEMA_VERSION,
        "quick": lab.quick,
        "num_seeds": lab.num_seeds,
        "kernels": lab.kernels.stored.name if lab.kernels.stored else None,
        "lengths": {name: "given" if lab.is_real(name) else "stand-in" for name in LENGTH_SETS},
        "trace": lab.cached.trace.name if lab.cached.trace is not None else None,
        "claims": [result.to_dict() for result in results],
        "deviations": {key: DEVIATIONS[key] for key in used},
        "tables": [table.to_dict() for section in sections for table in section.tables],
    }


def _print(sections: Sequence[Section], results: Sequence[Result]) -> None:
    out, footnotes = show.console(), show.numbers_of(results)
    for section in sections:
        show.show_claims(out, section.title, section.results, footnotes)
        for table in section.tables:
            show.show_table(out, table)
    show.show_deviations(out, footnotes)
    out.print(show.tally(results))


def _chosen(names: Sequence[str]) -> list[str]:
    for name in names:
        if name != "all" and name not in NAMES:
            raise unknown_name("experiment", name, (*NAMES, "all"))
    if not names or "all" in names:
        return list(NAMES)
    return list(dict.fromkeys(names))


def _lab(quick: bool, files: dict[str, Path], seeds: int | None, jobs: int, kernels: KernelLab) -> Lab:
    num_seeds = seeds if seeds is not None else NUM_QUICK_SEEDS if quick else NUM_SEEDS
    if num_seeds < 1 or jobs < 1:
        raise ValueError(f"need at least one seed and one job, got seeds={num_seeds}, jobs={jobs}")
    return Lab({name: read_lengths(name, path) for name, path in files.items()}, num_seeds, quick, jobs, kernels)


def read_lengths(name: str, path: Path) -> Pairs:
    """Prompt and output tokens in file order; what was noticed on the way goes to standard error."""
    if name not in LENGTH_SETS:
        raise unknown_name("length set", name, LENGTH_SETS)
    loaded = load_trace(path)
    _say(f"{name}: {len(loaded.trace):,} lengths from {path}")
    pairs = loaded.trace.num_prompt_tokens, loaded.trace.num_output_tokens
    means(pairs)  # refuses a list in which nothing fits, before anything runs
    return pairs


def _progress(done: int, total: int) -> None:
    if sys.stderr.isatty() or done == total or done % 10 == 0:
        _say(f"  {done}/{total} runs")


def _counted(count: int, thing: str) -> str:
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
