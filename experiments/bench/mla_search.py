"""`python -m experiments.bench.mla_search`: the best configurations of the decode over latents, in under two minutes.

First every configuration is compiled and checked on a small batch, many at once in processes of their own; then those
that were right are timed, one after another, on the shapes of the case `mla`. A kernel that hangs or faults loses its
process and is left out, no other is. Needs torch and triton only.
"""

from __future__ import annotations

import argparse
import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from experiments import exits
from experiments.bench.cases import shapes_of
from experiments.bench.rows import Row, to_csv, with_ratios
from experiments.bench.session import line_of
from experiments.bench.shapes import MLA_16, MLA_128, Heads, Shape

if TYPE_CHECKING:
    from experiments.bench.bench import Bench
    from experiments.bench.contestant import Contestant

HEADS: Final = {heads.num_heads: heads for heads in (MLA_16, MLA_128)}
FIRST: Final = (("mla-128", 64), ("mla-16", 64))
"""Heads and batch of the shapes that are timed first, so that a session cut short has them."""
CHECKED_LENGTHS: Final = (1, 63, 64, 65, 200, 777, 0, 1500)
SILENCE_S: Final = 25.0
"""A timing process that says nothing for so long hangs."""
POISON_BLOCKS: Final = 3


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0; 1 if a configuration was wrong or lost, 3 if nothing was timed, 6 without a device."""
    words = _parser().parse_args(argv)
    if words.check:
        return _check_process([tuple(map(int, pair.split(":"))) for pair in words.check])
    if words.time:
        return _time_process(words)
    try:
        from experiments.bench.machine import need_device

        need_device()
    except exits.DeviceMissing as error:
        say(f"mla_search: {error}")
        return exits.NO_DEVICE
    start = time.monotonic()
    bad = checked(words.workers, words.check_seconds)
    say(f"checked after {time.monotonic() - start:.0f} s; left out: {sorted(bad) or 'none'}")
    rows = timed(words, bad, start + words.seconds)
    say(f"timed after {time.monotonic() - start:.0f} s")
    table = with_ratios(rows)
    if words.output_dir:
        words.output_dir.mkdir(parents=True, exist_ok=True)
        (words.output_dir / "mla_search.csv").write_text(to_csv(table), "utf-8")
    print("\n".join(report(table)))
    if not rows:
        return exits.FAILED_CELLS
    return exits.BUG if bad else exits.OK


def report(rows: Sequence[Row]) -> list[str]:
    """The three best of ours per shape, the rule's, and every peer; then whatever was not right."""
    lines = []
    for label in dict.fromkeys(row["shape"] for row in rows):
        here = sorted((row for row in rows if row["shape"] == label and row["status"] == "ok"), key=_median)
        ours = [row for row in here if row["swept"]]
        for name, kept in (("best", ours[:3]), ("rule", [row for row in here if _is_rule(row)])):
            lines += [f"{name} {label:<18} {_median(row) * 1e6:8.2f} us  {row['config']}" for row in kept]
        peers = [row for row in here if not row["peer"].startswith("pagelab")]
        lines += [f"peer {label:<18} {_median(row) * 1e6:8.2f} us  {row['peer']}" for row in peers]
    return lines + [line_of(row) for row in rows if row["status"] != "ok"]


def _median(row: Row) -> float:
    return float(row["median_s"])


def _is_rule(row: Row) -> bool:
    return bool(row["peer"] == "pagelab" and not row["swept"])


# ---- the watching process


def checked(workers: int, seconds: float) -> set[str]:
    """`heads:index` of the configurations that were wrong, raised, or did not answer in time."""
    todo = [f"{num_heads}:{index}" for num_heads in HEADS for index in range(len(configs_of(num_heads)))]
    processes = [_started(["--check", *todo[first::workers]]) for first in range(min(workers, len(todo)))]
    deadline, right = time.monotonic() + seconds, set()
    for process in processes:
        for line in _lines(process, deadline):
            say(f"  {line}")
            done = json.loads(line)
            if done["error"] <= 5e-3:
                right.add(done["key"])
    return set(todo) - right


def timed(words: argparse.Namespace, bad: set[str], deadline: float) -> list[Row]:
    """Rows of all that could be timed; what hangs is left out and the rest goes on."""
    rows: list[Row] = []
    done: list[str] = []
    while time.monotonic() < deadline:
        process = _started(["--time", "--skip", *sorted(bad), *done, *_library(words)])
        running = ""
        for line in _lines(process, deadline, SILENCE_S):
            said = json.loads(line)
            if "row" in said:
                rows.append(said["row"])
                done.append(f"{running}")
                say(line_of(said["row"]))
            running = said.get("next", running)
        if process.poll() == 0 or not running:
            break
        say(f"lost while timing {running}")
        done.append(running)
    return rows


def _library(words: argparse.Namespace) -> list[str]:
    return ["--fa3-library", str(words.fa3_library)] if words.fa3_library else []


def _started(options: Sequence[str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "experiments.bench.mla_search", *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _lines(process: subprocess.Popen[str], deadline: float, silence_s: float = 1e9) -> Iterator[str]:
    """What a process says on stdout; it is killed at the deadline, or when it says nothing for `silence_s`."""
    said: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            said.put(line.rstrip("\n"))
        said.put(None)

    threading.Thread(target=read, daemon=True).start()
    while True:
        try:
            line = said.get(timeout=max(0.0, min(silence_s, deadline - time.monotonic())))
        except queue.Empty:
            process.kill()
            break
        if line is None:
            break
        yield line
    process.wait()


# ---- the processes that are watched


def _check_process(pairs: Sequence[tuple[int, ...]]) -> int:
    import torch

    batches = {num_heads: small_batch(heads, "cuda") for num_heads, heads in HEADS.items()}
    for num_heads, index in pairs:
        start = time.monotonic()
        told: dict[str, Any] = {"key": f"{num_heads}:{index}", "config": str(configs_of(num_heads)[index])}
        try:
            error, why = wrong_by(batches[num_heads], configs_of(num_heads)[index], HEADS[num_heads].rank), ""
            torch.cuda.synchronize()
        except Exception as raised:  # noqa: BLE001 - whatever a compiler raises is its configuration's reason
            error, why = 1e9, f"{type(raised).__name__}: {raised}"[:200]
        print(json.dumps(told | {"error": error, "why": why, "s": round(time.monotonic() - start, 1)}), flush=True)
    return exits.OK


def small_batch(heads: Heads, device: str, dtype: str = "bfloat16") -> tuple[Any, ...]:
    """q, cache, table, lengths and the expected output in float32: a NaN wherever nobody should read."""
    import torch

    torch.manual_seed(0)
    size, counts = 64, [-(-length // 64) for length in CHECKED_LENGTHS]
    cache = torch.full((sum(counts) + POISON_BLOCKS, size, heads.head_size), float("nan"), device=device)
    ids = torch.randperm(len(cache)).tolist()
    table = torch.full((len(counts), max(counts) + 1), 2**30, dtype=torch.int32)
    kind = getattr(torch, dtype)
    q = torch.randn(len(counts), heads.num_heads, heads.head_size, device=device).to(kind)
    expected = torch.zeros(len(counts), heads.num_heads, heads.rank, device=device)
    for row, (length, count) in enumerate(zip(CHECKED_LENGTHS, counts, strict=True)):
        mine = [ids.pop() for _ in range(count)]
        table[row, :count] = torch.tensor(mine, dtype=torch.int32)
        latents = torch.randn(length, heads.head_size, device=device).to(kind)
        for place, block in enumerate(mine):
            part = latents[place * size : (place + 1) * size]
            cache[block, : len(part)] = part
        if length:
            shares = (q[row].float() @ latents.float().T * heads.head_size**-0.5).softmax(-1)
            expected[row] = shares @ latents[:, : heads.rank].float()
    lengths = torch.tensor(CHECKED_LENGTHS, dtype=torch.int32)
    return q, cache.to(kind), table.to(device), lengths.to(device), expected


def wrong_by(batch: tuple[Any, ...], config: Any, rank: int) -> float:
    """Largest relative error of a sequence; infinite for what is not finite, or not zero where it should be."""
    from engine.attention.kernels.launch import mla_decode

    q, cache, table, lengths, expected = batch
    out = expected.new_full(expected.shape, float("nan")).to(q.dtype)
    options = {"rank": rank, "scale": q.shape[2] ** -0.5, "max_seq_len": max(CHECKED_LENGTHS), "config": config}
    mla_decode(q, cache, table, lengths, out=out, **options)
    error = (out.float() - expected).flatten(1).norm(dim=1) / expected.flatten(1).norm(dim=1).clamp(min=1e-6)
    return float(error.nan_to_num(nan=1e9, posinf=1e9).max())


def _time_process(words: argparse.Namespace) -> int:
    from experiments.bench.bench import Bench
    from experiments.bench.inputs import Arena, pool_elements
    from experiments.bench.machine import need_device
    from experiments.bench.peers import joined
    from experiments.bench.timing import CudaStopwatch

    arena = Arena(need_device(), 0)
    peers = [peer for peer in joined(("fa3", "mla"), words.fa3_library)[0] if "mla" in peer.kernels]
    shapes = ordered(shapes_of("mla"))
    arena.take(shapes[0].dtype, max(pool_elements(shape, arena) for shape in shapes))
    for said in timings(Bench(arena, CudaStopwatch()), shapes, configs_of, peers, set(words.skip)):
        print(json.dumps(said), flush=True)
    return exits.OK


def timings(
    bench: Bench,
    shapes: Sequence[Shape],
    configs: Callable[[int], Sequence[Any]],
    peers: Sequence[Contestant],
    skip: set[str],
) -> Iterator[dict[str, Any]]:
    """`next`: what is being timed from here on, `shape/key`; `row`: of what was before it. `skip` has keys, or both."""
    from experiments.bench.ours import PAGED
    from experiments.bench.ours_mla import Latents

    for shape in shapes:
        heads = shape.heads.num_heads
        named = [(f"{heads}:{index}", Latents(PAGED, config)) for index, config in enumerate(configs(heads))]
        todo: list[tuple[str, Contestant]] = [("rule", Latents(PAGED)), *named, *((peer.name, peer) for peer in peers)]
        left = [(key, one) for key, one in todo if not {key, f"{shape.label}/{key}"} & skip]
        names = iter([f"{shape.label}/{key}" for key, _ in left] + [""])
        yield {"next": next(names)}
        for row in bench.rows(shape, [one for _, one in left]):
            yield {"row": row, "next": next(names)}


def ordered(shapes: Sequence[Shape]) -> list[Shape]:
    """Those of FIRST before the others."""
    return sorted(shapes, key=lambda shape: (shape.heads.name, shape.num_seqs) not in FIRST)


def configs_of(num_heads: int) -> list[Any]:
    """What is searched."""
    import torch

    from engine.attention.kernels.device import multiprocessors
    from experiments.bench.ours_mla import latent_configs

    return list(latent_configs(num_heads, multiprocessors(torch.device("cuda"))))


def say(text: str) -> None:
    """Progress, on stderr."""
    print(text, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("mla_search", description="Check and time configurations of the MLA decode.")
    parser.add_argument("--workers", type=int, default=14, help="processes that compile and check [14]")
    parser.add_argument("--check-seconds", type=float, default=45, help="of compiling and checking [45]")
    parser.add_argument("--seconds", type=float, default=95, help="of everything [95]")
    parser.add_argument("--fa3-library", type=Path, help="FlashAttention-3 extension library (.so) of vLLM")
    parser.add_argument("--output-dir", type=Path, help="where mla_search.csv goes")
    parser.add_argument("--check", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--time", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--skip", nargs="*", default=[], help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
