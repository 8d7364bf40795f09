"""vLLM's custom JSON lines: prompt (a text) and output_tokens. No arrivals: every request arrives at 0.

Prompts are counted as they stand; vLLM puts its chat template around them unless told --skip-chat-template.
"""

from __future__ import annotations

from workloads.content import Content
from workloads.readers.lengths import Lengths
from workloads.readers.reader import Options, first_record, json_record
from workloads.rows import Row, Rows
from workloads.stamps import RowError, whole
from workloads.tables import Blocks, NotPlainError, Table
from workloads.tokens import token_counter
from workloads.validation import MAX_TOKENS

EXPECTS = "JSON lines with prompt (a text), output_tokens (no arrivals; needs --tokenizer)"
REBASE = True
TAKES: tuple[str, ...] = ("tokenizer",)


def claims(content: Content) -> bool:
    """By the first row's keys."""
    return isinstance(first_record(content).get("prompt"), str)


def read(content: Content, rows: Rows, options: Options) -> Blocks:
    """Raises TraceError without a tokenizer."""
    count = token_counter(content, options.tokenizer)
    rows.notes.append(_said(content))
    for line, text in content.lines():
        with rows.row(line):
            prompt, output = _values(text)
            rows.add(Row(0, count(prompt), whole("output_tokens", output)), line)
    return Blocks()


def read_plain(content: Content, rows: Rows, options: Options) -> Table:
    """Line by line, of which only the lengths are kept."""
    count = token_counter(content, options.tokenizer)
    rows.notes.append(_said(content))
    found = Lengths()
    for line, text in content.lines():
        try:
            prompt, output = _values(text)
        except RowError:
            raise NotPlainError from None
        if type(output) is not int or not 0 <= output <= MAX_TOKENS:
            raise NotPlainError
        found.add(line, count(prompt), output)
    return found.table()


def _values(text: str) -> tuple[str, object]:
    """The prompt and the output tokens of one line. Raises RowError."""
    record = json_record(text)
    prompt = record.get("prompt")
    if not isinstance(prompt, str):
        raise RowError("no prompt text", f"prompt is {str(prompt)[:40]!r}")
    if "output_tokens" not in record:
        raise RowError("missing key", "output_tokens")
    return prompt, record["output_tokens"]


def _said(content: Content) -> str:
    return f"{content.path}: prompts without arrivals: every request arrives at 0; no chat template counted"
