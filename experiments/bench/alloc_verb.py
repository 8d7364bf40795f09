"""`pagelab bench alloc`: what an allocator's calls cost on the host; with a device, also a tensor a request."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments import manifest, store
from experiments.bench.alloc_run import MEANINGS, AllocWanted, measure, report
from experiments.bench.block_costs import measured
from experiments.bench.kept import keep_tables
from experiments.console import say, say_json
from experiments.exits import OK, UsageError

if TYPE_CHECKING:
    from experiments.bench.engine_rows import Row


def alloc_verb(
    options: dict[str, Any], argv: Sequence[str], output_dir: Path | None, *, overwrite: bool, as_json: bool
) -> int:
    """Exit code 0; UsageError for what cannot be made."""
    begun = manifest.Invocation("bench alloc", argv, manifest.now())
    if output_dir is not None:
        store.Store.replaceable(output_dir, overwrite=overwrite)
    try:
        wanted = AllocWanted(**{name: value for name, value in options.items() if value})
        rows = measure(wanted, _tell)
    except ValueError as error:
        raise UsageError(str(error)) from error
    _tell("the block pool, by the block")
    blocks = measured()
    caching, device, why_not = _caching()
    about = {"config": wanted.to_dict(), "device": device, "columns": MEANINGS, "seeds": [wanted.seed]}
    if output_dir is not None:
        tables = {store.SUMMARY: rows, **({store.CACHING: caching} if caching else {})}
        keep_tables(output_dir, tables, begun, about, overwrite=overwrite)
    if as_json:
        pool = [cost._asdict() for cost in blocks]
        say_json(
            {**about, "rows": rows, "block_pool": pool, "caching_allocator": caching, "not_measured": why_not or None}
        )
        return OK
    say("\n".join(report(rows)))
    say("block pool, CPU us a block: " + ", ".join(f"{c.case} {c.us_per_block:.3f} (by {c.batch})" for c in blocks))
    _say_caching(caching, why_not)
    if output_dir is not None:
        say(f"results: {output_dir}")
    return OK


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _caching() -> tuple[list[Row], str, str]:
    """Rows of the caching allocator by order and setting, the device, and why there are none."""
    from experiments.bench.machine import described
    from experiments.paper.caching_allocator import lacking, tried
    from experiments.paper.runs import Lab

    if why_not := lacking():
        return [], "host", why_not
    _tell("tensors of Fig 2's requests through the caching allocator")
    done = tried(Lab())
    rows = [{"order": order, "setting": setting, **found} for (order, setting), found in done.replays.items()]
    return rows, str(described()["device"]), ""


def _say_caching(rows: Sequence[Row], why_not: str) -> None:
    if why_not:
        say(f"torch's caching allocator: {why_not}")
    for row in rows:
        median = row["take_median_s"]
        times = "" if median is None else f", {median * 1e6:.1f} us to allocate"
        say(
            f"a tensor a request in the order of {row['order']} ({row['setting']}): {row['mean_num_held']:.1f} held, "
            f"{row['num_failed']:,} failures, {row['num_cuda_mallocs']:,} cudaMalloc{times}"
        )
