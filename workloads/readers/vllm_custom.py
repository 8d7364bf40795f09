"""vLLM's custom JSON lines: prompt (a text) and output_tokens. No arrivals: every request arrives at 0.

Prompts are counted as they stand; vLLM puts its chat template around them unless told --skip-chat-template.
"""

from __future__ import annotations

from workloads.content import Content
from workloads.readers.reader import Options, first_record, json_record
from workloads.rows import Row, Rows
from workloads.stamps import RowError, whole
from workloads.tables import Blocks, Table
from workloads.tokens import token_counter

EXPECTS = "JSON lines with prompt (a text), output_tokens (no arrivals; needs --tokenizer)"
REBASE = True
TAKES: tuple[str, ...] = ("tokenizer",)


def claims(content: Content) -> bool:
    """By the first row's keys."""
    return isinstance(first_record(content).get("prompt"), str)


def read(content: Content, rows: Rows, options: Options) -> Blocks:
    """Raises TraceError without a tokenizer."""
    count = token_counter(content, options.tokenizer)
    rows.notes.append(f"{content.path}: prompts without arrivals: every request arrives at 0; no chat template counted")
    for line, text in content.lines():
        with rows.row(line):
            record = json_record(text)
            prompt = record.get("prompt")
            if not isinstance(prompt, str):
                raise RowError("no prompt text", f"prompt is {str(prompt)[:40]!r}")
            if "output_tokens" not in record:
                raise RowError("missing key", "output_tokens")
            rows.add(Row(0, count(prompt), whole("output_tokens", record["output_tokens"])), line)
    return Blocks()


def read_plain(content: Content, rows: Rows, options: Options) -> Table | None:
    """Texts are counted one by one."""
    return None
