"""The verb group `bench` of the command line; what it runs is imported inside."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter, Token

from experiments.flags import Argv, Json, Overwrite

Several = Parameter(negative=(), show_default=False)


def _whole(kind: Any, tokens: Sequence[Token]) -> int:
    """Cyclopts alone would round 1.5."""
    try:
        return int(tokens[0].value)
    except ValueError:
        raise ValueError(f"expected a whole number, got {tokens[0].value!r}") from None


Whole = Parameter(converter=_whole)
Switch = Parameter(negative=(), show_default=False)

bench_app = App(name="bench", help="Measure on a device.", result_action="return_value")


@bench_app.command
def kernel(
    *,
    case: Annotated[tuple[str, ...], Several] = (),
    dtype: str = "bfloat16",
    block_size: Annotated[int, Whole] = 16,
    peer: Annotated[tuple[str, ...], Several] = (),
    fa3_library: Annotated[Path | None, Parameter(env_var="PAGELAB_FA3_LIBRARY", show_default=False)] = None,
    quick: Annotated[bool, Switch] = False,
    sweep: Annotated[bool, Switch] = False,
    seed: Annotated[int, Whole] = 0,
    output_dir: Annotated[Path | None, Parameter(name=("-o", "--output-dir"))] = None,
    measured_in: Annotated[tuple[Path, ...], Parameter(name="--from", negative=(), show_default=False)] = (),
    overwrite: Overwrite = False,
    json: Json = False,
    argv: Argv = (),
) -> int:
    """Time the attention kernels inside CUDA graphs, beside every library that can be imported.

    Every row is checked against float32 on the same inputs. Without a CUDA device: exit code 6.

    Parameters
    ----------
    case
        decode, ragged, prefill, chunk, mixed, write, copy, layouts, block-size, table-order, twin, fig18a [all].
    dtype
        bfloat16 or float16.
    block_size
        Tokens of a block, where the case does not vary it.
    peer
        torch, fa3, flashinfer, vllm [all]; one that cannot be imported is named.
    fa3_library
        FlashAttention-3 extension library (.so) of vLLM [an installed package].
    quick
        The two smallest shapes of each case.
    sweep
        Also every launch configuration of the grid, and the best of each shape.
    seed
        Of inputs, tables and ragged lengths.
    output_dir
        Results folder: rows, manifest, figures, report.
    measured_in
        Take the rows from this folder (of experiments.bench.kernel_main, or of this verb) and measure nothing. May be
        given again: measurements of one device, type and seed go together.
    """
    from experiments.bench.peers import PEERS
    from experiments.bench.session import Wanted
    from experiments.bench.verb import kernel_verb

    wanted = Wanted(case, dtype, block_size, peer or tuple(PEERS), fa3_library, quick, sweep, seed)
    return kernel_verb(wanted, argv, output_dir, measured_in, overwrite=overwrite, as_json=json)
