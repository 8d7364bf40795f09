"""Claims that are measured on tensors: what they need, and what is said where it is missing."""

from __future__ import annotations

import importlib.util

from experiments.paper.claims import Claim, Result, not_here


def without_torch() -> str:
    """What is missing for claims on CPU tensors; empty where nothing is."""
    return "" if importlib.util.find_spec("torch") else "torch is not installed (pip install -e '.[engine]')"


def all_not_here(named: dict[str, str], prefix: str, source: str, lacking: str) -> list[Result]:
    """One result a name (name -> what would be measured), none of them measured."""
    return [
        not_here(Claim(f"{prefix}/{name}", metric, None, source=f"{source} {name}".rstrip()), lacking)
        for name, metric in named.items()
    ]
