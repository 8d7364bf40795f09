"""Results of `vllm bench serve --save-result --save-detailed`: a JSON object with lists, an entry a request.

start_times (s, of a clock that starts anywhere) are when the client sent, input_lens and output_lens are tokens.
Failed requests have 0 output tokens. What was measured beside them is read by `experiments.truth`.
"""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Final, NoReturn

from workloads.content import Content
from workloads.readers.reader import Options, Record
from workloads.rows import Row, Rows, TraceError
from workloads.stamps import NS_PER_S, nanoseconds, whole
from workloads.tables import Blocks, NotPlainError, Table

KEYS: Final = ("start_times", "input_lens", "output_lens")
MARKS: Final = (b'"duration"', b'"total_input_tokens"', b'"request_throughput"')
"""Keys that stand at the beginning of every result, a detailed one or not."""
EXPECTS = "JSON object with start_times (s), input_lens, output_lens (vllm bench serve --save-result --save-detailed)"
REBASE = True
TAKES: tuple[str, ...] = ()


def claims(content: Content) -> bool:
    """By the summary at the beginning: a file without the lists is told how to get them."""
    beginning = next(content.chunks(), b"")
    return beginning.lstrip()[:1] == b"{" and all(mark in beginning for mark in MARKS)


def read(content: Content, rows: Rows, options: Options) -> Blocks:
    """A row a request, in the file's order. Raises TraceError where a list is missing or of another length."""
    result = result_of(content)
    stamps, prompts, outputs = (list_of(content, result, key) for key in KEYS)
    lengths = {key: len(values) for key, values in zip(KEYS, (stamps, prompts, outputs), strict=True)}
    if len(set(lengths.values())) > 1:
        said = ", ".join(f"{count} {key}" for key, count in lengths.items())
        raise TraceError(f"{content.path}: {said}: the lists are of one run only if they are of one length")
    for number, (stamp, prompt, output) in enumerate(zip(stamps, prompts, outputs, strict=True), 1):
        with rows.row(number):
            when = nanoseconds("start_times", stamp, NS_PER_S)
            rows.add(Row(when, whole("input_lens", prompt), whole("output_lens", output)), number)
    return Blocks()


def read_plain(content: Content, rows: Rows, options: Options) -> Table:
    """There is no faster way: the lists come after each other."""
    raise NotPlainError


def result_of(content: Content) -> Record:
    """The object, decimals kept exact. Raises TraceError for anything else, and where results were appended."""
    text = content.text
    try:
        result, stop = _DECODER.raw_decode(text, len(text) - len(text.lstrip()))
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{content.path}: not JSON ({error}); save it again with --save-result") from None
    if not isinstance(result, dict):
        raise TraceError(f"{content.path}: not a JSON object; it needs {EXPECTS}")
    if text[stop:].strip():
        raise TraceError(
            f"{content.path}:{text.count(chr(10), 0, stop) + 2}: a second result (--append-result); keep one a file"
        )
    return result


def list_of(content: Content, result: Record, key: str) -> list[object]:
    """One of the lists. Raises TraceError where it is not there."""
    values = result.get(key)
    if not isinstance(values, list):
        raise TraceError(f"{content.path}: no list {key!r}: run vllm bench serve with --save-result --save-detailed")
    return values


def _not_finite(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number")


_DECODER = json.JSONDecoder(parse_float=Decimal, parse_constant=_not_finite)
