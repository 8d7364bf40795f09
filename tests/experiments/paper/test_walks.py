"""The walk-throughs, and what they notice; Figs 1 and 13b on made-up numbers; the page."""

from __future__ import annotations

import json

import pytest

from engine.core.paged import PagedAllocator
from experiments.paper import fig1, fig13b, page, pictures, verb, walks
from experiments.paper.runs import Lab
from experiments.paper.verb import Section


def verdicts(results):
    return {result.claim.id: result.verdict for result in results}


@pytest.mark.parametrize("name", ["fig3", "fig6", "fig7"])
def test_the_walks_come_out_as_drawn(name):
    results = verb.measure([name], Lab(num_seeds=1))[0].results

    assert set(verdicts(results).values()) == {"pass"}
    assert {result.claim.tolerance for result in results} == {0.0}


def test_fig6_writes_each_token_into_the_slot_that_follows():
    walk, _ = walks.walk6()

    assert [row[3] for row in walk.rows] == ["7, 1", "7, 1", "7, 1, 3"]
    assert [row[6] for row in walk.rows] == ["28, 29, 30, 31, 4, 5, 6", "7", "12"]


def test_another_order_of_the_free_queue_is_not_as_drawn(monkeypatch):
    monkeypatch.setattr(walks, "DRAWN_ORDER", (7, 4, 3, 5, 1))

    missed = {name for name, verdict in verdicts([*walks.walk6()[1], *walks.walk7()[1]]).items() if verdict == "miss"}

    assert missed == {
        "fig6/prefill/table",
        "fig6/decode-1/table",
        "fig6/decode-2/table",
        "fig7/a/table",
        "fig7/b/table",
    }


def test_an_allocator_that_takes_a_block_too_early_is_noticed(monkeypatch):
    extend = PagedAllocator.extend

    def eager(self, requests, num_tokens, **options):
        return extend(self, requests, [count + walks.BLOCK for count in num_tokens], **options)

    monkeypatch.setattr(PagedAllocator, "extend", eager)

    found = verdicts(walks.walk6()[1])
    assert found["fig6/decode-1/new"] == found["fig6/decode-1/table"] == "miss"
    assert found["fig6/prefill/table"] == "pass"


def test_fig3_counts_what_is_held(monkeypatch):
    monkeypatch.setattr(walks, "DRAWN3", {**walks.DRAWN3, "a": (7, 2, 2, 2037)})

    assert set(verdicts(walks.judge3(Lab())).values()) == {"pass"}, "other drawings come out as drawn, too"
    assert [row[3:] for row in walks.walk3() if row[:2] == ("a", "decode")] == [(7, 2, 2, 2037)]


class Made(Lab):
    """Made-up numbers by system."""

    def __init__(self, by_system, **options):
        super().__init__(**{"num_seeds": 2, "quick": True, **options})
        self.by_system = by_system

    def measure(self, keys, progress=None):
        return [{"num_requests": 10.0, **self.by_system(key)} for key in keys]


def batches(**values):
    return Made(lambda key: dict.fromkeys(("mean_batch_size", "iter_mean_batch_size"), values[key.allocator[-4:]]))


def test_fig13b_judges_the_reservations_and_reports_paged():
    near = verdicts(fig13b.judge(batches(**{"-max": 7.0, "pow2": 41.0, "acle": 70.0, "aged": 73.0})))
    far = verdicts(fig13b.judge(batches(**{"-max": 6.0, "pow2": 30.0, "acle": 60.0, "aged": 132.44})))

    assert list(near.values()) == ["pass", "pass", "pass", "reported"]
    assert list(far.values()) == ["miss", "miss", "miss", "reported"]


def growth(key):
    share = {"orca-max": 0.13, "paged": 0.03}[key.allocator]
    batch = min(key.max_num_seqs, 7 if key.allocator == "orca-max" else 33)
    return {
        "seed": 0.0,
        "mean_batch_size": batch,
        "kv_blocks_used_frac": share * batch,
        "output_tok_per_s": 30.0 * batch,
    }


def test_fig1_says_which_curve_lies_below_and_which_goes_further():
    results = {result.claim.id: result for result in fig1.judge(Made(growth))}

    assert {result.verdict for result in results.values()} == {"pass"}
    assert results["fig1/right/memory"].got == pytest.approx(100 * 3 / 13)
    assert results["fig1/right/batch"].got == pytest.approx(100 * 7 / 33)
    swapped = fig1.judge(Made(lambda key: growth(key._replace(allocator="orca-max"))))
    assert verdicts(swapped)["fig1/right/memory"] == "pass", "level is no miss"


def test_the_page_has_claims_figures_numbers_and_deviations(tmp_path):
    lab = Made(growth)
    experiment = verb.EXPERIMENTS["fig1"]
    section = Section("fig1", experiment.title, experiment.judge(lab), experiment.tables(lab))

    path, failed = page.write(tmp_path, verb.document([section], lab), [section], lab)

    assert failed == []
    text = path.read_text("utf-8")
    assert "fig1/right/memory" in text
    assert "data:image/png;base64," in text
    assert "pagelab reproduce fig1 --quick --seeds 2" in text
    assert "axes-only" in text
    assert (tmp_path / "figures/fig1.csv").read_text().startswith("allocator,cap,mean_batch_size")
    assert json.loads((tmp_path / "reproduce.json").read_text("utf-8"))["claims"][0]["id"] == "fig1/left/parameters"


def test_a_figure_that_fails_costs_none_of_the_page_and_is_a_bug(tmp_path, monkeypatch, capsys):
    def broken(lab):
        raise ValueError("no such axis")

    monkeypatch.setattr(pictures, "PICTURES", {"fig3": broken})
    monkeypatch.setattr(page, "PICTURES", {"fig3": broken})

    assert verb.reproduce(["fig3"], out=tmp_path / "new/folder") == 1

    assert "figure failed: fig3: ValueError: no such axis" in capsys.readouterr().err
    assert "fig3/a/never" in (tmp_path / "new/folder/reproduce.html").read_text("utf-8")


def test_a_folder_that_cannot_be_made_is_said_before_anything_runs(tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(verb.UsageError, match="--out"):
        verb.reproduce(["fig3"], out=tmp_path / "file")
