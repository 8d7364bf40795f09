"""Figures that are known by name but that nothing here measures yet. They never pass."""

from __future__ import annotations

from typing import Final

from experiments.paper.claims import Claim, Result, not_yet

NOTE: Final = "no code measures this yet"


def _claims(
    name: str, source: str, metric: str, unit: str, values: dict[str, float | None], *deviations: str, note: str = ""
) -> list[Claim]:
    text = f"{note}; {NOTE}" if note else NOTE
    return [
        Claim(f"{name}/{key}", metric, value, unit, source=source, deviations=deviations, note=text)
        for key, value in values.items()
    ]


LATER: Final[dict[str, list[Claim]]] = {
    "fig16": _claims(
        "fig16", "Fig 16", "rate over Orca (Oracle), shared prefix", "x", {"1-shot": 1.67, "5-shot": 3.58}
    ),
    "fig17": _claims("fig17", "Fig 17", "rate over the Orcas, chatbot", "x", {"rate-ratio": 2.0}, "new-conversation"),
}


def results(name: str) -> list[Result]:
    """All of them `not yet`."""
    return [not_yet(claim) for claim in LATER[name]]
