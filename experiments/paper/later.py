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


FIG15: Final = {
    "parallel-2": 6.09,
    "parallel-4": 8.53,
    "parallel-6": 9.79,
    "beam-2": 37.56,
    "beam-4": 53.13,
    "beam-6": 55.16,
}

LATER: Final[dict[str, list[Claim]]] = {
    "fig14": _claims(
        "fig14", "Fig 14", "normalized latency, parallel sampling and beam search", "s/token", {"curve": None}
    ),
    "fig15": _claims("fig15", "Fig 15, Alpaca", "memory saved by sharing", "%", dict(FIG15), "zero-tokens"),
    "fig16": _claims(
        "fig16", "Fig 16", "rate over Orca (Oracle), shared prefix", "x", {"1-shot": 1.67, "5-shot": 3.58}
    ),
    "fig17": _claims("fig17", "Fig 17", "rate over the Orcas, chatbot", "x", {"rate-ratio": 2.0}, "new-conversation"),
    "fig19": _claims("fig19", "Fig 19", "recompute against swap by block size", "ms", {"curve": None}, "times-0.9"),
}


def results(name: str) -> list[Result]:
    """All of them `not yet`."""
    return [not_yet(claim) for claim in LATER[name]]
