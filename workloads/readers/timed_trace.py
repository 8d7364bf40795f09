"""vLLM's timed-trace JSON lines: timestamp (s), input_length, output_length, hash_ids of 16 tokens each.

The keys are Mooncake's and the units are not, so no file is taken for one of these: the format must be named.
vLLM expands every id to the same tokens wherever it stands, and only as far as ids go; here each row must have
ids for its whole input, or none.
"""

from __future__ import annotations

from typing import Final

from workloads.content import Content
from workloads.readers import mooncake
from workloads.readers.reader import Options
from workloads.rows import Rows
from workloads.stamps import NS_PER_S
from workloads.tables import Blocks, Table

EXPECTS = "JSON lines with Mooncake's keys, timestamp in s, hash_ids of 16 tokens (only by --trace-format timed-trace)"
REBASE = True
TAKES: tuple[str, ...] = ("block_size",)
BLOCK_SIZE: Final = 16

claims = mooncake.claims


def read(content: Content, rows: Rows, options: Options) -> Blocks:
    """As Mooncake's rows, in seconds."""
    return mooncake.read_rows(content, rows, options.block_size or BLOCK_SIZE, NS_PER_S)


def read_plain(content: Content, rows: Rows, options: Options) -> Table:
    """By pyarrow, without sessions."""
    return mooncake.read_table(content, rows, options.block_size or BLOCK_SIZE, NS_PER_S)
