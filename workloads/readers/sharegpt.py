"""ShareGPT: a JSON array of talks, conversations[].from and .value, of which a recipe takes one request each.

"The first two turns" is not a prompt and its answer in a third of ShareGPT V3, where the gpt turn comes first, so
there is no default: the recipe is named, and goes into the trace's provenance with the tokenizer. A talk that the
recipe does not take is counted with its reason. Row numbers are places in the array, from 1. No arrivals.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from workloads.content import Content
from workloads.readers.json_array import elements
from workloads.readers.lengths import Lengths
from workloads.readers.reader import Options
from workloads.rows import LeftOutError, Row, Rows, TraceError
from workloads.stamps import RowError
from workloads.tables import Blocks, NotPlainError, Table
from workloads.tokens import token_counter

EXPECTS = "JSON array of {id, conversations: [{from, value}, ...]} (needs --recipe and --tokenizer)"
REBASE = True
TAKES: tuple[str, ...] = ("recipe", "tokenizer")
HUMAN: Final = ("human", "user")
ASSISTANT: Final = ("gpt", "chatgpt", "bing", "bard", "assistant")

Turn = tuple[str, str]
Count = Callable[[str], int]
Recipe = Callable[[list[Turn], Count], tuple[int, int]]


def claims(content: Content) -> bool:
    """By an array whose first kilobytes have the key."""
    head = next(content.chunks(), b"").lstrip()
    return head[:1] == b"[" and b'"conversations"' in head


def read(content: Content, rows: Rows, options: Options) -> Blocks:
    """Raises TraceError for what is no JSON array, or without a recipe or a tokenizer."""
    take, count = _recipe(content, options), token_counter(content, options.tokenizer)
    rows.notes.append(_said(content))
    for number, talk in enumerate(_talks(content), start=1):
        with rows.row(number):
            prompt, output = take(_turns(talk), count)
            rows.add(Row(0, prompt, output), number)
    return Blocks()


def read_plain(content: Content, rows: Rows, options: Options) -> Table:
    """Talk by talk, of which only the lengths are kept."""
    take, count = _recipe(content, options), token_counter(content, options.tokenizer)
    rows.notes.append(_said(content))
    found = Lengths()
    for number, talk in enumerate(_talks(content), start=1):
        try:
            found.add(number, *take(_turns(talk), count))
        except LeftOutError as bad:
            found.leave_out(f"{content.path}:{number}: {bad}", bad.reason)
        except RowError:
            raise NotPlainError from None
    return found.table()


def _recipe(content: Content, options: Options) -> Recipe:
    take = RECIPES.get(options.recipe or "")
    if take is None:
        said = "no --recipe was said" if options.recipe is None else f"there is no recipe {options.recipe!r}"
        raise TraceError(f"{content.path}: {said}; which turns are a request? one of {', '.join(RECIPES)}")
    return take


def _said(content: Content) -> str:
    return f"{content.path}: talks without arrivals: every request arrives at 0"


def _talks(content: Content) -> Iterator[object]:
    try:
        yield from elements(content.chunks())
    except (ValueError, RecursionError):
        raise _refusal(content) from None


def _refusal(content: Content) -> TraceError:
    """Where it is no JSON array: the whole text says."""
    try:
        json.loads(content.text)
    except (ValueError, RecursionError) as error:
        return TraceError(f"{content.path}: not JSON ({error}); fetch the file again")
    return TraceError(f"{content.path}: no JSON array of talks; expected {EXPECTS}")


def _turns(talk: object) -> list[Turn]:
    turns = talk.get("conversations") if isinstance(talk, dict) else None
    if not isinstance(turns, list):
        raise RowError("no conversations", f"{str(talk)[:40]!r}")
    found = []
    for turn in turns:
        role, text = (turn.get("from"), turn.get("value")) if isinstance(turn, dict) else (None, None)
        if not isinstance(role, str) or not isinstance(text, str):
            raise RowError("not a turn", f"{str(turn)[:40]!r}")
        found.append((role, text))
    return found


def first_human_pair(turns: list[Turn], count: Count) -> tuple[int, int]:
    """System turns aside, the talk must begin with a human turn and its answer: those two. No limit on lengths."""
    spoken = [turn for turn in turns if turn[0] != "system"]
    if len(spoken) < 2:
        raise LeftOutError("fewer than two turns", f"{len(spoken)} turns that are not the system's")
    (asks, prompt), (answers, output) = spoken[:2]
    if asks not in HUMAN or answers not in ASSISTANT:
        raise LeftOutError("not a human turn and its answer", f"the talk begins with {asks}, {answers}")
    return _counted(prompt, output, count)


def vllm_first_two(turns: list[Turn], count: Count) -> tuple[int, int]:
    """As vLLM's loader: turns 0 and 1 whoever speaks, 4 to 1,024 tokens in, at least 4 out, at most 2,048 in all."""
    if len(turns) < 2:
        raise LeftOutError("fewer than two turns", f"{len(turns)} turns")
    prompt, output = _counted(turns[0][1], turns[1][1], count)
    if not (4 <= prompt <= 1024 and output >= 4 and prompt + output <= 2048):
        raise LeftOutError("outside vLLM's limits", f"{prompt} in, {output} out")
    return prompt, output


def _counted(prompt: str, output: str, count: Count) -> tuple[int, int]:
    lengths = count(prompt), count(output)
    if 0 in lengths:
        raise LeftOutError("an empty turn", f"{lengths[0]} in, {lengths[1]} out")
    return lengths


RECIPES: Final[Mapping[str, Recipe]] = {
    "first-human-pair": first_human_pair,
    "vllm-first-two": vllm_first_two,
}
