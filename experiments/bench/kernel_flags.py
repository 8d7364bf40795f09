"""The options of `bench kernel`: what `experiments.bench.session.Wanted` is made from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from experiments.whole import Whole

if TYPE_CHECKING:
    from experiments.bench.session import Wanted


def _option(text: str, **more: Any) -> Any:
    return Parameter(help=text, negative=(), show_default=False, **more)


CASES_SAID = (
    "decode ragged prefill chunk mixed write copy layouts block-size table-order twin fig18a shared-prefix [all], or "
    "backends [with --backend]."
)
PEERS_SAID = "torch, fa3, flashinfer, vllm [all; with --backend none]; one that cannot be imported is named."
BACKENDS_SAID = "Attention backends by their interface, on one pool: all, or names with commas (see pagelab backends)."
LIBRARY_SAID = "FlashAttention-3 extension library (.so) of vLLM [an installed package]."


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class KernelFlags:
    """Cases, who takes part, and how much of it."""

    case: Annotated[tuple[str, ...], _option(CASES_SAID)] = ()
    dtype: Annotated[str, Parameter(help="bfloat16 or float16.")] = "bfloat16"
    block_size: Annotated[Whole, Parameter(help="Tokens of a block, where the case does not vary it.")] = 16
    peer: Annotated[tuple[str, ...], _option(PEERS_SAID)] = ()
    backend: Annotated[tuple[str, ...], _option(BACKENDS_SAID)] = ()
    fa3_library: Annotated[Path | None, _option(LIBRARY_SAID, env_var="PAGELAB_FA3_LIBRARY")] = None
    quick: Annotated[bool, _option("The two smallest shapes of each case.")] = False
    sweep: Annotated[bool, _option("Also every launch configuration of the grid, and the best of each shape.")] = False
    seed: Annotated[Whole, Parameter(help="Of inputs, tables and ragged lengths.")] = 0

    def wanted(self) -> Wanted:
        """What is to be measured: with backends no peers but those named, without both all peers."""
        from experiments.bench.peers import PEERS
        from experiments.bench.session import Wanted

        return Wanted(
            self.case,
            self.dtype,
            self.block_size,
            self.peer or (() if self.backend else tuple(PEERS)),
            self.fa3_library,
            self.quick,
            self.sweep,
            self.seed,
            self.backend,
        )
