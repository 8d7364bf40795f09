"""The search among configurations of the MLA decode: what it keeps when its processes are wrong, silent or lost."""

import json
import subprocess
import sys
import time

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from engine.attention.kernels.tuning import DecodeConfig  # noqa: E402
from engine.attention.kernels.tuning_mla import MLADecodeConfig  # noqa: E402
from experiments import exits  # noqa: E402
from experiments.bench import mla_search  # noqa: E402
from experiments.bench.bench import Bench  # noqa: E402
from experiments.bench.cases import shapes_of  # noqa: E402
from experiments.bench.inputs import Arena  # noqa: E402
from experiments.bench.ours_mla import latent_configs  # noqa: E402
from experiments.bench.rows import row_of  # noqa: E402
from experiments.bench.shapes import Heads, latent_decode  # noqa: E402
from experiments.bench.timing import Timing  # noqa: E402

HEADS = Heads("mla-4", 4, 1, 48, 32)
SMALL = MLADecodeConfig(16, DecodeConfig(32, 4, 2, programs=3, min_piece_tokens=32))


class Once:
    """Times nothing."""

    def synchronize(self):
        pass

    def capture(self, calls):
        return None

    def replay_s(self, graph, num_replays):
        return [1.0] * num_replays


def process_that_says(lines, then="pass"):
    code = f"import sys, time\nfor line in {lines!r}: print(line, flush=True)\n{then}"
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


def words(monkeypatch, *processes):
    """The watching side over scripted processes, in order."""
    left = list(processes)
    asked = []

    def started(options):
        asked.append(options)
        return process_that_says(*left.pop(0))

    monkeypatch.setattr(mla_search, "_started", started)
    return mla_search._parser().parse_args([]), asked


def measured(shape, config, median_s, status="ok"):
    timing = Timing(median_s, median_s, median_s, 1, 1)
    more = {"relative_error": 1e-3, "config": config, "swept": True}
    return row_of(shape, "pagelab", contiguous=False, status=status, timing=timing, **more)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_configuration_is_checked_on_lengths_around_its_tiles(monkeypatch, dtype):
    monkeypatch.setattr(mla_search, "CHECKED_LENGTHS", (1, 64, 65, 0))
    batch = mla_search.small_batch(HEADS, "cpu", dtype)

    assert mla_search.wrong_by(batch, SMALL, HEADS.rank) < 2e-3
    batch[1][batch[2][1, 0], 5] = float("nan")  # a token that is looked at
    assert mla_search.wrong_by(batch, SMALL, HEADS.rank) > 1


def test_configurations_are_timed_after_the_rule_and_left_out_by_name(monkeypatch):
    monkeypatch.setattr("experiments.bench.inputs.num_sets", lambda size: 1)
    shape = latent_decode("mla", HEADS, 2, 64, 64).with_(dtype="float16")
    bench = Bench(Arena("cpu", 0), Once())
    said = list(mla_search.timings(bench, [shape], lambda heads: [SMALL] * 3, [], {"4:1", f"{shape.label}/4:2"}))

    assert [entry["next"].rpartition("/")[2] for entry in said] == ["rule", "4:0", ""]
    assert [entry["row"]["status"] for entry in said[1:]] == ["ok", "ok"]
    assert json.loads(json.dumps(said)) == said


def test_what_is_wrong_or_does_not_answer_is_left_out(monkeypatch):
    monkeypatch.setattr(mla_search, "configs_of", lambda heads: [SMALL] * 2)
    right, wrong = (json.dumps({"key": key, "error": error}) for key, error in (("16:0", 1e-3), ("16:1", 0.5)))
    words(monkeypatch, ([right, wrong],), ([], "time.sleep(60)"))
    start = time.monotonic()

    assert mla_search.checked(2, 2.0) == {"16:1", "128:0", "128:1"}
    assert time.monotonic() - start < 20


def test_a_kernel_that_hangs_costs_its_own_row_only(monkeypatch):
    monkeypatch.setattr(mla_search, "SILENCE_S", 1.0)
    shape = shapes_of("mla")[0]
    row = measured(shape, "a", 1e-5)
    first = [json.dumps({"next": "x/rule"}), json.dumps({"row": row, "next": "x/128:0"})]
    second = [json.dumps({"next": "x/128:1"}), json.dumps({"row": row, "next": ""})]
    arguments, asked = words(monkeypatch, (first, "time.sleep(60)"), (second,))
    rows = mla_search.timed(arguments, {"16:3"}, time.monotonic() + 30)

    assert [row["config"] for row in rows] == ["a", "a"]
    assert asked[1][:5] == ["--time", "--skip", "16:3", "x/rule", "x/128:0"]


def test_the_report_has_the_best_of_each_shape_and_whatever_failed():
    one, other = shapes_of("mla")[:2]
    rows = [measured(one, "slow", 3e-5), measured(one, "fast", 1e-5), measured(other, "only", 2e-5)]
    failed = row_of(one, "pagelab", contiguous=False, status="failed", reason="lost", swept=True)
    lines = mla_search.report([*rows, failed])

    assert [line.split()[-1] for line in lines[:3]] == ["fast", "slow", "only"]
    assert "lost" in lines[-1]


def test_the_shapes_that_matter_most_come_first():
    shapes = mla_search.ordered(shapes_of("mla"))
    assert {shape.num_seqs for shape in shapes[:4]} == {64}
    assert len(shapes) == 7


@pytest.mark.parametrize("num_heads", [16, 128])
def test_configurations_are_distinct_and_of_every_kernel(num_heads):
    configs = list(latent_configs(num_heads, 132))
    assert len(set(configs)) == len(configs)
    assert {config.kernel for config in configs} == {"portable", "pair"}


def test_without_a_device_it_says_so(capsys):
    if torch.cuda.is_available():
        pytest.skip("there is one")
    assert mla_search.main([]) == exits.NO_DEVICE
    assert "mla_search" in capsys.readouterr().err
