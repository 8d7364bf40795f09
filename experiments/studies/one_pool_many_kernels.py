"""One block table and slot mapping serve many kernels (the chapter's section 4.9): who reads which pool, and how fast.

Memory decisions deal in block ids. Whatever layout a pool has, every backend that can read it at all reads it through
views, by the very table that the others use. Times are those of `bench kernel --backend all`, where there are any.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from experiments.bench.backends import PREFIX
from experiments.bench.cases import OF_BACKENDS
from experiments.bench.shapes import LAYOUTS
from experiments.exits import UsageError
from experiments.paper.claims import Claim, Result, exact, not_here
from experiments.paper.experiment import Experiment, Picture, Table
from experiments.studies.one_pool import BOUNDS, NOT_HERE, Found, Turn, everyone

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase as Canvas

    from experiments.paper.runs import Lab

NAME: Final = "one-pool-many-kernels"
SOURCE: Final = "the chapter's section 4.9"
BASE: Final = PREFIX + "triton"
RIGHT, REFUSED, ABSENT = "#009E73", "#FFFFFF", "#E4E4E4"
SHAPES: Final = {
    "kv_first": "(2, NB, BS, KH, D)",
    "block_first": "(NB, 2, BS, KH, D)",
    "interleaved": "(NB, BS, 2*KH, D)",
}
PARTS: Final = 1e6


def _found(lab: Lab) -> Found:
    return lab.once(NAME, everyone)


def _claim(name: str, metric: str, expected: float | None, unit: str = "", **more: Any) -> Claim:
    return Claim(f"{NAME}/{name}", metric, expected, unit, 0.0, SOURCE, "R", ("own-study",), **more)


def _claims(bound: float) -> list[Claim]:
    why = "hangs on what is installed and on the device"
    return [
        _claim("error", "largest relative error of any backend on a shared pool", PARTS * bound, "ppm", at_most=True),
        _claim("copies", "backends whose K and V are not the pool's own memory", 0),
        _claim("writes", "writes by slot mapping that differ from each other in the pool", 0),
        _claim("planted", "backends that miss a value changed in the pool by other hands", 0),
        _claim("kernels", "backends on one pool, most of all layouts", None, why_reported=why),
    ]


def judge(lab: Lab) -> list[Result]:
    """No copy, the same bits written, the same outputs, for whatever can run here."""
    if find_spec("torch") is None:
        return [not_here(claim, "torch is not installed") for claim in _claims(BOUNDS["float32"])]
    found = _found(lab)
    ran, note = found.ran, f"{found.device}, {found.dtype}, {len({turn.backend for turn in found.ran})} backends"
    values = [
        PARTS * max(turn.relative_error or 0.0 for turn in ran),
        sum(not turn.is_view for turn in ran),
        sum(not turn.writes_alike for turn in ran),
        sum(not turn.sees_planted for turn in ran),
        max(sum(turn.layout == layout for turn in ran) for layout in LAYOUTS),
    ]
    results = [exact(claim, value, note) for claim, value in zip(_claims(found.bound), values, strict=True)]
    return results + [_slower(name, ratio) for name, ratio in _ratios(lab).items()]


def _slower(name: str, ratio: float) -> Result:
    metric = f"time of {name} over triton's on the same pool, geometric mean"
    return exact(_claim(f"time/{name}", metric, None, why_reported="a library's own speed"), ratio)


def _timed(lab: Lab) -> list[dict[str, Any]]:
    """Rows of backends that were timed; empty without a device and without stored ones."""
    if lab.kernels.lacking():
        return []
    try:
        rows = lab.kernels.rows(OF_BACKENDS)
    except UsageError:
        return []  # the stored measurements are of other cases
    return [row for row in rows if row["peer"].startswith(PREFIX) and row["status"] == "ok"]


def _ratios(lab: Lab) -> dict[str, float]:
    """By backend: its time over triton's, geometric mean over shapes and layouts."""
    from experiments.bench.rows import geometric_mean, shape_of

    rows = _timed(lab)
    base = {shape_of(row): row["median_s"] for row in rows if row["peer"] == BASE}
    found = {}
    for peer in dict.fromkeys(row["peer"] for row in rows if row["peer"] != BASE):
        mine = [row for row in rows if row["peer"] == peer and shape_of(row) in base]
        mean = geometric_mean(row["median_s"] / base[shape_of(row)] for row in mine)
        if mean is not None:
            found[peer.removeprefix(PREFIX)] = mean
    return found


def tables(lab: Lab) -> list[Table]:
    """Every backend on every pool: right, or why not."""
    if find_spec("torch") is None:
        return []
    found = _found(lab)
    heads = ("backend", "pool", "relative error, ppm", "copied", "note")
    rows = tuple(
        (turn.backend, SHAPES[turn.layout], _parts(turn), None if turn.why_not else int(not turn.is_view),
         turn.why_not)
        for turn in found.turns
    )  # fmt: skip
    title = f"one pool in each layout, blocks of 16, {found.dtype} on {found.device}"
    return [Table(f"{NAME}/turns", title, heads, rows, "copied: 1 where K and V are not the pool's own memory")]


def _parts(turn: Turn) -> float | None:
    return None if turn.relative_error is None else PARTS * turn.relative_error


def pictures(lab: Lab) -> list[Picture]:
    """Who reads which pool, and times over triton's where they were measured."""
    if find_spec("torch") is None:
        return []
    found, timed = _found(lab), _timed(lab)

    def draw(canvas: Canvas) -> pd.DataFrame:
        import pandas as pd

        axes = canvas.subplots(1, 2, width_ratios=(3, 2)) if timed else [canvas.subplots()]
        frame = _matrix(found, axes[0])
        if timed:
            frame = frame.merge(_times(pd.DataFrame(timed), axes[1]), how="left", on=["backend", "layout"])
        return frame

    words = ["pagelab reproduce", NAME, *(["--quick"] if lab.quick else [])]
    device = timed[0]["device"] if timed else "not timed: no device"
    caption = f"blocks of 16 tokens · {found.dtype} on {found.device} · seed 0 · times: {device} · {' '.join(words)}"
    claim = (
        "A row a backend, a column a pool. A number: it wrote and read that very memory by the table and slots that "
        "all others use, and this is its relative error. Empty: it refuses the layout, or is not here; nothing is "
        "ever copied to make it fit."
    )
    return [Picture(NAME, "One pool, many kernels", claim, caption, draw, 3.4)]


def _matrix(found: Found, ax: Axes) -> pd.DataFrame:
    import pandas as pd

    names = list(dict.fromkeys(turn.backend for turn in found.turns))
    for turn in found.turns:
        x, y = LAYOUTS.index(turn.layout), names.index(turn.backend)
        text, colour = _cell(turn)
        ax.add_patch(_box(x, y, colour))
        ax.text(x, y, text, ha="center", va="center", fontsize=7, color="#222222")
    ax.set_xlim(-0.5, len(LAYOUTS) - 0.5)
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.set_xticks(range(len(LAYOUTS)), [SHAPES[layout] for layout in LAYOUTS], fontsize=7)
    ax.set_yticks(range(len(names)), names, fontsize=7)
    ax.tick_params(length=0)
    ax.grid(visible=False)
    ax.set_xlabel("the pool's layout")
    columns = ("backend", "layout", "relative_error", "is_view", "why_not")
    return pd.DataFrame([{name: getattr(turn, name) for name in columns} for turn in found.turns])


def _cell(turn: Turn) -> tuple[str, str]:
    if turn.relative_error is not None:
        return f"{turn.relative_error:.0e}", f"{RIGHT}55"
    return (NOT_HERE, ABSENT) if turn.why_not.startswith(NOT_HERE) else ("refuses", REFUSED)


def _box(x: int, y: int, colour: str) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((x - 0.47, y - 0.42), 0.94, 0.84, facecolor=colour, edgecolor="#BBBBBB", linewidth=0.5)


def _times(rows: pd.DataFrame, ax: Axes) -> pd.DataFrame:
    """Geometric means over a layout's shapes, as dots beside triton's line at 1."""
    import numpy as np

    rows = rows.assign(backend=rows["peer"].str.removeprefix(PREFIX))
    keys = ["shape", "block_size", "layout"]
    base = rows[rows["peer"] == BASE].set_index(keys)["median_s"]
    rows = rows.join(base.rename("base_s"), on=keys).dropna(subset=["base_s"])
    rows["log"] = np.log(rows["median_s"] / rows["base_s"])
    logs: pd.Series[float] = rows.groupby(["backend", "layout"])["log"].mean()
    means: pd.DataFrame = logs.map(np.exp).rename("time_over_triton").reset_index()
    names = list(dict.fromkeys(rows["backend"]))
    looks = zip(LAYOUTS, "osD", ("#0072B2", "#D55E00", "#CC79A7"), (-0.15, 0, 0.15), strict=True)
    for layout, marker, colour, shift in looks:
        one = means[means["layout"] == layout]
        ax.plot(one["time_over_triton"], [names.index(name) + shift for name in one["backend"]], marker, color=colour,
                markersize=4.5, label=SHAPES[layout])  # fmt: skip
    ax.axvline(1, color="#888888", linewidth=0.8)
    ax.set_yticks(range(len(names)), names, fontsize=7)
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.set_xlim(0, max(1.2, 1.1 * means["time_over_triton"].max()))
    ax.set_xlabel("time (triton = 1)")
    ax.legend(fontsize=6, loc="lower left")
    return means


ONE_POOL: Final = Experiment(NAME, "One block table, many kernels", judge, tables=tables)
