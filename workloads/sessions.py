"""Conversations, shared system prompts and few-shot prefixes: requests whose prompts have something in common.

In `chat` every turn's prompt is all that was said before, and the user thinks before the next one: turns come so long
after the answer before (closed loop), whatever serves them. In `few-shot` requests are independent and share examples.
In `chatbot`, as in Fig 17 of the PagedAttention paper (SOSP'23), a prompt is the end of a conversation, cut to the
model's context, and nothing is kept between rounds, so that requests share nothing. Content is given by runs of texts
(`Trace.block_scope`), exact at every block size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from workloads import arrivals, lengths
from workloads.columns import Trace
from workloads.stamps import NS_PER_MS, NS_PER_S
from workloads.synthetic import LENGTHS, draw_lengths, repeated

Int64s = NDArray[np.int64]
Pairs = tuple[Int64s, Int64s]

TURNS: Final = ("fixed:N", "geometric:MEAN", "uniform:LOW-HIGH")
THINK_TIMES: Final = ("constant:S", "exponential:MEAN_S", "lognormal:MU/SIGMA")
WMT16: Final = "wmt16"
WMT16_INPUT: Final = (3.2, 0.55)
"""mu and sigma of ln tokens of an English sentence of the news test set: a stand-in, 28 tokens on average."""
WMT16_RATIO: Final = (0.25, 0.2)
"""The same of the German answer's tokens over the sentence's: a stand-in, 1.3 on average."""
CHATBOT_PROMPT: Final = 1024
CHATBOT_OUTPUT: Final = 1016
"""The paper allows 1,024 tokens, its artifact 1,016."""
MOST_TURNS: Final = 10**9
"""More than any trace has rows."""
LONGEST_S: Final = 1e9
"""Of a pause: 32 years; more would not fit in nanoseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What the requests of a session workload are like; what is None is the workload's own."""

    turns: str | None = None
    """Turns of a conversation, one of TURNS."""
    think_time: str | None = None
    """Seconds between an answer's end and the next turn, one of THINK_TIMES (ln seconds for lognormal)."""
    turn_lengths: str | None = None
    """Tokens of a message and its answer: a recipe of `workloads.synthetic.LENGTHS`, or 'wmt16'."""
    prefix_tokens: int | None = None
    """Tokens of the system prompt, or of the examples; 0: none."""
    num_prefixes: int | None = None
    """How many different ones; each conversation or question has one at random."""
    max_session_tokens: int | None = None
    """A conversation ends before the turn whose prompt and answer would be longer."""


class Draw:
    """What a workload is drawn from: separate random streams, so that changing one thing leaves the others."""

    def __init__(self, shape: Shape, lengths: Pairs | None, seed: int) -> None:
        self.shape, self._given, self.seed = shape, lengths, seed

    def pairs(self, num_requests: int, default: str) -> tuple[Pairs, str]:
        """(message, answer) tokens and the recipe; given pairs are shuffled."""
        recipe = self.shape.turn_lengths or default
        try:
            return self._pairs(num_requests, recipe)
        except ValueError as error:
            known = f"{WMT16}, {', '.join(LENGTHS)}"
            raise ValueError(
                f"turn_lengths: {str(error).removeprefix('lengths: ').partition('; need')[0]}; need one of {known}"
            ) from None

    def _pairs(self, num_requests: int, recipe: str) -> tuple[Pairs, str]:
        if self._given is not None:
            prompt, output = repeated(self._given, max(num_requests, len(self._given[0])))
            order = np.random.default_rng([self.seed, 7]).permutation(len(prompt))[:num_requests]
            return (prompt[order], output[order]), f"{len(self._given[0])} given pairs, shuffled"
        if recipe != WMT16:
            return draw_lengths(recipe, num_requests, self.seed), recipe
        rng = np.random.default_rng([self.seed, 1])
        sentence = lengths.lognormal(num_requests, *WMT16_INPUT, rng)
        ratio = np.exp(rng.normal(*WMT16_RATIO, num_requests))
        return (sentence, np.maximum(1, np.rint(sentence * ratio)).astype(np.int64)), f"{WMT16} stand-in"

    def turns(self, num_sessions: int, default: str) -> tuple[Int64s, str]:
        """Turns of each conversation, from 1 to MOST_TURNS."""
        recipe = self.shape.turns or default
        made, said = self._turns(num_sessions, recipe)
        if made.min() < 1:
            raise ValueError(f"turns: {recipe!r}: a conversation has at least 1 turn; need one of {', '.join(TURNS)}")
        return np.minimum(made, MOST_TURNS), said

    def _turns(self, num_sessions: int, recipe: str) -> tuple[Int64s, str]:
        rng = np.random.default_rng([self.seed, 2])
        kind, _, text = recipe.partition(":")
        try:
            if kind == "fixed":
                return np.full(num_sessions, min(int(text), MOST_TURNS)), recipe
            if kind == "uniform":
                low, high = text.split("-")
                if not 1 <= int(low) <= int(high):
                    raise ValueError("expected LOW-HIGH with 1 <= LOW <= HIGH")
                return lengths.uniform(num_sessions, min(int(low), MOST_TURNS), min(int(high), MOST_TURNS), rng), recipe
            if kind == "geometric" and 1 <= float(text) <= MOST_TURNS:
                return rng.geometric(1 / float(text), num_sessions), recipe
        except ValueError as error:
            raise ValueError(f"turns: {recipe!r}: {error}; need one of {', '.join(TURNS)}") from None
        raise ValueError(f"turns: need one of {', '.join(TURNS)}, a mean of at least 1, got {recipe!r}")

    def think_ns(self, num_turns: int, default: str) -> tuple[Int64s, str]:
        """Nanoseconds, whole milliseconds as other formats have them."""
        recipe = self.shape.think_time or default
        rng = np.random.default_rng([self.seed, 3])
        kind, _, text = recipe.partition(":")
        try:
            given = [float(word) for word in text.split("/")]
        except ValueError:
            given = []
        made: dict[tuple[str, int], Callable[[], NDArray[np.float64]]] = {
            ("constant", 1): lambda: np.full(num_turns, given[0]),
            ("exponential", 1): lambda: rng.exponential(given[0], num_turns),
            ("lognormal", 2): lambda: rng.lognormal(given[0], given[1], num_turns),
        }
        make = made.get((kind, len(given)))
        if make is None or not all(0 <= one < float("inf") for one in given[kind == "lognormal" :]):
            raise ValueError(f"think_time: need one of {', '.join(THINK_TIMES)}, of at least 0 s, got {recipe!r}")
        seconds = make()
        if not (seconds <= LONGEST_S).all():
            raise ValueError(f"think_time: {recipe!r} gives {seconds.max():g} s; need at most {LONGEST_S:g} s")
        return np.rint(seconds * (NS_PER_S / NS_PER_MS)).astype(np.int64) * NS_PER_MS, recipe

    def prefixes(self, num_sessions: int, tokens: int, count: int = 1) -> tuple[Int64s, int, int]:
        """Which prefix each has, its tokens, and how many there are. ValueError for sizes that mean nothing."""
        shape = self.shape
        tokens = tokens if shape.prefix_tokens is None else shape.prefix_tokens
        count = count if shape.num_prefixes is None else shape.num_prefixes
        if tokens < 0 or count < 1:
            raise ValueError(f"prefix_tokens and num_prefixes: need at least 0 and 1, got {tokens} and {count}")
        return np.random.default_rng([self.seed, 4]).integers(0, count, num_sessions), tokens, count


def chat(stamps: Int64s, num_requests: int, draw: Draw) -> Trace:
    """Conversations that begin at `stamps`, as many as have `num_requests` turns; the last one may be cut short.

    Rows are in order of conversations. A turn's prompt is the system prompt, every message and answer before, and its
    own message; its text goes on through the answer, which the next turn repeats.
    """
    turns, said_turns = draw.turns(len(stamps), "geometric:4")
    session = _sessions(turns, num_requests)
    (message, answer), said_lengths = draw.pairs(num_requests, "sharegpt")
    think_ns, said_think = draw.think_ns(num_requests, "exponential:10")
    prefix, prefix_tokens, num_prefixes = draw.prefixes(len(stamps), 256)
    first = np.concatenate(([True], session[1:] != session[:-1]))
    whole = np.cumsum(message + answer)
    before = (whole - message - answer)[first][np.cumsum(first) - 1]
    prompt = prefix_tokens + whole - answer - before
    last, said_last = _longest(draw.shape, session, prompt + answer)
    rows = np.flatnonzero(last)
    session, first, prompt, answer = session[rows], first[rows], prompt[rows], answer[rows]
    source = {"turns": said_turns, "think_time": said_think, "lengths": said_lengths} | said_last
    return Trace.build(
        stamps[session],
        prompt,
        answer,
        name="chat",
        session=session,
        parent=np.where(first, -1, np.arange(len(rows)) - 1),
        delay_ns=np.where(first, -1, think_ns[rows]),
        source=source | {"prefix": f"{num_prefixes} of {prefix_tokens} tokens"},
        **_runs(prefix[session], prefix_tokens, num_prefixes + session, prompt),
    )


def few_shot(stamps: Int64s, draw: Draw, examples_tokens: int = 341) -> Trace:
    """Questions behind shared examples, each with its own text."""
    (question, answer), said = draw.pairs(len(stamps), WMT16)
    prefix, prefix_tokens, num_prefixes = draw.prefixes(len(stamps), examples_tokens)
    return Trace.build(
        stamps,
        prefix_tokens + question,
        answer,
        name="few-shot",
        source={"lengths": said, "prefix": f"{num_prefixes} of {prefix_tokens} tokens"},
        **_runs(prefix, prefix_tokens, num_prefixes + np.arange(len(stamps)), prefix_tokens + question),
    )


def chatbot(stamps: Int64s, draw: Draw) -> Trace:
    """Rounds of conversations in random order: the last 1,024 tokens of all that was said, with the new message."""
    turns, said_turns = draw.turns(len(stamps), "geometric:10")
    session = _sessions(turns, len(stamps))
    (message, answer), said = draw.pairs(len(stamps), "sharegpt")
    first = np.searchsorted(session, session)
    whole = np.cumsum(message + answer)
    history = whole - answer - (whole - message - answer)[first]
    order = np.random.default_rng([draw.seed, 5]).permutation(len(stamps))
    return Trace.build(
        stamps,
        np.minimum(history, CHATBOT_PROMPT)[order],
        np.minimum(answer, CHATBOT_OUTPUT)[order],
        name="chatbot",
        source={"turns": said_turns, "lengths": said, "prompt": f"last {CHATBOT_PROMPT} tokens, nothing kept"},
    )


def refuse_unread(name: str, shape: Shape, reads: tuple[str, ...]) -> None:
    """ValueError for what a workload has no use for."""
    for one in fields(shape):
        value = getattr(shape, one.name)
        if value is not None and one.name not in reads:
            raise ValueError(f"{one.name}={value}: {name} has none; it reads {', '.join(reads)}")


def session_stamps(rate_per_s: float, count: int, duration_s: int | None, seed: int) -> tuple[Int64s, str]:
    """Poisson: so many, or as many as arrive in so many seconds, counted per 10 ms as the paper's artifact does."""
    if duration_s is None:
        return arrivals.poisson(rate_per_s, count, seed), f"poisson at {rate_per_s:g}/s"
    return arrivals.poisson_counts(rate_per_s, duration_s, seed), f"counts per 10 ms at {rate_per_s:g}/s"


def _sessions(turns: Int64s, num_rows: int) -> Int64s:
    """The conversation of each of the first rows; no more of them are written out than there are rows."""
    turns = np.minimum(turns, num_rows)
    last = int(np.searchsorted(np.cumsum(turns), num_rows)) + 1
    return np.repeat(np.arange(len(turns[:last])), turns[:last])[:num_rows]


def _longest(shape: Shape, session: Int64s, total: Int64s) -> tuple[NDArray[np.bool_], dict[str, str]]:
    """Turns before the first that would be too long. ValueError where a conversation would have none."""
    most = shape.max_session_tokens
    if most is None:
        return np.ones(len(total), np.bool_), {}
    kept = total <= most  # totals rise within a conversation
    lost = np.setdiff1d(session, session[kept])
    if len(lost):
        first = int(total[session == lost[0]].min())
        raise ValueError(f"max_session_tokens={most}: a conversation's first turn has {first} tokens; allow more")
    return kept, {"max_session_tokens": str(most)}


def _runs(prefix: Int64s, prefix_tokens: int, own: Int64s, prompt: Int64s) -> dict[str, Any]:
    """Columns of content: the prefix, then the row's own text."""
    parts = [prefix, np.full(len(own), prefix_tokens), own, prompt - prefix_tokens]
    ids = np.stack(parts if prefix_tokens else [own, prompt], axis=1)
    offsets = np.arange(len(own) + 1) * ids.shape[1]
    return {
        "block_ids": ids.ravel(),
        "block_offsets": offsets,
        "block_size": 1,
        "block_scope": "runs",
        "block_partial": "floor",
    }
