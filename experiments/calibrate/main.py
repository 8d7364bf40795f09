"""`python -m experiments.calibrate.main`: the measurements of `pagelab calibrate` with torch and triton alone.

Writes `rows.csv`, `about.json` and `calibration.json` into the output folder; the model's errors on held-out runs go to
the last and to stderr. `pagelab calibrate --from FOLDER` fits again, anywhere.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from experiments.bench.engine_run import EngineWanted, engine_of
from experiments.bench.host import pinned
from experiments.calibrate.clocks import watched
from experiments.calibrate.fit import Misfit, fit, held_out, misfits
from experiments.calibrate.grid import Limits, decode_points, mixed_points
from experiments.calibrate.rows import StepRow, read_rows, write_rows
from experiments.provenance import without_folders
from experiments.standalone import ended, say
from sim.calibrated import CalibratedModel

if TYPE_CHECKING:
    from engine.worker.engine import Engine

ROWS_FILE, ABOUT_FILE, CALIBRATION_FILE = "rows.csv", "about.json", "calibration.json"
NEEDED_KEYS: Final = ("decode_buckets", "token_buckets", "padded")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What was asked for; all of it is kept beside the rows."""

    model: str = "llama-3-8b"
    device: str = "cuda"
    dtype: str = "auto"
    attention: str = "auto"
    allocator: str = "paged"
    kernel: str = "paged"
    block_size: int = 16
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    max_model_len: int = 4096
    kv_tokens: int = 110_592
    num_steps: int = 24
    """Decode steps of a point, the first two of which are not counted."""
    steps_a_point: int = 6
    """Steps with chunks of a point."""
    kv_places: int = 6
    """Sums of context that each size of batch decodes at."""
    rounds: int = 2
    """Requests that each place of a loop serves, one after the other."""
    load_s: float = 2.0
    """Seconds of decoding before anything is counted."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (
            ("block_size", 1),
            ("max_num_seqs", 1),
            ("num_steps", 4),
            ("steps_a_point", 1),
            ("kv_places", 2),
            ("rounds", 1),
        ):
            if getattr(self, name) < least:
                raise ValueError(f"need {name} of at least {least}, got {getattr(self, name)}")
        if self.kv_tokens < 2 * self.max_model_len:
            raise ValueError(
                f"kv_tokens={self.kv_tokens} are less than two sequences of max_model_len={self.max_model_len}"
            )

    @property
    def limits(self) -> Limits:
        """Of the grid."""
        return Limits(
            self.max_num_seqs, self.max_num_batched_tokens, self.max_model_len, self.kv_tokens, self.block_size
        )


@dataclass
class Measured:
    """Rows, and what they were taken with."""

    rows: list[StepRow]
    about: dict[str, Any]

    def fitted(self) -> CalibratedModel:
        """To all rows."""
        return fit(self.rows, *self._buckets, padded=self.about["padded"], about=self.about)

    def errors(self) -> list[tuple[str, Misfit]]:
        """On held-out runs, and on the rows themselves."""
        held = held_out(self.rows, *self._buckets, padded=self.about["padded"])
        return [*(("held out", one) for one in held), *(("fitted", one) for one in misfits(self.fitted(), self.rows))]

    @property
    def _buckets(self) -> tuple[list[int], list[int]]:
        return self.about["decode_buckets"], self.about["token_buckets"]


def measure(wanted: Wanted, engine: Engine | None = None) -> Measured:
    """On the engine; None: one is made. DeviceMissing without torch or device; ValueError for what cannot be run."""
    from experiments.calibrate.churn import churn_rows
    from experiments.calibrate.probe import Probe
    from experiments.calibrate.probe import measure as run

    engine = engine or engine_of(_engine_wanted(wanted))
    kernel: Any = wanted.kernel
    host: dict[str, dict[str, Any]] = {"loops": {}, "grid": {}}
    progress("sequences come and go")
    with pinned(host["loops"]):
        churned = churn_rows(engine, wanted.limits, wanted.allocator, kernel, wanted.rounds, wanted.seed)
    probe = Probe.of(engine, wanted.limits, wanted.allocator, kernel, wanted.seed)
    decode_buckets, token_buckets = list(probe.executor.decode.buckets), list(probe.executor.mixed.buckets)
    decodes = decode_points(decode_buckets, wanted.limits, wanted.num_steps, wanted.kv_places, wanted.seed)
    mixed = mixed_points(token_buckets, wanted.limits, wanted.steps_a_point, wanted.seed)
    clocks: dict[str, Any] = {}
    with watched(clocks), pinned(host["grid"]):
        steps = probe.load(wanted.load_s, time.perf_counter)
        progress(f"{steps} steps of load; {len(decodes)} points of decodes, {len(mixed)} with chunks")
        rows = run(probe, decodes, mixed, wanted.num_steps, progress)
    about = {
        "wanted": without_folders(asdict(wanted)),
        "engine": _plain(engine.provenance),
        "clocks": clocks,
        "host": host,
        "decode_buckets": decode_buckets,
        "token_buckets": token_buckets,
        "padded": wanted.device == "cuda",
    }
    return Measured([*churned, *rows], about)


def _engine_wanted(wanted: Wanted) -> EngineWanted:
    names = ("model", "device", "dtype", "attention", "max_num_seqs", "max_num_batched_tokens", "max_model_len", "seed")
    values = {name: getattr(wanted, name) for name in names}
    return EngineWanted(**values, input_len=1, output_len=1)


def _plain(provenance: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(dict(provenance), default=str))
    return found


def write(done: Measured, folder: Path) -> CalibratedModel:
    """The three files; existing ones are replaced."""
    (folder / ROWS_FILE).write_text(write_rows(done.rows), "utf-8")  # first: they cost most
    (folder / ABOUT_FILE).write_text(json.dumps(done.about, indent=1) + "\n", "utf-8")
    model = done.fitted()
    errors = [{"rows": which, **one._asdict()} for which, one in done.errors()]
    text = json.dumps({**model.to_dict(), "errors": errors}, indent=1)
    (folder / CALIBRATION_FILE).write_text(text + "\n", "utf-8")
    return model


def read(folder: Path) -> Measured:
    """What `write` wrote, or a table of steps alone, as `pagelab trace steps` makes of another engine's log: then
    nothing is known of buckets, and the model interpolates. ValueError for anything else."""
    if folder.is_file():
        about = {"wanted": {"source": folder.name}, "decode_buckets": [], "token_buckets": [], "padded": False}
        return Measured(read_rows(folder), about)
    try:
        about = json.loads((folder / ABOUT_FILE).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{folder / ABOUT_FILE}: cannot be read: {error}") from error
    lacking = [name for name in NEEDED_KEYS if name not in about]
    if lacking:
        raise ValueError(f"{folder / ABOUT_FILE}: keys {', '.join(lacking)} are missing")
    return Measured(read_rows(folder / ROWS_FILE), about)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code: 0; 2 for bad usage, 6 without a device."""
    words = vars(_parser().parse_args(argv))
    folder, sizes = words.pop("output_dir"), words.pop("block_size")
    return ended("calibrate", lambda: measure_and_write([Wanted(**words, block_size=size) for size in sizes], folder))


def measure_and_write(all_wanted: Sequence[Wanted], folder: Path) -> None:
    """One engine for all of them. Of several, which differ in block size, each has a folder `block-size-N` in it."""
    folder.mkdir(parents=True, exist_ok=True)
    engine = engine_of(_engine_wanted(all_wanted[0]))
    for wanted in all_wanted:
        place = folder / f"block-size-{wanted.block_size}" if len(all_wanted) > 1 else folder
        place.mkdir(exist_ok=True)
        done = measure(wanted, engine)
        write(done, place)
        progress(f"block size {wanted.block_size}")
        for line in report(done):
            say(line)


def report(done: Measured) -> list[str]:
    """A line a kind of steps."""
    return [
        f"{which:<9} {one.kind:<19} {one.num_steps:>6} steps of {one.num_runs:>4} runs: signed "
        f"{100 * one.mean_signed_frac:+.2f} % of their time together, MAPE {100 * one.mape_frac:.2f} % a step"
        + (f"; {one.num_outside} steps outside the grid" if one.num_outside else "")
        for which, one in done.errors()
    ]


BEGAN: Final = time.monotonic()


def progress(text: str) -> None:
    """On stderr, behind the seconds since the start."""
    say(f"{time.monotonic() - BEGAN:6.1f} s  {text}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("calibrate", description="Measure the engine's step times over a synthetic grid.")
    for one in fields(Wanted):
        kind = {"int": int, "float": float}.get(str(one.type), str)
        flag, several = "--" + one.name.replace("_", "-"), one.name == "block_size"
        more: dict[str, Any] = {"nargs": "+", "default": [one.default]} if several else {"default": one.default}
        parser.add_argument(flag, type=kind, help=f"[{one.default}]", **more)
    parser.add_argument("--output-dir", type=Path, required=True)
    return parser


if __name__ == "__main__":
    sys.exit(main())
