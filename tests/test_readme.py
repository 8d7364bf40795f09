"""What the README says is so: its code runs, its commands parse, its files exist, its numbers are the stored ones."""

from __future__ import annotations

import csv
import re
import shlex
from pathlib import Path

import pytest

from engine.core.registry import ALLOCATORS, FITS
from experiments import defaults, exits
from experiments.api import Config, compare
from experiments.cli import app, main
from experiments.paper.verb import EXPERIMENTS
from sim.metrics import METRICS

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "README.md").read_text("utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
SHELL = [line.partition("#")[0].strip() for kind, body in BLOCKS if kind == "sh" for line in body.splitlines()]
COMMANDS = [line for line in SHELL + re.findall(r"`(pagelab [^`]+)`", TEXT) if line.startswith("pagelab ")]
QUICK = ("trace", "capacity", "check-allocator")
"""Verbs that the test runs, and `compare` where it names a small trace. The others are parsed only."""
PREFIXES = ("kv_", "paper_", "iter_", "mean_", "num_")
DEMO = ROOT / "results" / "reference" / "demo"


def python_block(first_words: str) -> str:
    return next(body for kind, body in BLOCKS if kind == "python" and body.startswith(first_words))


def is_quick(words: list[str]) -> bool:
    downloads = words[1:3] == ["trace", "fetch"] and len(words) > 3
    return not downloads and (words[1] in QUICK or "--trace" in words or "--num-requests" in words)


def stored_rows() -> list[dict[str, str]]:
    with (DEMO / "summary.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("command", sorted(set(COMMANDS)))
def test_every_command_is_one_that_the_program_knows(command):
    words = shlex.split(command)[1:]
    if words != ["reproduce", "NAME"]:
        app.parse_args(words, exit_on_error=False, print_error=False)


def test_the_quick_commands_run_one_after_the_other(tmp_path, monkeypatch, capsys):
    (tmp_path / "my_allocator.py").write_text(python_block("# my_allocator.py"), "utf-8")
    (tmp_path / "clients.toml").write_text(next(body for kind, body in BLOCKS if kind == "toml"), "utf-8")
    monkeypatch.chdir(tmp_path)
    quick = [words[1:] for line in SHELL if line.startswith("pagelab ") and is_quick(words := shlex.split(line))]
    codes = [main([*words, *(["--no-report"] if words[0] == "compare" else [])]) for words in quick]

    assert len(quick) >= 6
    assert codes == [0] * len(quick), capsys.readouterr().err


def test_the_python_example_runs(capsys):
    exec(compile(python_block("from experiments.api"), "README.md", "exec"), {"__name__": "readme"})

    assert "orca-max" in capsys.readouterr().out


def test_every_experiment_has_a_row_under_claims():
    claims = TEXT[TEXT.index("## Claims") : TEXT.index("## From the chapter")]
    named = {word for line in re.findall(r"`pagelab reproduce ([^`]+)`", claims) for word in shlex.split(line)}

    assert [name for name in EXPERIMENTS if name not in named] == []


def test_every_linked_or_named_file_exists():
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)]+)\)", TEXT) if "://" not in link]
    named = re.findall(r"\b(?:tests|engine|sim|experiments|workloads)/[\w/]+\.py", TEXT)

    assert links
    assert [path for path in {*links, *named} if not (ROOT / path).exists()] == []


def test_every_make_target_exists():
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)

    assert {line.split()[1] for line in SHELL if line.startswith("make ")} <= set(targets)


def test_the_exit_codes_are_the_programs():
    listed = {int(code) for code in re.findall(r"^\| (\d+) \|", TEXT, re.MULTILINE)}

    assert listed == {value for name, value in vars(exits).items() if name.isupper()}


def test_allocators_fits_and_columns_are_spelled_as_in_the_code():
    columns = set(re.findall(r"`(kv_\w+_frac|external_\w+_index)`", TEXT))

    assert [name for name in (*ALLOCATORS, *FITS) if f"`{name}`" not in TEXT] == []
    assert columns <= {metric.name for metric in METRICS}


def test_the_table_shows_the_stored_results():
    stored = {row["allocator"]: row for row in stored_rows() if row["block_size"] == "16"}
    shown = [line.split() for line in TEXT.splitlines() if line.split()[:1] and line.split()[0] in ALLOCATORS]
    shares = ("live", "reserved", "internal", "external", "free")

    assert {line[0] for line in shown} == set(defaults.ALLOCATORS)
    for name, _, *cells in shown:
        row = stored[name]
        expected = [f"{100 * float(row[f'kv_{share}_frac']):.1f}" for share in shares]
        expected += [f"{float(row['mean_batch_size']):.1f}", f"{float(row['output_tok_per_s']):,.0f}"]
        assert cells[: len(expected)] == expected, name
        assert cells[-2].replace(",", "") == row["num_preemptions"], name


@pytest.mark.parametrize("allocator", ["orca-max", "orca-oracle"])
def test_the_stored_results_come_out_again(allocator):
    fresh = compare(Config.of(allocator=allocator, block_size=16)).summary.iloc[0]
    stored = next(row for row in stored_rows() if row["allocator"] == allocator)
    numbers = {name: float(text) for name, text in stored.items() if text and name.startswith(PREFIXES)}

    assert len(numbers) > 40
    assert {name: fresh[name] for name in numbers} == pytest.approx(numbers, rel=1e-12)
