"""The six panels of Fig 12: model, pool, lengths, step model, and the request rates of every system.

`grid` are the artifact's rates (`experiments/fig12-*.sh`, `ft/run_*.py`), `added` those beyond it that our step times
need before a curve reaches the threshold; `quick` replaces both in shorter traces.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

Rates = Mapping[str, tuple[float, ...]]

FT: Final = "fastertransformer"
HOUR: Final = 3600


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel; rates in requests a second, ascending."""

    letter: str
    model: str
    gpus: str
    lengths: str
    workload: str
    num_blocks: int
    step_model: str
    duration_s: int
    quick_duration_s: int
    max_batch: int
    """FasterTransformer's, in the artifact."""
    grid: Rates
    added: Rates
    quick: Rates

    @property
    def name(self) -> str:
        """Of the experiment."""
        return f"fig12{self.letter}"

    @property
    def setting(self) -> str:
        """Model, GPUs and lengths, for titles."""
        return f"{self.model.upper()}, {self.gpus}, {'ShareGPT' if self.lengths == 'sharegpt' else 'Alpaca'}"


PANELS: Final[dict[str, Panel]] = {
    panel.name: panel
    for panel in (
        Panel(
            *("a", "opt-13b", "1 GPU", "sharegpt", "paper-fig12a", 984, "paper-13b", HOUR, 900, 5),
            grid={
                FT: (0.01, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35),
                "orca-max": (0.2, 0.4, 0.5, 0.75),
                "orca-pow2": (0.25, 0.5, 0.75, 0.9),
                "orca-oracle": (0.5, 0.75, 1.0, 1.25, 1.5),
                "paged": (1.0, 1.25, 1.5, 1.75, 1.9, 2.0),
            },
            added={"orca-pow2": (1.0,), "paged": (2.1, 2.25, 2.5)},
            quick={
                FT: (0.05, 0.15, 0.25),
                "orca-max": (0.4, 0.5, 0.75),
                "orca-pow2": (0.5, 0.75, 0.9),
                "orca-oracle": (0.75, 1.0, 1.25),
                "paged": (1.5, 2.0, 2.25, 2.5),
            },
        ),
        Panel(
            *("b", "opt-66b", "4 GPUs", "sharegpt", "paper-fig12a", 605, "paper-66b", HOUR, 900, 2),
            grid={
                FT: (0.01, 0.05, 0.08, 0.1, 0.12, 0.15, 0.2),
                "orca-max": (0.1, 0.2, 0.3),
                "orca-pow2": (0.1, 0.2, 0.25, 0.35),
                "orca-oracle": (0.2, 0.3, 0.4, 0.5),
                "paged": (0.4, 0.6, 0.8, 0.9, 1.0),
            },
            added={"paged": (1.1,)},
            quick={
                "orca-max": (0.1, 0.2, 0.3),
                "orca-pow2": (0.2, 0.25, 0.35),
                "orca-oracle": (0.3, 0.4, 0.5),
                "paged": (0.6, 0.9, 1.0, 1.1),
            },
        ),
        Panel(
            *("c", "opt-175b", "8 GPUs", "sharegpt", "paper-fig12a", 3758, "paper-175b", 900, 900, 24),
            grid={
                FT: (0.01, 0.05, 0.1, 0.15, 0.2, 0.3),
                "orca-max": (0.25, 0.5, 0.75, 1.0, 1.25),
                "orca-pow2": (0.5, 0.75, 1.0, 1.25, 1.5),
                "orca-oracle": (0.8, 1.0, 1.2, 1.4, 1.6, 1.8),
                "paged": (1.5, 1.75, 2.0, 2.25, 2.5, 3.0),
            },
            added={"paged": (3.25, 3.5)},
            quick={
                "orca-max": (0.5, 0.75, 1.0),
                "orca-pow2": (0.75, 1.0, 1.25),
                "orca-oracle": (1.2, 1.4, 1.6),
                "paged": (2.0, 2.5, 3.0, 3.25),
            },
        ),
        Panel(
            *("d", "opt-13b", "1 GPU", "alpaca", "paper-fig12d", 984, "paper-13b", HOUR, 300, 14),
            grid={
                FT: (0.1, 0.5, 1.0, 1.25, 1.5, 1.75, 2.0, 2.25, 2.5, 2.75, 3.0),
                "orca-max": (2.0, 3.0, 4.0, 5.0),
                "orca-pow2": (7.5, 10.0, 12.5, 15.0, 16.0, 17.0, 18.0),
                "orca-oracle": (15.0, 17.5, 20.0, 21.0, 22.5, 24.0),
                "paged": (20.0, 22.5, 25.0, 27.5, 29.0, 31.5),
            },
            added={"orca-pow2": (19.0, 20.0), "orca-oracle": (27.0, 29.0, 31.0), "paged": (36.0, 40.0, 42.0, 44.0)},
            quick={
                FT: (1.0, 1.5, 2.0, 2.5),
                "orca-max": (3.0, 4.0, 5.0),
                "orca-pow2": (15.0, 18.0, 20.0),
                "orca-oracle": (24.0, 29.0, 31.0),
                "paged": (31.5, 40.0, 44.0),
            },
        ),
        Panel(
            *("e", "opt-66b", "4 GPUs", "alpaca", "paper-fig12d", 605, "paper-66b", HOUR, 300, 8),
            grid={
                FT: (0.1, 0.5, 1.0, 1.25, 1.5, 1.75, 2.0, 2.5),
                "orca-max": (0.05, 0.1, 0.15, 0.25),
                "orca-pow2": (3.0, 5.0, 6.0, 7.0),
                "orca-oracle": (6.0, 8.0, 10.0, 11.0, 12.0),
                "paged": (11.0, 13.0, 15.0, 17.5, 18.5, 19.0, 20.0),
            },
            added={
                "orca-max": (0.5, 0.8, 1.0, 1.2, 1.4),
                "orca-pow2": (8.0,),
                "orca-oracle": (13.0,),
                "paged": (22.0, 24.0, 25.0, 26.0),
            },
            quick={
                "orca-max": (0.8, 1.2, 1.4),
                "orca-pow2": (6.0, 7.0, 8.0),
                "orca-oracle": (10.0, 12.0, 13.0),
                "paged": (20.0, 24.0, 26.0),
            },
        ),
        Panel(
            *("f", "opt-175b", "8 GPUs", "alpaca", "paper-fig12d", 3758, "paper-175b", 900, 300, 80),
            grid={
                FT: (0.1, 0.5, 1.0, 1.5, 2.0, 5.0),
                "orca-max": (1.25, 2.5, 4.0, 5.0, 7.0),
                "orca-pow2": (10.0, 15.0, 16.0, 17.0, 19.0),
                "orca-oracle": (15.0, 17.5, 19.0, 20.0, 22.0),
                "paged": (15.0, 17.5, 19.0, 20.0, 22.0),
            },
            added={"orca-pow2": (20.0,), "orca-oracle": (24.0, 26.0, 28.0), "paged": (26.0, 30.0, 34.0, 36.0, 38.0)},
            quick={
                "orca-max": (4.0, 5.0, 7.0),
                "orca-pow2": (16.0, 19.0, 20.0),
                "orca-oracle": (22.0, 26.0, 28.0),
                "paged": (30.0, 36.0, 38.0),
            },
        ),
    )
}
