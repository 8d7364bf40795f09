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


def _fig12(letter: str, setting: str, *deviations: str) -> list[Claim]:
    note = "the text says 1.7 to 2.7 times Oracle's rate, 2.7 to 8 times Max's" if letter in "abc" else ""
    return _claims(
        f"fig12{letter}",
        f"Fig 12{letter}, {setting}",
        "normalized latency over request rate",
        "s/token",
        {"curve": None},
        *("head-of-file", "quanta", "warm-up", "step-model", *deviations),
        note=note,
    )


FIG13B: Final = {
    "orca-max/mean_batch": 7.00,
    "orca-pow2/mean_batch": 43.24,
    "orca-oracle/mean_batch": 72.75,
    "paged/mean_batch": 132.44,
}
FIG15: Final = {
    "parallel-2": 6.09,
    "parallel-4": 8.53,
    "parallel-6": 9.79,
    "beam-2": 37.56,
    "beam-4": 53.13,
    "beam-6": 55.16,
}

LATER: Final[dict[str, list[Claim]]] = {
    "fig1": _claims("fig1", "Fig 1", "memory and throughput over batch size", "", {"curve": None}, note="axes only"),
    "fig3": _claims("fig3", "Fig 3", "slots of two reservations", "slots", {"request-a": 2048, "request-b": 512}),
    "fig6": _claims("fig6", "Fig 6", "a block table over two decoded tokens", "", {"walk": None}),
    "fig7": _claims("fig7", "Fig 7", "block tables of two requests", "", {"walk": None}),
    "fig12a": _fig12("a", "OPT-13B, ShareGPT"),
    "fig12b": _fig12("b", "OPT-66B, ShareGPT"),
    "fig12c": _fig12("c", "OPT-175B, ShareGPT", "script-typo"),
    "fig12d": _fig12("d", "OPT-13B, Alpaca"),
    "fig12e": _fig12("e", "OPT-66B, Alpaca", "script-typo"),
    "fig12f": _fig12("f", "OPT-175B, Alpaca", "ft-memory"),
    "fig13b": _claims("fig13b", "Fig 13b", "running requests", "requests", dict(FIG13B), "fig13-rate", "per-iteration"),
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
