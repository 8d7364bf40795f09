"""What is said where a folder holds no results: which verbs write such folders, and what this one is."""

import shutil

import pytest

from experiments.fidelity.stored import ABOUT_FILE
from experiments.paper.page import JSON_NAME

VERBS = ("run", "compare", "sweep", "bench")
READERS = (("report",), ("plot",), ("export", "--to", "csv", "-o", "x.csv"))


@pytest.fixture
def kinds(small, pagelab, tmp_path, trace_file):
    """A folder of each kind, by the words that must be said of it."""
    assert small("run", "-o", "whole", "--no-report").code == 0
    axes = ("--axis", "kv.block_size=8,16", "--shard", "1/2", "--jobs", "1")
    assert small("sweep", "-o", "swept", *axes).code == 0
    for name, inside in (("claims", JSON_NAME), ("pairs", ABOUT_FILE), ("killed/cells/a", "summary.json")):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / inside).write_text("{}")
    (tmp_path / "empty").mkdir()
    shutil.copytree(tmp_path / "whole", tmp_path / "outer" / "inner")
    [cell] = (tmp_path / "whole/cells").iterdir()
    return {
        "missing": "there is no such folder",
        "empty": "name a folder that run, compare, sweep or bench has written",
        "whole/summary.csv": "it is a file: name the folder that it is in, whole",
        "swept": "a sweep that has not come to its end: go on with pagelab sweep --resume -o swept",
        "claims": "claims of reproduce",
        "pairs": "pagelab reproduce sim_vs_gpu --fidelity pairs",
        str(cell.relative_to(tmp_path)): "one run of whole: name that",
        "killed": "runs that were ended before all were done",
        "outer": "there are results in outer/inner",
    }


def test_every_kind_of_folder_is_said_with_what_to_do_instead(kinds, pagelab):
    for folder, said in kinds.items():
        done = pagelab("report", folder)
        assert (done.code, done.out) == (2, ""), folder
        assert f"{folder}: no summary.csv here; " in done.err
        assert said in done.err


@pytest.mark.parametrize("words", READERS)
def test_every_reader_says_the_same(words, pagelab, tmp_path):
    done = pagelab(words[0], "missing", *words[1:])
    assert done.code == 2
    assert all(verb in done.err for verb in VERBS)


@pytest.mark.parametrize("verb", ["report", "plot"])
def test_without_a_folder_the_verbs_that_write_one_are_named(verb, pagelab):
    done = pagelab(verb)
    assert done.code == 2
    assert "folder that run, compare, sweep or bench has written" in done.err


def test_a_report_of_two_folders_says_who_takes_two(pagelab):
    done = pagelab("report", "a", "b")
    assert done.code == 2
    assert "name one folder that run, compare, sweep or bench has written, got 2: plot draws" in done.err
    assert "compare says how two differ" in done.err
