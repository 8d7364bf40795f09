"""What ARTIFACT.md says can be done: its commands parse, its names exist, and every name that is measured is in it."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from experiments.cli import app
from experiments.paper.verb import EXPERIMENTS, NAMES

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "ARTIFACT.md").read_text("utf-8")
SHELL = [
    line.partition("#")[0].strip()
    for body in re.findall(r"^```sh\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    for line in body.splitlines()
]
COMMANDS = sorted({*filter(None, SHELL), *re.findall(r"`((?:pagelab|make|\.venv/bin/pytest) [^`]+)`", TEXT)})
ROWS = [line.strip("|").split("|") for line in TEXT.splitlines() if line.startswith("| ") and "---" not in line]


def reproduced(command: str) -> list[str]:
    """Names of experiments in a `reproduce` command."""
    words = shlex.split(command)[2:]
    options = {"--kernels", "-j", "--out", "--lengths", "--trace", "--fidelity"}
    return [w for before, w in zip(["", *words], words, strict=False) if w[0] != "-" and before not in options]


@pytest.mark.parametrize("command", [command for command in COMMANDS if command.startswith("pagelab ")])
def test_every_command_is_one_that_the_program_knows(command):
    app.parse_args(shlex.split(command)[1:], exit_on_error=False, print_error=False)


def test_every_name_of_reproduce_exists_and_every_experiment_is_listed():
    named = {name for line in COMMANDS if line.startswith("pagelab reproduce") for name in reproduced(line)}

    assert named <= {*NAMES, "all"}
    assert set(EXPERIMENTS) <= named


def test_every_test_and_target_exists():
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    paths = {word for line in COMMANDS for word in line.split() if word.startswith(("tests/", "results/reference"))}

    assert {line.split()[1] for line in COMMANDS if line.startswith("make ")} <= set(targets)
    assert len(paths) > 5
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_every_row_says_claim_command_expected_tolerance_run_time_and_hardware():
    heads = [cell.strip() for cell in ROWS[0]]

    assert heads == ["claim", "command", "expected", "tolerance", "run time", "hardware"]
    assert len(ROWS) > len(EXPERIMENTS)
    for row in ROWS:
        assert len(row) == len(heads), row
        assert all(cell.strip() for cell in row), row
        assert row == ROWS[0] or [cell.strip() for cell in row] == heads or row[1].strip().startswith("`"), row


def test_the_first_ten_minutes_need_neither_torch_nor_a_device():
    assert not any("setup" in line or "bench" in line or "--backend" in line for line in SHELL)
    assert any(line.startswith("pagelab reproduce all --quick") for line in SHELL)
