"""One invocation of `bench kernel`, without a command line: what to measure, who takes part, and what came out.

Runs without pydantic, cyclopts, pandas and simpy, so that a machine with nothing but torch and triton can measure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from experiments.bench.backends import entered
from experiments.bench.backends import named as named_backends
from experiments.bench.cases import CASES, OF_BACKENDS, shapes_of
from experiments.bench.contestant import Contestant, Missing
from experiments.bench.peers import PEERS, check_peers, joined
from experiments.bench.rows import Row, with_ratios
from experiments.bench.shapes import DTYPES, Shape

Say = Callable[[str], None]
SCHEMA_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Wanted:
    """What was asked for; all of it is in the manifest."""

    cases: tuple[str, ...] = ()
    """None: all but that of backends; with backends, that one."""
    dtype: str = "bfloat16"
    block_size: int = 16
    peers: tuple[str, ...] = tuple(PEERS)
    fa3_library: Path | None = None
    quick: bool = False
    sweep: bool = False
    seed: int = 0
    backends: tuple[str, ...] = ()
    """Attention backends through their interface, or `all`."""

    @property
    def chosen_cases(self) -> tuple[str, ...]:
        """Those asked for, or what is meant where none was."""
        rest = tuple(name for name in CASES if name != OF_BACKENDS)
        return self.cases or ((OF_BACKENDS,) if self.backends else rest)

    def shapes(self) -> list[Shape]:
        """In the order of the cases. ValueError for what cannot be measured, before anything runs."""
        if self.dtype not in DTYPES:
            raise ValueError(f"unknown dtype {self.dtype!r}; there are {', '.join(DTYPES)}")
        check_peers(self.peers)
        named_backends(self.backends)
        options: dict[str, Any] = {
            "block_size": self.block_size,
            "dtype": self.dtype,
            "seed": self.seed,
            "quick": self.quick,
        }
        return [shape for name in self.chosen_cases for shape in shapes_of(name, **options)]

    def to_dict(self) -> dict[str, Any]:
        """Plain values; of the library its name alone."""
        library = self.fa3_library.name if self.fa3_library else None
        return {
            **asdict(self),
            "cases": list(self.chosen_cases),
            "peers": list(self.peers),
            "backends": list(self.backends),
            "fa3_library": library,
        }


@dataclass
class Measured:
    """Rows so far; complete rows are there also when the session breaks off."""

    wanted: Wanted
    machine: dict[str, Any]
    missing: list[Missing]
    rows: list[Row] = field(default_factory=list)
    broken: str = ""
    """Why the session ended early; empty where it did not."""

    def table(self) -> list[Row]:
        """With ratios."""
        return with_ratios(self.rows)

    def to_dict(self) -> dict[str, Any]:
        """The JSON object of the verb."""
        return {
            "schema_version": SCHEMA_VERSION,
            "config": self.wanted.to_dict(),
            "machine": self.machine,
            "peers_missing": [missing._asdict() for missing in self.missing],
            "broken": self.broken or None,
            "rows": self.table(),
        }


def measure(wanted: Wanted, say: Say) -> Measured:
    """Measures everything that was asked for on the current CUDA device. DeviceMissing without one; ValueError for
    bad requests; a lost device ends it early (`broken`)."""
    from experiments.bench.machine import described, need_device

    shapes = wanted.shapes()
    device = need_device()
    peers, missing = joined(wanted.peers, wanted.fa3_library)
    backends, lacking = entered(named_backends(wanted.backends), wanted.fa3_library)
    peers, missing = [*peers, *backends], [*missing, *lacking]
    for name, reason in missing:
        say(f"not taking part: {name}: {reason}")
    machine = described()
    done = Measured(wanted, machine, missing)
    try:
        for row in _rows(wanted, shapes, peers, device, machine):
            done.rows.append(row)
            say(line_of(row))
    except RuntimeError as error:
        done.broken = str(error)
        say(f"broken off after {len(done.rows)} rows: {error}")
    return done


def _rows(
    wanted: Wanted, shapes: list[Shape], peers: list[Contestant], device: str, machine: dict[str, Any]
) -> Iterator[Row]:
    from experiments.bench.bench import Bench, chosen
    from experiments.bench.inputs import Arena, pool_elements
    from experiments.bench.ours import contestants
    from experiments.bench.timing import CudaStopwatch

    note = {name: machine[name] for name in ("device", "torch", "triton")}
    arena = Arena(device, wanted.seed)
    bench = Bench(arena, CudaStopwatch(), seed=wanted.seed, note=note)
    for dtype in dict.fromkeys(shape.dtype for shape in shapes):
        same = [shape for shape in shapes if shape.dtype == dtype]
        arena.take(dtype, max(pool_elements(shape, arena) for shape in same))  # filled once, for the largest
        for shape in same:
            ours = contestants(shape, sweep=wanted.sweep)
            yield from bench.rows(shape, chosen(shape.kernel, ours, CASES[shape.case].contestants, peers))


def line_of(row: Row) -> str:
    """What is said while it runs."""
    where = f"bs {row['block_size']:<3} {row['layout']} {row['table']}"
    what = f"{row['case']:<11} {row['shape']:<34} {where} {row['peer']:<20}"
    if row["status"] != "ok":
        return f"{what} {row['status']}: {row['reason']}"
    rate = (
        f"{row['flop_per_s'] / 1e12:7.1f} TFLOP/s"
        if row["kernel"] == "prefill"
        else f"{row['bytes_per_s'] / 1e9:7.0f} GB/s"
    )
    return f"{what} {row['median_s'] * 1e6:9.2f} us {rate} error {row['relative_error']:.1e} {row['config']}"
