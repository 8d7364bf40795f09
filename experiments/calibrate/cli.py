"""The verb `calibrate`; what it needs is imported inside it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from experiments.flags import Json
from experiments.whole import Whole


def calibrate(
    *,
    output_dir: Annotated[Path, Parameter(name=("-o", "--output-dir"))],
    model: Annotated[str, Parameter(name=("-m", "--model"))] = "llama-3-8b",
    device: str = "cuda",
    attention: str = "auto",
    allocator: Annotated[str, Parameter(name=("-a", "--allocator"))] = "paged",
    kernel: str = "paged",
    block_size: Whole = 16,
    kv_tokens: Whole = 110_592,
    max_model_len: Whole = 4096,
    max_num_seqs: Whole = 256,
    max_num_batched_tokens: Whole = 2048,
    num_steps: Whole = 24,
    steps_a_point: Whole = 6,
    seed: Whole = 0,
    measured_in: Annotated[Path | None, Parameter(name="--from", show_default=False)] = None,
    json: Json = False,
) -> int:
    """Measure the engine's step times over a synthetic grid, and fit the step model `calibrated:DIR/calibration.json`.

    Exit code 6 without a CUDA device (unless --device cpu). An 8B model takes two minutes and a half.

    Parameters
    ----------
    output_dir
        Folder for rows.csv, about.json and calibration.json.
    model
        A catalogue name (random weights), a folder or a GGUF file.
    device
        cuda, or cpu, which is good for a look at how it works.
    kernel
        paged or contiguous, for allocators whose blocks are adjacent.
    num_steps
        Decode steps of a grid point.
    steps_a_point
        Steps with chunks of a grid point.
    measured_in
        Fit again what is in this folder, or the table that `trace steps` made of an engine's log; measure nothing.
    """
    from experiments.calibrate.verb import calibrate_verb, wanted_of

    wanted = None
    if measured_in is None:
        wanted = wanted_of(
            model, device, attention=attention, allocator=allocator, kernel=kernel, block_size=block_size,
            max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens, max_model_len=max_model_len,
            kv_tokens=kv_tokens, num_steps=num_steps, steps_a_point=steps_a_point, seed=seed,
        )  # fmt: skip
    return calibrate_verb(wanted, measured_in, output_dir, as_json=json)
