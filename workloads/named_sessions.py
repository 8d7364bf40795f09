"""Session workloads by name: chat, few-shot, and those of Fig 16 and 17 of the PagedAttention paper."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final, NamedTuple

from workloads.columns import Trace
from workloads.sessions import Draw, Int64s, Pairs, Shape, chat, chatbot, few_shot, refuse_unread, session_stamps

CHAT_KEYS: Final = ("turns", "think_time", "turn_lengths", "prefix_tokens", "num_prefixes", "max_session_tokens")
SHOT_KEYS: Final = ("turn_lengths", "prefix_tokens", "num_prefixes")


class SessionRecipe(NamedTuple):
    """One workload: who draws it, what may be said of it, its rate (None: the caller's) and seconds of arrivals."""

    make: Callable[[Int64s, int, Draw], Trace]
    reads: tuple[str, ...]
    lengths: str
    """Which real length list may stand in place of the stand-in."""
    rate_per_s: float | None = None
    duration_s: int | None = None
    """None: as many requests as asked for."""
    grid: str = ""
    """What is known of the rates."""


def _shots(examples_tokens: int) -> Callable[[Int64s, int, Draw], Trace]:
    return lambda stamps, _, draw: few_shot(stamps, draw, examples_tokens)


SESSION_RECIPES: Final[dict[str, SessionRecipe]] = {
    "chat": SessionRecipe(chat, CHAT_KEYS, "sharegpt", 0.5),
    "few-shot": SessionRecipe(_shots(341), SHOT_KEYS, "wmt16", 4.0),
    "paper-fig16-1shot": SessionRecipe(
        _shots(80), ("turn_lengths",), "wmt16", None, 1200, "the artifact's grid for LLaMA-13B is 1 to 52 requests/s"
    ),
    "paper-fig16-5shot": SessionRecipe(
        _shots(341), ("turn_lengths",), "wmt16", None, 1200, "the artifact's grid for LLaMA-13B is 1 to 48 requests/s"
    ),
    "paper-fig17": SessionRecipe(
        lambda stamps, _, draw: chatbot(stamps, draw),
        ("turns", "turn_lengths"),
        "sharegpt",
        None,
        3600,
        "the paper's own rates for OPT-13B are not recorded here",
    ),
}
SESSION_TRACES: Final = tuple(SESSION_RECIPES)
DEFAULT_REQUESTS: Final = 1000


def session_trace(
    name: str,
    seed: int = 0,
    shape: Shape | None = None,
    lengths: dict[str, Pairs] | None = None,
    *,
    rate_per_s: float | None = None,
    num_requests: int | None = None,
) -> Trace:
    """A workload of SESSION_TRACES; the same arguments give the same trace everywhere.

    `rate_per_s`: conversations of chat, requests of the others. `num_requests` (1,000): turns count; the paper's
    workloads last as long as they do, and are cut to it. `lengths` maps 'sharegpt' or 'wmt16' to real (prompt, output)
    tokens. Raises ValueError for an unknown name, a missing rate, and what the workload does not read or cannot be.
    """
    if name not in SESSION_RECIPES:
        raise ValueError(f"session_trace: need one of {', '.join(SESSION_TRACES)}, got {name!r}")
    recipe, shape = SESSION_RECIPES[name], shape or Shape()
    refuse_unread(name, shape, recipe.reads)
    rate = recipe.rate_per_s if rate_per_s is None else rate_per_s
    if rate is None:
        raise ValueError(f"session_trace: {name} needs a rate_per_s; {recipe.grid}")
    if num_requests is not None and num_requests < 1:
        raise ValueError(f"session_trace: need at least 1 request, got {num_requests}")
    count = num_requests or DEFAULT_REQUESTS
    stamps, said = session_stamps(rate, count, recipe.duration_s, seed)
    draw = Draw(shape, (lengths or {}).get(recipe.lengths), seed)
    trace = recipe.make(stamps, count, draw)
    source = {"format": "sessions", "arrival": said, **trace.source, "seed": str(seed)}
    trace = replace(trace, name=name, source=source)
    return trace if num_requests is None or num_requests >= len(trace) else trace.slice(0, num_requests)
