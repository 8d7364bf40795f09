"""What is said of FP8 is in the stored rows, and these were measured with the tiles of today's rule."""

import csv
import re
from pathlib import Path

import pytest

pytest.importorskip("triton")

from engine.attention.kernels.tuning import DecodeShape, decode_config

ROOT = Path(__file__).parents[3]
NUM_SMS = 132


@pytest.fixture(scope="module")
def rows():
    """Of the case fp8: (shape, stored in a byte) to the row."""
    with (ROOT / "results" / "reference" / "kernels" / "summary.csv").open(newline="", encoding="utf-8") as file:
        found = [row for row in csv.DictReader(file) if row["case"] == "fp8"]
    made = {(row["shape"], row["dtype"].startswith("float8")): row for row in found}
    assert len(made) == len(found) == 26
    return made


def microseconds(row):
    return 1e6 * float(row["median_s"])


def test_every_row_is_right(rows):
    for row in rows.values():
        assert (row["status"], float(row["relative_error"]) < 5e-3) == ("ok", True), row


def test_decodes_were_measured_by_the_rule(rows):
    found = [row for (_, fp8), row in rows.items() if fp8 and row["kernel"] == "decode"]
    assert len(found) == 7
    for row in found:
        heads, kv_heads = int(row["num_heads"]), int(row["num_kv_heads"])
        sizes = int(row["head_size"]), 1, int(row["context_tokens"]), int(row["block_size"]), NUM_SMS
        rule = decode_config(DecodeShape(int(row["batch"]), kv_heads, heads // kv_heads, *sizes))
        made = (
            f"block_n={rule.block_n} num_warps={rule.num_warps} num_stages={rule.num_stages} programs={rule.programs} "
        )
        assert row["config"].startswith(made)


def test_the_readmes_numbers_are_the_rows(rows):
    text = " ".join((ROOT / "README.md").read_text("utf-8").split())
    paragraph = text[text.index("`--kv-cache-dtype fp8` (of") :]
    paragraph = paragraph[: paragraph.index("Backends `reference`")]
    said = [float(number.replace(",", "")) for number in re.findall(r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?![\w])", paragraph)]
    batch, lone, chunks, mixed = "gqa 64 x 4k", "gqa 1 x 16k", "gqa 8 x 512 on 8k", "63 decodes at 4k + 512 on 8k"
    times = {name: (microseconds(rows[name, False]), microseconds(rows[name, True]))
             for name in (batch, lone, chunks, mixed)}  # fmt: skip
    for name, digits in ((batch, 1), (lone, 1), (chunks, 0)):
        for number in times[name]:
            assert round(number, digits) in said, name
    assert round(times[batch][0] / times[batch][1], 2) in said
    assert round(times[chunks][1] / times[chunks][0], 1) in said
    assert round(times[mixed][1] / times[mixed][0], 2) in said
