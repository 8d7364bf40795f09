"""One pool, many kernels: judged on what every backend does to it; a copy, a lost write and a stale view are misses."""

import os
from importlib.util import find_spec

import pytest

torch = pytest.importorskip("torch")

from engine.attention import BACKENDS  # noqa: E402
from engine.attention.reference_backends import ReferenceImpl  # noqa: E402
from experiments.bench.shapes import LAYOUTS  # noqa: E402
from experiments.exits import UsageError  # noqa: E402
from experiments.paper.kernels import KernelLab  # noqa: E402
from experiments.paper.runs import Lab  # noqa: E402
from experiments.studies import one_pool_many_kernels as study  # noqa: E402
from experiments.studies.one_pool import everyone  # noqa: E402

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


class Stored(KernelLab):
    """Rows by hand."""

    def __init__(self, rows):
        super().__init__()
        self.by_hand = rows

    def lacking(self):
        return ""

    def rows(self, case):
        if not self.by_hand:
            raise UsageError("no rows of the case")
        return self.by_hand


def row(name, layout, seconds, status="ok"):
    fixed = {"case": "backends", "shape": "s", "dtype": "bfloat16", "block_size": 16, "table": "shuffled"}
    return {
        **fixed,
        "peer": f"backend/{name}",
        "layout": layout,
        "median_s": seconds,
        "status": status,
        "device": "Card",
    }


def verdicts(lab):
    return {result.claim.id.removeprefix(f"{study.NAME}/"): result for result in study.judge(lab)}


@pytest.fixture
def lab(monkeypatch):
    """Without measurements of kernels, and with backends in plain torch only: Triton's interpreter takes seconds."""
    plain = {name: backend for name, backend in BACKENDS.items() if name.startswith("reference")}
    monkeypatch.setattr("engine.attention.BACKENDS", {**plain, "flashinfer": BACKENDS["flashinfer"]})
    return Lab(kernels=Stored([]))


def test_all_that_run_here_share_each_pool():
    found = verdicts(lab := Lab(kernels=Stored([])))
    assert {name: found[name].verdict for name in ("error", "copies", "writes", "planted")} == dict.fromkeys(
        ("error", "copies", "writes", "planted"), "pass"
    )
    ran = {(turn.backend, turn.layout) for turn in lab.once(study.NAME, everyone).ran}
    assert {("reference", layout) for layout in LAYOUTS} <= ran
    assert {("triton", layout) for layout in LAYOUTS if INTERPRETED} <= ran
    assert found["kernels"].got == max(sum(where == layout for _, where in ran) for layout in LAYOUTS) >= 2
    assert ("reference-pallas", "interleaved") in ran
    assert (("pallas", "interleaved") in ran) == (find_spec("jax") is not None)
    assert ("reference-pallas", "kv_first") not in ran


def test_a_backend_that_attends_over_a_copy_is_a_miss(lab, monkeypatch):
    kept = []

    def stale(self, query, kv_cache, metadata, out):
        if not kept or kept[-1][0] is not metadata:
            kept.append((metadata, kv_cache.clone()))
        return honest(self, query, kept[-1][1], metadata, out)

    honest = ReferenceImpl._attend
    monkeypatch.setattr(ReferenceImpl, "_attend", stale)
    assert verdicts(lab)["planted"].verdict == "miss"


def test_views_of_another_memory_are_a_miss(lab, monkeypatch):
    honest = ReferenceImpl.split
    monkeypatch.setattr(ReferenceImpl, "split", lambda self, cache: tuple(x.clone() for x in honest(self, cache)))
    found = verdicts(lab)
    assert found["copies"].verdict == "miss"
    assert found["writes"].verdict == "miss"


def test_a_write_beside_its_slots_is_a_miss(lab, monkeypatch):
    honest = ReferenceImpl._write

    def beside(self, key, value, kv_cache, metadata):
        honest(self, key, value, kv_cache, metadata)
        k, _ = self.split(kv_cache)
        k[int(metadata.block_table[0, 0]), 1] += 1

    monkeypatch.setattr(ReferenceImpl, "_write", beside)
    assert verdicts(lab)["writes"].verdict == "miss"


def test_a_wrong_output_is_a_miss(lab, monkeypatch):
    honest = ReferenceImpl._attend
    monkeypatch.setattr(ReferenceImpl, "_attend", lambda *given: honest(*given) * 1.001)
    assert verdicts(lab)["error"].verdict == "miss"


def test_times_are_told_beside_tritons_where_there_are_any(lab):
    rows = [row("triton", layout, 1.0) for layout in ("kv_first", "block_first")]
    rows += [row("flashinfer", "kv_first", 1.0), row("flashinfer", "block_first", 4.0)]
    rows.append(row("flash-attn-3", "kv_first", None, "unsupported"))
    lab.kernels = Stored(rows)
    found = verdicts(lab)
    assert found["time/flashinfer"].got == pytest.approx(2.0)
    assert found["time/flashinfer"].verdict == "reported"
    assert "time/flash-attn-3" not in found


@pytest.mark.parametrize("timed", [False, True])
def test_everything_is_in_table_and_figure(timed, lab):
    import matplotlib.pyplot as plt

    rows = [row(name, "kv_first", 1.0) for name in ("triton", "flashinfer")] if timed else []
    lab.kernels = Stored(rows)
    (table,) = study.tables(lab)
    (picture,) = study.pictures(lab)
    figure = plt.figure(figsize=(8, picture.height_in), layout="constrained")
    frame = picture.draw(figure)
    plt.close(figure)
    assert len(figure.axes) == 1 + timed
    assert len(frame) == len(table.rows) == 3 * frame["backend"].nunique()
    assert ("time_over_triton" in frame) == timed
    assert frame.loc[frame["relative_error"].isna(), "why_not"].ne("").all()


def test_without_torch_nothing_is_measured_or_drawn(monkeypatch):
    monkeypatch.setattr(study, "find_spec", lambda name: None)
    assert {result.verdict for result in study.judge(Lab())} == {"not here"}
    assert study.tables(Lab()) == study.pictures(Lab()) == []
