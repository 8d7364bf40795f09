"""Which stored cells a change of pagelab made other ones: theirs is a new number of the schema, and a new key.

A cell's schema is the newest change that applies to its configuration, so that a change costs nobody else their cells.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from experiments.config_hash import NEWER_KEYS
from experiments.pages import VIRTUAL
from experiments.settings import Config

if TYPE_CHECKING:
    from experiments.sweep.planning import SweepPlan

FIRST: Final = 1


@dataclass(frozen=True, slots=True)
class Change:
    """Of what the simulator computes, or of what a cell is."""

    schema: int
    why: str
    applies: Callable[[Config], bool]


def is_cut(config: Config) -> bool:
    """Whether the replay ends at a given second."""
    return config.measure.end_s not in (None, "none")


CHANGES: Final = (
    Change(2, "the window of a run that is cut (--end) ends at the cut, and it is saturated by what had come", is_cut),
    Change(
        3,
        "calibrated step times count a change of rows behind a preemption",
        lambda config: str(config.measure.step_model).startswith("calibrated:"),
    ),
    Change(4, f"a block size is no part of a cell of {VIRTUAL}", lambda config: VIRTUAL in (config.kv.allocator or ())),
)
"""In order. Not for what the configuration says: that is in the hash anyway."""
NEWEST: Final = max(change.schema for change in CHANGES)


def schema_of(config: Config) -> int:
    """Of a cell with this resolved configuration."""
    return max((change.schema for change in CHANGES if change.applies(config)), default=FIRST)


def changes_since(schema: int, configs: Iterable[Config]) -> list[Change]:
    """Those that came after that schema and make one of the cells another one."""
    newer = [change for change in CHANGES if change.schema > schema]
    if not newer:
        return []
    known = list(configs)
    return [change for change in newer if any(map(change.applies, known))]


def written_by() -> dict[str, Any]:
    """For the ledger: by which code a sweep was begun."""
    from engine.versions import version_of

    return {"cell_schema": NEWEST, "pagelab": version_of("pagelab")}


def why_other(told: Mapping[str, Any], plan: SweepPlan) -> str:
    """Why cells of equal configuration are not the same ones as in a sweep that was begun so; empty if the code is not
    the reason. A ledger without a word was begun by the first schema."""
    schema = told.get("cell_schema", FIRST)
    if not isinstance(schema, int):
        return ""
    version = f"pagelab {told['pagelab']}" if told.get("pagelab") else "an older pagelab"
    if schema > NEWEST:
        return f"it was begun with {version} of cell schema {schema}, and this one knows up to {NEWEST}: update pagelab"
    changed = changes_since(schema, (Config.model_validate(cell.config) for cell in plan.cells))
    if not changed:
        return ""
    reasons = "; ".join(change.why for change in changed)
    return (
        f"it was begun with {version} of cell schema {schema}, whose cells are not gone on with, as their numbers "
        f"would stand beside others (now {NEWEST}: {reasons})"
    )


def without_newer(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Without keys that came later and say nothing new: an older pagelab did not know them."""
    return {key: value for key, value in asked.items() if key not in NEWER_KEYS or value != NEWER_KEYS[key]}
