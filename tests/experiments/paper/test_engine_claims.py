"""Claims that are measured on the real engine: they pass, and they can miss."""

import pytest

from experiments.paper import chapter_table, fig18b, verb
from experiments.paper.runs import Lab

torch = pytest.importorskip("torch")


def verdicts(results):
    return {result.claim.id: result.verdict for result in results}


def test_the_block_table_of_the_engine_is_the_chapters():
    results = chapter_table.judge()
    assert set(verdicts(results).values()) == {"pass"}
    assert {name.split("/")[1] for name in verdicts(results)} == {"S19", "S20"}
    upload = next(result for result in results if result.claim.id == "chapter/S19/upload")
    assert "12 and 12 entries" in upload.note


@pytest.mark.parametrize(
    "fault,claim",
    [
        ("all rows", "chapter/S19/behind"),
        ("nothing", "chapter/S19/inside"),
        ("whole rows", "chapter/S19/upload"),
        ("off by one", "chapter/S20/worker_differences"),
    ],
)
def test_a_fault_in_the_table_is_a_miss(monkeypatch, fault, claim):
    from engine.worker.block_table import BlockTable

    commit, slots = BlockTable.commit, BlockTable.slot_mapping

    def broken(self, num_rows):
        if fault == "all rows":
            return commit(self, len(self.cpu))
        if fault == "nothing" and self.num_uploaded:
            return 0
        if fault == "whole rows":
            self.gpu[:num_rows] = torch.from_numpy(self.cpu[:num_rows])
            self.num_uploaded += num_rows * self.max_blocks
            return num_rows * self.max_blocks
        return commit(self, num_rows)

    monkeypatch.setattr(BlockTable, "commit", broken)
    if fault == "off by one":
        monkeypatch.setattr(BlockTable, "slot_mapping", lambda self, rows, at: slots(self, rows, at) + 1)
    if fault == "nothing":
        monkeypatch.setattr(chapter_table, "_uploaded", chapter_table._slots)  # it would raise before it is judged
    assert verdicts(chapter_table.judge())[claim] == "miss"


@pytest.fixture
def lab(monkeypatch, tiny_model):
    """Fig 18b on this machine's CPU, on a model that takes milliseconds."""
    monkeypatch.setattr(fig18b, "lacking", lambda: "")
    monkeypatch.setattr(fig18b, "BACKEND", "cpu")
    monkeypatch.setattr(fig18b, "MODELS", (str(tiny_model),) * 2)
    monkeypatch.setattr(fig18b, "NUM_REQUESTS", {"sharegpt": 9, "alpaca": 15})
    return Lab(num_seeds=1, quick=True)


@pytest.mark.slow
def test_fig18b_serves_the_same_requests_at_every_block_size(lab):
    results, shown = fig18b.judge(lab), fig18b.tables(lab)
    assert set(verdicts(results)) == {"fig18b/sharegpt/best", "fig18b/alpaca/best", "fig18b/alpaca/256-degrades"}
    assert all(result.got is not None and result.verdict in ("pass", "miss") for result in results)
    assert [row[0] for row in shown[0].rows] == list(fig18b.QUICK_SIZES)
    curve = fig18b.curve(lab, "alpaca")
    assert {row["num_finished"] + row["num_truncated"] for row in curve.by_size.values()} == {5}
    assert all(value > 0 for value in curve.latency_s.values())


def test_fig18b_is_judged_on_the_curve(monkeypatch):
    monkeypatch.setattr(fig18b, "lacking", lambda: "")
    best = {1: 2.0, 16: 1.0, 64: 1.5, 256: 1.2}
    rows = {size: {"mean_normalized_latency_s": value} for size, value in best.items()}
    monkeypatch.setattr(fig18b, "curve", lambda lab, lengths: fig18b.Curve(1.0, "Test card", rows))
    found = verdicts(fig18b.judge(Lab()))
    assert found == {
        "fig18b/sharegpt/best": "pass",
        "fig18b/alpaca/best": "pass",
        "fig18b/alpaca/256-degrades": "pass",
    }
    best.update({1: 0.9, 256: 1.05})
    rows |= {size: {"mean_normalized_latency_s": value} for size, value in best.items()}
    assert set(verdicts(fig18b.judge(Lab())).values()) == {"miss"}


def test_without_a_device_the_names_are_not_here_and_exit_6(capsys):
    if torch.cuda.is_available():
        pytest.skip("there is one")
    assert verb.reproduce(["caching-allocator"]) == 6
    assert "no device" in capsys.readouterr().err
