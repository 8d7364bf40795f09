"""Options of several replicas behind a router."""

# No `from __future__ import annotations`: whoever inherits the options would look their names up at home.
from dataclasses import dataclass
from typing import Annotated, Any

from cyclopts import Group, Parameter

FLEET = Group("Replicas and router", sort_key=4.7)
Text = str | None


def _option(text: str) -> Any:
    return Parameter(group=FLEET, help=text, show_default=False)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class FleetFlags:
    """How many replicas serve the trace, and who gets which request."""

    replicas: Annotated[Text, _option("Replicas on one clock, each with a pool and a scheduler as given here [1].")] = (
        None
    )
    router: Annotated[Text, _option("Who gets a request: round-robin, least-loaded or prefix-aware [round-robin].")] = (
        None
    )
    balance_by: Annotated[
        Text, _option("What least-loaded compares: requests (queued and running), or kv (blocks in use) [requests].")
    ] = None
    cache_threshold: Annotated[
        Text,
        _option("prefix-aware follows the longest cached prefix if it is more than this share of the prompt [0.3]."),
    ] = None
    balance_abs_threshold: Annotated[
        Text, _option("It takes the least loaded where requests of most and least differ by more than this [64] ...")
    ] = None
    balance_rel_threshold: Annotated[Text, _option("... and by more than this factor [1.5].")] = None
