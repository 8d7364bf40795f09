"""Options of the workloads that have conversations or shared prefixes."""

# No `from __future__ import annotations`: whoever inherits the options would look their names up at home.
from dataclasses import dataclass
from typing import Annotated, Any

from cyclopts import Group, Parameter

SESSIONS = Group("Conversations and shared prefixes", sort_key=1.5)
Text = str | None


def _option(text: str) -> Any:
    return Parameter(group=SESSIONS, help=text, show_default=False)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class SessionFlags:
    """What the requests of chat, few-shot, paper-fig16-1shot, paper-fig16-5shot and paper-fig17 are like."""

    turns: Annotated[
        Text,
        _option(
            "Turns of a conversation: fixed:N, geometric:MEAN or uniform:LOW-HIGH [chat: geometric:4; fig17: "
            "geometric:10; others have none]."
        ),
    ] = None
    think_time: Annotated[
        Text,
        _option(
            "Seconds from an answer's end to the next turn: constant:S, exponential:MEAN or lognormal:MU/SIGMA "
            "[chat: exponential:10]."
        ),
    ] = None
    turn_lengths: Annotated[
        Text,
        _option(
            "Tokens of a message and its answer, as `trace synth --lengths` takes them, or wmt16 "
            "[sharegpt; few-shot, fig16: wmt16]."
        ),
    ] = None
    prefix_tokens: Annotated[
        Text, _option("Tokens of the system prompt or the examples; 0: none [chat: 256; few-shot: 341].")
    ] = None
    num_prefixes: Annotated[Text, _option("How many different ones there are, drawn at random [1].")] = None
    max_session_tokens: Annotated[
        Text, _option("A conversation ends before a turn whose prompt and answer are longer [no limit].")
    ] = None
