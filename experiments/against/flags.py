"""The options of `compare` with two results folders."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from cyclopts import Group, Parameter

_TWO = Group("Two results", sort_key=8)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class AgainstFlags:
    """What is compared, and what may not happen."""

    metric: Annotated[
        tuple[str, ...],
        Parameter(
            group=_TWO,
            help="Columns, a comma list [live share, batch, tokens/s, TTFT, TPOT, preemptions].",
            negative=(),
            show_default=False,
        ),
    ] = ()
    fail_on: Annotated[
        tuple[str, ...],
        Parameter(
            group=_TWO,
            help="Exit code 5 where a difference is so, as in 'output_tok_per_s<-5%'; may be repeated.",
            negative=(),
            show_default=False,
        ),
    ] = ()
