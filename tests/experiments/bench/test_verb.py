"""The verb without a device: exit code 6; and a results folder from stored rows, checked, drawn and judged."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from experiments import exits
from experiments.bench import kernel_main
from experiments.bench.cases import shapes_of
from experiments.bench.contestant import Missing
from experiments.bench.rows import from_csv, row_of
from experiments.bench.session import Measured, Wanted
from experiments.bench.timing import Timing
from experiments.cli import main
from experiments.paper import fig18a, verb
from experiments.paper.kernels import KernelLab
from experiments.paper.runs import Lab

ROOT = Path(__file__).resolve().parents[3]
MACHINE = {"device": "Test card", "torch": "2.11.0", "triton": "3.6.0", "driver": "1, 2"}
FAST = {"pagelab": 1.0, "pagelab-twin": 0.97, "pagelab-twin-equal": 0.99, "torch-cudnn": 0.95, "fa3": 1.04}
IMPORTS = """
import sys
blocked = ("pydantic", "cyclopts", "simpy", "pandas", "pyarrow", "matplotlib", "rich", "jinja2")
sys.modules.update(dict.fromkeys((*blocked, "torch", "triton")))
import experiments.bench.kernel_main
del sys.modules["torch"], sys.modules["triton"]
import experiments.bench.bench, experiments.bench.ours, experiments.bench.truth
"""


def row(shape, peer, time_s, **values):
    timing = Timing(time_s, 0.98 * time_s, 1.03 * time_s, 2, 7)
    known = {"timing": timing, "relative_error": 1e-3, "status": "ok", "seed": 0, "device": "Test card"}
    contiguous = "twin" in peer or peer == "torch-cudnn"
    return row_of(shape, peer, contiguous=contiguous, **{**known, "torch": "2.11.0", "triton": "3.6.0", **values})


def made_up(factor=FAST, cases=("decode", "twin", "fig18a", "block-size")):
    """Rows of an invented device: 4 TB/s and 5 us, block size 1 a tenth slower."""
    rows = [
        row(shape, peer, times * (5e-6 + shape.moved_bytes / 4e12) * (1.1 if shape.block_size == 1 else 1.0))
        for case in cases
        for shape in shapes_of(case)
        for peer, times in factor.items()
    ]
    return Measured(Wanted(cases), MACHINE, [Missing("flashinfer", "cannot be imported")], rows)


@pytest.fixture
def measured_folder(tmp_path):
    """What `kernel_main` leaves on the machine with the device."""
    folder = tmp_path / "from-device"
    kernel_main.write(made_up(), folder)
    return folder


@pytest.fixture
def no_device(monkeypatch):
    monkeypatch.setattr("experiments.bench.machine.why_no_device", lambda: "torch is not installed")


def test_the_measuring_core_imports_without_the_rest():
    done = subprocess.run([sys.executable, "-c", IMPORTS], cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr


def test_without_a_device_the_exit_code_is_6_and_says_why(pagelab, no_device, strict_object):
    done = pagelab("bench", "kernel", "--quick", "--json")

    assert done.code == exits.NO_DEVICE
    assert "torch is not installed" in done.err
    assert strict_object(done.out)["exit_code"] == exits.NO_DEVICE


def test_the_bare_program_says_the_same(no_device, capsys):
    assert kernel_main.main(["--quick"]) == exits.NO_DEVICE
    assert "torch is not installed" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words,said",
    [
        (("--case", "decod"), "unknown case 'decod'"),
        (("--dtype", "float8"), "unknown dtype 'float8'"),
        (("--block-size", "0"), "block size must be at least 1"),
        (("--block-size", "1.5"), "expected a whole number, got '1.5'"),
        (("--seed", "0.5"), "expected a whole number, got '0.5'"),
        (("--peer", "fa4"), "unknown peer 'fa4'"),
        (("--from", "nowhere"), "no kernel measurements"),
    ],
)
def test_bad_requests_are_usage_errors_before_any_device_is_looked_for(pagelab, no_device, words, said):
    done = pagelab("bench", "kernel", *words)

    assert (done.code, said in done.err) == (exits.USAGE, True), done.err


@pytest.fixture(scope="module")
def kept_once(tmp_path_factory):
    """A results folder of made-up rows, made once."""
    folder = tmp_path_factory.mktemp("bench")
    kernel_main.write(made_up(), folder / "from-device")
    assert main(["bench", "kernel", "--from", str(folder / "from-device"), "-o", str(folder / "kept")]) == exits.OK
    return folder / "kept"


@pytest.fixture
def kept(kept_once, tmp_path):
    """A copy of it, to be changed at will."""
    return Path(shutil.copytree(kept_once, tmp_path / "kept"))


def test_stored_rows_become_a_results_folder_that_validates(pagelab, kept, strict_object):
    manifest = strict_object((kept / "manifest.json").read_text("utf-8"))

    assert (manifest["verb"], manifest["device"], manifest["status"]) == ("bench kernel", "Test card", "complete")
    assert manifest["peers_missing"][0]["name"] == "flashinfer"
    assert from_csv((kept / "summary.csv").read_text("utf-8")) == made_up().table()
    frame = pd.read_parquet(kept / "cells/fig18a/kernels.parquet")
    assert len(frame) == manifest["num_rows"]["fig18a"]["kernels"] == 6 * len(FAST)
    assert pagelab("validate", kept).code == exits.OK


def test_a_folder_with_results_is_not_replaced_unasked(pagelab, kept):
    done = pagelab("bench", "kernel", "--from", kept, "-o", kept)

    assert (done.code, "has results already" in done.err) == (exits.USAGE, True)


def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_measured(pagelab, kept, no_device, tmp_path):
    (tmp_path / "file").touch()

    assert pagelab("bench", "kernel", "-o", kept).code == exits.USAGE
    assert pagelab("bench", "kernel", "-o", tmp_path / "file", "--overwrite").code == exits.USAGE
    assert kernel_main.main(["--output-dir", str(tmp_path / "file")]) == exits.USAGE


def test_a_changed_row_is_noticed(pagelab, kept):
    path = kept / "summary.csv"
    path.write_text(path.read_text("utf-8").replace("Test card", "Best card", 1), "utf-8")

    assert pagelab("validate", kept).code == exits.INVALID


def test_every_figure_is_drawn_with_its_numbers_and_the_report_again(pagelab, kept):
    folder = kept / "figures"
    first = {path.name: path.read_bytes() for path in folder.iterdir()}

    assert {path.stem for path in folder.glob("*.png")} == {path.stem for path in folder.glob("*.csv")}
    assert len(list(folder.glob("*.png"))) == 5
    overhead = pd.read_csv(folder / "kernel_overhead.csv")
    assert set(overhead["peer"]) == {"pagelab-twin", "pagelab-twin-equal", "best"}
    assert overhead.loc[overhead["peer"] == "best", "paged_over_contiguous"].round(6).unique().tolist() == [1.052632]
    again = pagelab("report", kept)
    assert again.code == exits.OK, again.err
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == first
    page = (kept / "report.html").read_text("utf-8")
    assert "Test card" in page
    assert page.count("data:image/png") == 5
    assert "not taking part: flashinfer" in page.lower()


def test_a_figure_without_rows_says_what_to_run(pagelab, tmp_path):
    kernel_main.write(made_up(cases=("decode",)), tmp_path / "few")
    pagelab("bench", "kernel", "--from", tmp_path / "few", "-o", "kept")

    assert not Path("kept/figures/kernel_overhead.png").exists()
    assert "run --case twin" in Path("kept/report.html").read_text("utf-8")


def test_json_is_one_strict_object_with_ratios(pagelab, measured_folder, strict_object):
    document = strict_object(pagelab("bench", "kernel", "--from", measured_folder, "--json").out)

    assert {one["time_over_ours"] for one in document["rows"] if one["peer"] == "pagelab"} == {1.0}
    assert document["config"]["cases"] == ["decode", "twin", "fig18a", "block-size"]


def test_a_wrong_kernel_of_ours_fails_the_run_and_a_peers_does_not():
    wrong, theirs = (made_up(cases=("fig18a",)) for _ in range(2))
    wrong.rows[0] |= {"status": "wrong"}
    theirs.rows[-1] |= {"status": "failed"}
    broken = made_up(cases=("fig18a",))
    broken.broken = "the device is lost"

    assert [kernel_main.exit_code(done) for done in (wrong, theirs, broken)] == [4, 0, 3]


def test_claims_are_judged_on_stored_rows_that_are_named(capsys, measured_folder):
    code = verb.reproduce(["fig18a", "kernel-block-size"], as_json=True, kernels=measured_folder)
    document = json.loads(capsys.readouterr().out)

    assert code == 0
    assert {claim["verdict"] for claim in document["claims"]} == {"pass"}
    assert document["claims"][0]["got"] == pytest.approx(3.1, abs=0.05)
    assert "at equal bytes in flight +1.0%; Test card, stored in from-device" in document["claims"][0]["note"]
    assert {table["name"] for table in document["tables"]} == {"fig18a/latency", "kernel-block-size/latency"}


def test_without_a_device_nothing_passes(capsys, no_device):
    code = verb.reproduce(["fig18a", "kernel-block-size"], as_json=True)
    document = json.loads(capsys.readouterr().out)

    assert code == exits.NO_DEVICE
    assert len(document["claims"]) == 9
    assert {(claim["verdict"], claim["pass"], claim["got"]) for claim in document["claims"]} == {
        ("not here", None, None)
    }
    assert all("not measured here: no device: torch is not installed" in claim["note"] for claim in document["claims"])


def judged(tmp_path, done, judge):
    kernel_main.write(done, tmp_path / "rows")
    return judge(Lab(kernels=KernelLab(tmp_path / "rows")))


def test_paging_beyond_the_papers_range_is_a_miss(tmp_path):
    slow = made_up({**FAST, "pagelab": 1.3}, ("fig18a",))

    results = judged(tmp_path, slow, fig18a.judge)

    assert {result.verdict for result in results} == {"miss"}
    assert results[0].got == pytest.approx(100 * (1.3 / 0.97 - 1))


def test_a_slow_block_size_is_a_miss(tmp_path):
    done = made_up(cases=("block-size",))
    slow = [
        one
        for one in done.rows
        if one["peer"] == "pagelab" and one["block_size"] == 256 and one["shape"] == "gqa 8 x 4k"
    ]
    slow[0] |= {name: 1.2 * slow[0][name] for name in ("p20_s", "median_s", "p80_s")}

    assert [result.verdict for result in judged(tmp_path, done, fig18a.judge_sizes)] == ["miss", "pass", "pass"]


def test_a_kernel_of_ours_that_failed_is_a_miss_and_a_shape_nobody_asked_for_is_not(tmp_path):
    done = made_up(cases=("fig18a",))
    first, second = (shape.label for shape in shapes_of("fig18a")[:2])
    failed = next(one for one in done.rows if one["shape"] == first and one["peer"] == "pagelab")
    failed |= {"status": "failed", "median_s": None}
    done.rows = [one for one in done.rows if one["shape"] != second]

    verdicts = [result.verdict for result in judged(tmp_path, done, fig18a.judge)]

    assert verdicts == ["miss", "not here", "pass", "pass", "pass", "pass"]


def test_rows_of_another_case_are_no_measurement_of_this_one(tmp_path):
    with pytest.raises(exits.UsageError, match="no rows of the case fig18a"):
        judged(tmp_path, made_up(cases=("decode",)), fig18a.judge)
