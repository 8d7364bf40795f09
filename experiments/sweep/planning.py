"""The cells of a sweep: every point of the axes with every repeat, resolved as `pagelab run` would, equal ones once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from experiments import defaults
from experiments.backends import is_real
from experiments.config import Layer, dump, flatten, resolve_layers
from experiments.exits import UsageError
from experiments.settings import Config
from experiments.sharing import shares
from experiments.sweep.axes import Axes, Point
from experiments.sweep.cell import Infeasible, SweepCell, cell_of, planned
from experiments.sweep.exclude import excluded
from experiments.sweep.identity import NAME_DIGITS, key_of, seed_of
from experiments.sweep.merging import Merged, merging_notes, told
from experiments.sweep.sharing_axes import SHARING_AXES, cut_to_point, told_everywhere

if TYPE_CHECKING:
    from experiments.resolve import Plan

BLOCK_SIZE: Final = "kv.block_size"
GRID_KEYS: Final = ("kv.allocator", BLOCK_SIZE)
"""Keys that `compare` takes lists of: a configuration's lists are axes of its sweep."""
RUN_KEYS: Final = ("seed", "num_runs")
"""Of each cell its own: the base keeps what was asked for."""


OnPoint = Callable[[int, int], None]
"""Told before each point how many are planned, and of how many."""


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """Everything that will be run."""

    axes: Axes
    num_runs: int
    base: Config
    """As asked for, with its gaps."""
    common: dict[str, Any]
    """Keys, dotted, on which all resolved cells agree, and the base's seed: the same cells come of it and the axes."""
    cells: tuple[SweepCell, ...]
    infeasible: tuple[Infeasible, ...]
    num_points: int
    num_excluded: int
    merged: tuple[Merged, ...]
    first: Plan
    notes: list[str] = field(default_factory=list)

    @property
    def backends(self) -> set[str]:
        """What runs the steps of the cells."""
        return {cell.config["measure"].get("backend", "sim") for cell in self.cells}


def plan_sweep(base: Config, axes: Axes, on_point: OnPoint = lambda done, total: None) -> SweepPlan:
    """Resolves every cell; UsageError for a mistake in a key or value, or where no cell can be run at all."""
    axes = with_lists(base, axes)
    if not axes.values and base.num_runs == 1:
        raise UsageError("sweep: nothing is varied: say --axis KEY=VALUE,VALUE,..., or --num-runs")
    planning = _Planning(base, axes)
    points = list(axes.points())
    planning.look_for_sharing(points)
    resolved: dict[int, _Resolved] = {}
    for done, place in enumerate(by_workload(points)):
        on_point(done, len(points))
        resolved[place] = planning.resolve(points[place])
    for place, point in enumerate(points):
        planning.enter(point, resolved[place])
    return planning.plan()


def by_workload(points: Sequence[Point]) -> list[int]:
    """Places of the points, those that replay the same side by side, so that large traces are read once each."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for place, point in enumerate(points):
        key = tuple(str(value) for key, value in point.items() if key.startswith("workload."))
        groups.setdefault(key, []).append(place)
    return [place for group in groups.values() for place in group]


def with_lists(base: Config, axes: Axes) -> Axes:
    """With the base's lists of allocators and block sizes as axes, unless there are axes of these keys."""
    if base.kv.sweep:
        raise UsageError("kv.sweep: a sweep has axes: say --axis kv.block_size=..., and leave out with --exclude")
    flat = flatten(dump(base))
    lists = {key: tuple(flat[key]) for key in GRID_KEYS if key not in axes.values and len(flat.get(key) or ()) > 1}
    return Axes({**axes.values, **lists}, axes.zips, axes.exclude) if lists else axes


@dataclass(frozen=True, slots=True)
class _Resolved:
    """What a point comes to: its cells, or why there are none."""

    cells: tuple[SweepCell, ...] = ()
    ignored: tuple[str, ...] = ()
    """Keys of the base that it has no use for."""
    infeasible: str = ""
    is_excluded: bool = False


class _Planning:
    """Resolves points, in any order, and enters what came of them in theirs."""

    def __init__(self, base: Config, axes: Axes) -> None:
        self._base, self._axes = base, axes
        self._values = flatten(dump(base))
        self._cells: dict[str, SweepCell] = {}
        self._infeasible: list[Infeasible] = []
        self._merged: list[Merged] = []
        self._excluded = self._points = 0
        self._common: dict[str, Any] | None = None
        self._tells_sharing = False
        """Whether some points share, so that all tell it."""
        self._ignored: dict[str, int] = {}
        """Keys of the base that points have no use for: how many."""

    def look_for_sharing(self, points: Sequence[Point]) -> None:
        """Whether any of them shares, along axes that decide it; the real engine counts none."""
        if set(SHARING_AXES) & set(self._axes.values):
            configs = [self._config(point) for point in points]
            self._tells_sharing = any(map(shares, configs)) and not any(map(is_real, configs))

    def resolve(self, point: Point) -> _Resolved:
        """Changes nothing."""
        values = {**self._values, **point}
        if any(excluded(expression, _single(values)) for expression in self._axes.exclude):
            return _Resolved(is_excluded=True)
        config, ignored = cut_to_point(self._config(point), self._axes.values)
        if self._tells_sharing:
            config = told_everywhere(config)
        try:
            plans = [planned(one) for one in self._repeats(config)]
        except UsageError as error:
            return _Resolved(ignored=tuple(ignored), infeasible=str(error))
        keys = [key_of(plan) for plan in plans]
        names = [f"{keys[0][:NAME_DIGITS]}-r{repeat}" for repeat in range(len(plans))]
        cells = [cell_of(point, repeat, *one) for repeat, one in enumerate(zip(plans, keys, names, strict=True))]
        return _Resolved(tuple(cells), tuple(ignored))

    def enter(self, point: Point, found: _Resolved) -> None:
        """In the order of the plan: of equal cells the first stays."""
        self._points += 1
        self._excluded += found.is_excluded
        for key in found.ignored:
            self._ignored[key] = self._ignored.get(key, 0) + 1
        if found.infeasible:
            self._infeasible.append(Infeasible(point, found.infeasible))
        for cell in found.cells:
            if cell.key not in self._cells:
                self._cells[cell.key] = cell
                flat = flatten(cell.config)
                common = flat if self._common is None else self._common
                self._common = {key: value for key, value in common.items() if key in flat and flat[key] == value}
            elif cell.repeat == 0:
                self._merged.append(Merged(point, self._cells[cell.key].point, cell.allocator))

    def _config(self, point: Point) -> Config:
        """The base with the point's values; a null takes the key out."""
        unset = {key for key, value in point.items() if value is None}
        lower = {key: value for key, value in self._values.items() if key not in unset}
        given = {key: value for key, value in point.items() if value is not None}
        pinned = self._tokens({**lower, **given})
        if pinned is not None:
            lower.pop("kv.num_blocks", None)
            given.pop("kv.num_blocks", None)
            given["kv.kv_tokens"] = pinned
        places = {key: f"--axis {key}" for key in given}
        return resolve_layers([Layer(lower, "configuration"), Layer(given, "axes", places=places)])

    def _tokens(self, values: Mapping[str, Any]) -> int | None:
        """What a pinned number of blocks comes to along a block-size axis: equal pools, unless unequal ones are asked
        for, or the two are zipped."""
        blocks, zipped = (
            values.get("kv.num_blocks"),
            any({"kv.num_blocks", BLOCK_SIZE} <= {*z} for z in self._axes.zips),
        )
        if BLOCK_SIZE not in self._axes.values or blocks is None or zipped or values.get("kv.allow_unequal_pools"):
            return None
        return int(blocks) * self._reference

    @property
    def _reference(self) -> int:
        """The block size that a pinned number of blocks counts in."""
        sizes = self._values.get(BLOCK_SIZE) or defaults.BLOCK_SIZES
        return int(sizes[0])

    def _repeats(self, config: Config) -> list[Config]:
        runs = self._base.num_runs
        if runs > 1 and config.workload.trace and not is_real(config) and config.workload.beam_width is None:
            raise UsageError(
                f"num_runs={runs} repeats a seeded workload; a trace file has no seed: every repeat would be the same"
            )
        return [config.model_copy(update={"seed": seed_of(config, r), "num_runs": 1}) for r in range(runs)]

    def plan(self) -> SweepPlan:
        if not self._cells:
            why = (
                f"the first: {told(self._infeasible[0].point)}: {self._infeasible[0].reason}"
                if self._infeasible
                else ""
            )
            raise UsageError(
                f"sweep: of {self._points} points {self._excluded} are excluded and none of the others can be run"
                + (f"; {why}" if why else "")
            )
        assert self._common is not None
        kept = {key: value for key, value in self._common.items() if key not in (*RUN_KEYS, *self._axes.values)}
        kept |= {key: self._values[key] for key in self._ignored}
        kept |= {"seed": self._base.seed, "num_runs": self._base.num_runs}
        cells = tuple(self._cells.values())
        names = [cell.name for cell in cells]
        assert len(set(names)) == len(names), "two cells share ten digits of their hashes"
        return SweepPlan(
            axes=self._axes,
            num_runs=self._base.num_runs,
            base=self._base,
            common=kept,
            cells=cells,
            infeasible=tuple(self._infeasible),
            num_points=self._points,
            num_excluded=self._excluded,
            merged=tuple(self._merged),
            first=planned(Config.model_validate(cells[0].config)),
            notes=self._notes(),
        )

    def _notes(self) -> list[str]:
        notes = [*self._capacity_notes()]
        notes += [
            f"{key} is ignored at {count} points, where nothing is copied" for key, count in self._ignored.items()
        ]
        return [*notes, *merging_notes(self._merged)]

    def _capacity_notes(self) -> list[str]:
        if BLOCK_SIZE not in self._axes.values:
            return []
        pools = sorted({cell.tokens for cell in self._cells.values() if cell.tokens is not None})
        if self._values.get("kv.allow_unequal_pools") or any(BLOCK_SIZE in group for group in self._axes.zips):
            return ["pools along kv.block_size are as given: they may differ in tokens"]
        size = f"{pools[0]:,} tokens" if len(pools) == 1 else f"the same tokens (of {pools[0]:,} to {pools[-1]:,})"
        pinned = self._values.get("kv.num_blocks") or self._axes.values.get("kv.num_blocks")
        source = f", num_blocks counted in blocks of {self._reference}" if pinned else ""
        notes = [f"equal capacity along {BLOCK_SIZE}: {size} at every block size, cut down to whole blocks{source}"]
        if self._values.get("kv.host_blocks") is not None:
            notes.append("kv.host_blocks counts blocks: host memory grows along kv.block_size; kv.host_bytes does not")
        return notes


def _single(values: Mapping[str, Any]) -> dict[str, Any]:
    """For expressions: the base's one allocator and block size are lists of one."""
    flat = dict(values)
    for key in GRID_KEYS:
        if isinstance(flat.get(key), list | tuple) and len(flat[key]) == 1:
            [flat[key]] = flat[key]
    return flat
