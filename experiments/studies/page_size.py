"""Pages of contiguous virtual memory (vAttention): what their size costs, beside paged blocks of equal bytes.

A page holds K or V of one layer, so its tokens are its bytes over those of a token there: with 8 KV heads of 128 in 16
bits, 2,048 B a token. A request that ends anywhere in a page group leaves half of it empty on average.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from engine.core.catalogue import lookup
from engine.core.registry import PoolConfig
from engine.core.virtual import VirtualAllocator
from experiments.paper.claims import Claim, Result, exact, over_seeds
from experiments.paper.experiment import Experiment, Picture, Table
from experiments.paper.judgement_pictures import bars_said, caption_of
from experiments.paper.trials import seeds
from experiments.studies.case import Case, case, frame_of, mean_of

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import FigureBase as Canvas

    from experiments.paper.runs import Lab, Lengths, Measured

NAME: Final = "virtual-page-size"
KIB: Final = 2**10
PAGES: Final = (64 * KIB, 128 * KIB, 256 * KIB, 2048 * KIB)
TOKENS: Final = {"llama-3-8b": (32, 64, 128, 1024), "opt-13b": (6, 12, 25, 204), "deepseek-v3": (56, 113, 227, 1820)}
"""By hand: 2,048 B, 10,240 B and (the latent) 1,152 B a token in one tensor."""
NUM_REQUESTS, NUM_QUICK_REQUESTS = 1000, 400
KV_BYTES: Final = 4 * 2**30
LLAMA: Final = (
    ("model", "llama-3-8b"),
    ("gpu", "a100-80g"),
    ("kv_bytes", KV_BYTES),
    ("max_model_len", 2048),
    ("enable_prefix_caching", False),
    ("max_num_seqs", 1024),
)
VATTENTION: Final = "vAttention (ASPLOS 2025): small pages waste less"
COMPARED: Final = ("makespan_kv_live_frac", "makespan_mean_batch_size", "makespan_output_tok_per_s", "num_preemptions")


def without_deferral(pool: PoolConfig) -> VirtualAllocator:
    """Unmaps what a request leaves at once; the other end of vAttention's trade."""
    return VirtualAllocator(pool.capacity_blocks, pool.block_size, max_model_len=pool.max_model_len, deferred=False)


class MapsKey(NamedTuple):
    """A run that counts the page groups it maps."""

    deferred: bool
    page_tokens: int
    num_groups: int
    case: Case

    @property
    def seed(self) -> int:
        """Of the trace."""
        return self.case.seed

    def run(self, lengths: Lengths) -> Measured:
        """Simulates it; `num_maps` a request."""
        from engine.core.limits import SchedulerConfig
        from sim.cost import PAPER_13B
        from sim.cost_executor import CostExecutor
        from sim.simulate import RunSpec, simulate

        name = "virtual" if self.deferred else f"{__name__}:without_deferral"
        longest = dict(self.case.settings)["max_model_len"]
        pool = PoolConfig(self.num_groups, self.page_tokens, longest, enable_caching=False)
        limits = SchedulerConfig(longest, max_num_seqs=1024)
        done = simulate(RunSpec(name, pool, limits), self.case.trace(lengths), CostExecutor(PAPER_13B))
        assert isinstance(done.allocator, VirtualAllocator)
        return {"maps_per_request": done.allocator.num_maps / self.case.num_requests}


def _tokens(page: int) -> int:
    return lookup("llama-3-8b").kv_spec("bf16", 1, 1).page_tokens(page)


def _virtual(lab: Lab, page: int, seed: int) -> Case:
    return case(LLAMA, _count(lab), 0.0, seed, allocator="virtual", page_bytes=page)


def _paged(lab: Lab, page: int, seed: int) -> Case:
    return case(LLAMA, _count(lab), 0.0, seed, allocator="paged", block_size=_tokens(page))


def _maps(lab: Lab, deferred: bool, seed: int) -> MapsKey:
    one = case(LLAMA, _count(lab), 0.0, seed, allocator="virtual")
    return MapsKey(deferred, _tokens(PAGES[0]), 1024, one)


def _count(lab: Lab) -> int:
    return NUM_QUICK_REQUESTS if lab.quick else NUM_REQUESTS


def runs(lab: Lab) -> list[Case | MapsKey]:
    """Every page size, virtual and paged, and the pages that are mapped with deferral and without."""
    found: list[Case | MapsKey] = [
        make(lab, page, seed) for page in PAGES for make in (_virtual, _paged) for seed in seeds(lab)
    ]
    return [*found, *(_maps(lab, deferred, seed) for deferred in (True, False) for seed in seeds(lab))]


def _claim(name: str, metric: str, expected: float | None, unit: str, tolerance: float = 0.0, **more: str) -> Claim:
    source = more.pop("source", "arithmetic of pages")
    why = more.pop("why", "")
    return Claim(
        f"{NAME}/{name}", metric, expected, unit, tolerance, source, "R", ("own-study", "roofline"), why_reported=why
    )


def judge(lab: Lab) -> list[Result]:
    """Tokens of a page, tails of half a page, decisions of a paged pool, and what large pages cost."""
    results = []
    for model, expected in TOKENS.items():
        spec = lookup(model).kv_spec("bf16", 1, 1)
        for page, tokens in zip(PAGES, expected, strict=True):
            made = _claim(
                f"tokens/{model}/{page // KIB}k", f"{model}: tokens of a page of {page // KIB} KiB", tokens, ""
            )
            results.append(exact(made, spec.page_tokens(page)))
    results += [_tail(lab, page) for page in PAGES]
    results.append(
        over_seeds(_claim("paged", "numbers that differ from paged blocks of equal bytes", 0, ""), _differ(lab))
    )
    rises = [float(sum(b >= a for a, b in pairwise(_curve(lab, "makespan_mean_batch_size", s)))) for s in seeds(lab)]
    made = _claim("running", "larger pages that do not run fewer requests", 0, "steps", source=VATTENTION)
    results.append(over_seeds(made, rises))
    lost = [100 * (1 - rates[-1] / rates[0]) for rates in (_curve(lab, COMPARED[2], seed) for seed in seeds(lab))]
    made = _claim(
        "2MiB", "throughput lost with 2 MiB in place of 64 KiB", None, "%", why="hangs on how short memory is"
    )
    results.append(over_seeds(made, lost))
    return [*results, *_deferral(lab)]


def _curve(lab: Lab, name: str, seed: int) -> list[float]:
    return lab.values([_virtual(lab, page, seed) for page in PAGES], name)


def tail_share(lab: Lab, page: int, seed: int) -> float:
    """Empty slots behind the last token, in page groups a running request."""
    (run,) = lab.measure([_virtual(lab, page, seed)])
    capacity = KV_BYTES // lookup("llama-3-8b").kv_spec("bf16", 1, 1).bytes_per_token
    return run["kv_tail_frac"] * capacity / (run["mean_batch_size"] * _tokens(page))


def _tail(lab: Lab, page: int) -> Result:
    short = "requests are shorter than such a page" if _tokens(page) > 500 else ""
    what = f"{page // KIB} KiB: empty slots at the end of a request, in page groups"
    return over_seeds(
        _claim(f"tail/{page // KIB}k", what, 0.5, "", 0.05, why=short), [tail_share(lab, page, s) for s in seeds(lab)]
    )


def _differ(lab: Lab) -> list[float]:
    """Numbers of `COMPARED` that are not the paged pool's, over all page sizes."""
    found = []
    for seed in seeds(lab):
        pairs = lab.measure([make(lab, page, seed) for page in PAGES for make in (_virtual, _paged)])
        found.append(float(sum(a[n] != b[n] for a, b in zip(pairs[::2], pairs[1::2], strict=True) for n in COMPARED)))
    return found


def _deferral(lab: Lab) -> list[Result]:
    """Page groups mapped a request, with what is left mapped and without."""
    late, now = (lab.values([_maps(lab, d, s) for s in seeds(lab)], "maps_per_request") for d in (True, False))
    more = [float(a > b) for a, b in zip(late, now, strict=True)]
    saved = [100 * (1 - a / b) for a, b in zip(late, now, strict=True)]
    source = "vAttention (ASPLOS 2025): deferred reclamation"
    return [
        over_seeds(_claim("deferral", "runs that map more with deferred reclamation", 0, "runs", source=source), more),
        over_seeds(
            _claim("maps", "calls of the driver saved by it", None, "%", source=source, why="hangs on the load"), saved
        ),
    ]


def tables(lab: Lab) -> Sequence[Table]:
    """Means over seeds."""
    rows = []
    for page in PAGES:
        for kind, make in (("virtual", _virtual), ("paged", _paged)):
            cases = [make(lab, page, seed) for seed in seeds(lab)]
            of = [mean_of(lab, cases, name) for name in COMPARED]
            tail = sum(tail_share(lab, page, seed) for seed in seeds(lab)) / len(seeds(lab))
            rows.append(
                (f"{page // KIB} KiB", _tokens(page), kind, 100 * of[0], tail if kind == "virtual" else None, *of[1:])
            )
    heads = ("page", "tokens", "allocator", "live %", "tail, page groups", "running", "tokens/s", "preemptions")
    title = f"Llama-3-8B, 4 GiB of KV, {_count(lab):,} requests of ShareGPT's lengths, all there at the start"
    return [Table(f"{NAME}/runs", title, heads, tuple(rows), "paged: blocks of as many bytes in every tensor")]


def pictures(lab: Lab) -> list[Picture]:
    """Live memory and running requests over the page size."""
    cases = [
        ({"allocator": kind, "page": page // KIB}, make(lab, page, seed))
        for kind, make in (("paged", _paged), ("virtual", _virtual))
        for page in PAGES
        for seed in seeds(lab)
    ]
    frame = frame_of(lab, cases, COMPARED)

    def draw(canvas: Canvas) -> pd.DataFrame:
        from experiments.figures.panels import legend_of
        from experiments.figures.study_curves import curves
        from experiments.style import percent_axis

        left, right = canvas.subplots(1, 2)
        shown = curves(frame, left, "page", COMPARED[0], "allocator", "", _size)
        percent_axis(left.yaxis, "slots with a token")
        left.set_ylim(0, 1)
        also = curves(frame, right, "page", COMPARED[1], "allocator", "running requests", _size)
        for ax in (left, right):
            ax.set_xlabel("page, or block of equal bytes in a tensor")
        legend_of(canvas, left)
        return shown.merge(also, on=["allocator", "page", "num_runs"])

    said = (
        f"n = {_count(lab):,} a run, all waiting",
        "ShareGPT's lengths",
        "Llama-3-8B, 4 GiB of KV",
        "roofline of an A100",
    )
    claim = (
        "A page of virtual memory is a block of many tokens: 1,024 of this model in 2 MiB. Small pages keep as much "
        "memory live as paging does with blocks of as many bytes: the two curves are one." + bars_said(frame)
    )
    return [Picture(NAME, "Contiguous virtual memory by the size of a page", claim, caption_of(lab, NAME, *said), draw)]


def _size(kib: float) -> str:
    return f"{kib:g} KiB" if kib < KIB else f"{kib / KIB:g} MiB"


PAGE_SIZE: Final = Experiment(NAME, "Contiguous virtual memory by the size of a page", judge, runs, tables)
