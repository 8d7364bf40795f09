"""Whole numbers on the command line: every option of every verb that is one refuses what is none."""

import pytest
from cyclopts import App

from experiments.cli import app


def apps(root, *words):
    """Every verb, with the words that lead to it."""
    if root.default_command is not None and words:
        yield words, root
    for name, child in root._commands.items():
        if isinstance(child, App) and not name.startswith("-"):
            yield from apps(child, *words, name)


OPTIONS = [
    (words, argument.names[0])
    for words, verb in apps(app)
    for argument in verb.assemble_argument_collection()
    if argument.hint in (int, int | None, tuple[int, ...]) and argument.names[0].startswith("-")
]


def test_there_are_such_options_in_all_groups_of_verbs():
    assert {words[0] for words, _ in OPTIONS} >= {"run", "capacity", "generate", "map", "reproduce", "trace", "bench"}


REQUIRED = {
    "generate": ("-m", "model"),
    "map": ("folder",),
    "check-allocator": ("name",),
    "trace inspect": ("file",),
    "trace validate": ("file",),
    "trace convert": ("source", "target"),
    "trace synth": ("target",),
    "trace steps": ("log", "target"),
    "calibrate": ("-o", "folder"),
}


@pytest.mark.parametrize("words,option", OPTIONS, ids=str)
def test_a_whole_number_is_never_rounded(pagelab, words, option):
    done = pagelab(*words, *REQUIRED.get(" ".join(words), ()), option, "1.5")

    assert done.code == 2
    assert "expected a whole number, got '1.5'" in done.err
