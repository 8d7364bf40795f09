"""The chapter's claims in order: the arithmetic elsewhere, its own sums and its quotation of Fig 2 here."""

from __future__ import annotations

import re
from typing import Final

from experiments.paper import chapter_attention, chapter_blocks, chapter_pool, chapter_sizes, chapter_table, fig2
from experiments.paper.chapter_sizes import claim
from experiments.paper.claims import Claim, Result, exact, not_yet, over_seeds
from experiments.paper.experiment import Experiment
from experiments.paper.runs import Lab, RunKey

BACKEND_LINES: Final = {
    "flash_attn": 817,
    "mla/common": 974,
    "flashinfer": 638,
    "pallas": 221,
    "triton_attn": 198,
    "mla/flashmla": 149,
    "mla/triton_mla": 118,
}
"""Lines of the seven files in the chapter's table."""
V1_LINES: Final = 21_050
CORE_LINES: Final = (385, 281)
ATLAS_YEAR: Final = 1961
PAPER_YEAR: Final = 2023
LATER: Final = {
    "S23": "blocks of a rank are at least the global number",
}


def judge(lab: Lab) -> list[Result]:
    """Everything that can be measured, then what cannot be yet; in the order of the numbers."""
    results = [
        *chapter_sizes.judge(),
        *chapter_blocks.judge(lab.num_seeds),
        *chapter_pool.judge(),
        *chapter_attention.judge(),
        *chapter_table.judge(),
        *_lines(),
        *_quoted(lab),
        exact(claim("S26/years", "from Atlas to the paper", 62, "years", "year"), PAPER_YEAR - ATLAS_YEAR),
        *(not_yet(later) for later in later_claims()),
    ]
    return sorted(results, key=lambda result: _number(result.claim))


def later_claims() -> list[Claim]:
    """Those whose code does not exist."""
    return [
        Claim(f"chapter/{name}", metric, None, source=f"chapter {name}", note="no code measures this yet")
        for name, metric in LATER.items()
    ]


def _number(made: Claim) -> tuple[int, str]:
    found = re.match(r"chapter/S(\d+)(\w*)", made.id)
    assert found, f"{made.id} has no number"
    return int(found[1]), found[2]


def _lines() -> list[Result]:
    """S14: the chapter's counts of source lines, added up as it adds them."""
    total = sum(BACKEND_LINES.values())
    latent = sum(lines for name, lines in BACKEND_LINES.items() if name.startswith("mla/"))
    excess = 100 * (latent - BACKEND_LINES["flash_attn"]) / BACKEND_LINES["flash_attn"]
    return [
        exact(claim("S14/total", "lines of the attention back ends", 3115, "lines", "file-count"), total),
        exact(claim("S14/mla", "lines of the MLA ones", 1241, "lines", "file-count"), latent),
        exact(claim("S14/mla_share", "their share", 40, "%", "rounded", tolerance=0.5), 100 * latent / total),
        exact(claim("S14/v1_share", "share of all of v1", 14.8, "%", tolerance=0.05), 100 * total / V1_LINES),
        exact(claim("S14/core", "lines of KV cache manager and block pool", 666, "lines"), sum(CORE_LINES)),
        exact(
            claim("S14/mla_excess", "MLA beyond flash_attn", 51, "%", "rounded", tolerance=1.0),
            excess,
            "the chapter cuts the digits off, 51.9 rounds to 52",
        ),
    ]


def _quoted(lab: Lab) -> list[Result]:
    """S16: the ends of the quoted range are Fig 2's live shares of Max and Oracle."""
    results = []
    for end, system in (("lowest", "orca-max"), ("highest", "orca-oracle")):
        made = claim(
            *(f"S16/{end}", f"{end} live share of the Orcas ({system})", fig2.PRINTED[system]["live"], "%"),
            *(*lab.deviations("sharegpt"), "head-of-file", "per-iteration", "step-model"),
            tolerance=fig2.tolerance(lab, system, "live"),
        )
        results.append(over_seeds(made, *fig2.measured(lab, system, "live")))
    return results


def runs(lab: Lab) -> list[RunKey]:
    """Two systems of Fig 2."""
    return [key for system in ("orca-max", "orca-oracle") for key in lab.keys(fig2.WORKLOAD, system)]


CHAPTER: Final = Experiment("chapter", "The chapter's arithmetic", judge, runs)
