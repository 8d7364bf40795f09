"""The verb `trace steps`: an engine's log as a table of its steps."""

from __future__ import annotations

from pathlib import Path

from experiments import exits, store
from experiments.console import say
from experiments.exits import UsageError
from experiments.truth.vllm_log import read_vllm_log
from sim.step_rows import step_rows_csv


def steps_verb(
    log: Path, target: Path, block_size: int, kv_tokens: int | None, kernel: str | None, *, overwrite: bool
) -> int:
    """The exit code; UsageError where the log has no steps."""
    if min(block_size, 1 if kv_tokens is None else kv_tokens) < 1:
        raise UsageError(f"--block-size and --kv-tokens are at least 1, got {block_size} and {kv_tokens}")
    if target.exists() and not overwrite:
        raise UsageError(f"{target} is there already: say --overwrite, or choose another name")
    try:
        found = read_vllm_log(log, block_size=block_size, kv_tokens=kv_tokens, kernel=kernel)
        store.write_whole(target, step_rows_csv(found.rows, log.stem))
    except (ValueError, OSError) as error:
        raise UsageError(str(error)) from error
    mixed = sum(row.num_prefills > 0 for row in found.rows)
    say(f"{target}: {len(found.rows):,} steps, {mixed:,} of them with prefills; KV cache of {found.kv_tokens:,} tokens")
    for reason, count in found.left_out.items():
        say(f"left out: {count:,} {reason}")
    say("context lengths are estimates, from the cache's use to 0.1 %; attended pairs of steps with prefills, too")
    return exits.OK
