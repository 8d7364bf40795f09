"""The report of a sweep: what it says, that it stands alone, and that a browser finds no fault with it offline."""

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest

from experiments import report
from experiments.figures.columns import by_size
from experiments.figures.curves import MOST_TICKS, Horizontal
from experiments.figures.intervals import t95
from experiments.figures.spread import answer
from experiments.figures.stored import Stored
from experiments.figures.swept import FRONTIER, figures_of, layout_of
from experiments.report import build_report
from experiments.report_of_sweep import means
from experiments.style import new_figure, style
from tests.experiments.browser import NAMES, Browser, browser_path
from tests.experiments.pages import PageReader
from tests.experiments.swept import write_sweep

EVIL = "<script>alert(1)</script>"
AXES = {
    "kv.allocator": ["orca-max", "paged"],
    "scheduler.long_prefill_token_threshold": [None, 32],
    "kv.block_size": [8, 16, 32],
}


@pytest.fixture(scope="session")
def reported(tmp_path_factory):
    folder = write_sweep(
        tmp_path_factory.mktemp("swept") / "limits", AXES, repeats=2, failing=[("orca-max", None, 8)], num_requests=30
    )
    return folder, build_report(folder)


@pytest.fixture
def own(reported, tmp_path, monkeypatch):
    """A copy that a test may change, with two figures only."""
    monkeypatch.setattr(report, "figures_of", lambda stored: [*figures_of(stored)[:1], FRONTIER])
    return shutil.copytree(reported[0], tmp_path / "limits")


def frame_of_axes(**axes):
    """A summary with one row a point."""
    table = pd.DataFrame({"x": [0]})
    for name, values in axes.items():
        table = table.merge(pd.DataFrame({name: values}), how="cross")
    return table.drop(columns="x").assign(seed=0, kv_live_frac=0.5)


def stored_as(folder, frame, axes):
    folder.mkdir()
    frame.to_csv(folder / "summary.csv", index=False)
    (folder / "manifest.json").write_text(json.dumps({"kind": "sweep", "axes": axes}))
    return Stored(folder)


# what it says ---------------------------------------------------------------------------------------------------------


def test_every_figure_is_drawn_with_its_numbers(reported):
    folder, built = reported
    assert built.errors == []
    drawn = {drawn.figure.name: drawn for drawn in built.figures if drawn.picture}
    assert set(drawn) >= {"swept_kv_live_frac", "swept_output_tok_per_s", "swept_mean_ttft_s", "swept_frontier"}
    numbers = pd.read_csv(drawn["swept_kv_live_frac"].numbers)
    summary = pd.read_csv(folder / "summary.csv")
    assert len(numbers) == len(summary) / 2 == 11
    assert numbers["kv_live_frac"].sum() == pytest.approx(summary["kv_live_frac"].sum() / 2)


def test_the_page_says_what_was_swept_and_what_failed(reported):
    page = PageReader(reported[1].path)
    assert "11 configurations (2 of allocator × 2 of long prefill token threshold × 3 of block size)" in page.text
    assert "finished in 22 runs; 2 cells failed." in page.text
    assert page.text.count("ValueError: it broke on purpose") == 2 * 2  # the list, and the manifest
    assert "axis scheduler.long_prefill_token_threshold unset, 32" in page.text
    assert "pagelab sweep --axis kv.allocator=orca-max,paged" in page.text
    assert "filled slots of referenced blocks / capacity" in page.text


def test_the_table_has_a_row_a_configuration_with_its_interval(reported):
    folder, _ = reported
    summary = pd.read_csv(folder / "summary.csv")
    table = pd.read_csv(folder / "tables" / "results.csv")
    assert len(table) == 11
    point = (table["kv.allocator"] == "paged") & (table["kv.block_size"] == 16)
    row = table[point & table["scheduler.long_prefill_token_threshold"].isna()].iloc[0]
    point = (summary["kv.allocator"] == "paged") & (summary["kv.block_size"] == 16)
    runs = summary[point & summary["scheduler.long_prefill_token_threshold"].isna()]["mean_tpot_s"]
    assert row["mean_tpot_s"] == pytest.approx(runs.mean())
    assert row["mean_tpot_s_ci95"] == pytest.approx(t95(1) * runs.std() / 2**0.5)
    tex = (folder / "tables" / "results.tex").read_text()
    assert tex.count(r" \\") == 12
    assert "% n = 30 requests a run" in tex


def test_the_same_folder_gives_the_same_bytes(own, tree):
    build_report(own)
    first = tree(own)
    build_report(own)
    assert tree(own) == first


def test_a_sweep_of_nothing_finished_says_so(own):
    summary = pd.read_csv(own / "summary.csv")
    summary.iloc[:0].to_csv(own / "summary.csv", index=False)
    built = build_report(own)
    page = PageReader(built.path)
    assert (built.errors, page.faults) == ([], [])
    assert "No cell of this sweep finished" in page.text


def test_text_from_files_is_only_ever_text(own):
    manifest = json.loads((own / "manifest.json").read_text())
    manifest |= {"experiment": EVIL, "notes": [EVIL], "argv": ["pagelab", EVIL]}
    manifest["axes"][EVIL] = [EVIL]
    (own / "manifest.json").write_text(json.dumps(manifest))
    path = build_report(own).path
    assert PageReader(path).faults == []
    assert EVIL not in path.read_text()


# which axis goes where ------------------------------------------------------------------------------------------------


def test_axes_find_their_places_and_no_mean_is_over_conditions(tmp_path):
    axes = {
        "kv.allocator": ["orca-max", "paged"],
        "w.rate": [1, 2, 4, 8],
        "s.limit": [16, 32, 64],
        "kv.dtype": ["a", "b"],
    }
    layout = layout_of(stored_as(tmp_path / "a", frame_of_axes(**axes), axes))
    choice = layout.choice
    assert (choice.var_x, choice.curve_by, choice.col_by, choice.row_by) == (
        "w.rate",
        ("kv.allocator",),
        "s.limit",
        "kv.dtype",
    )
    assert layout.left_out == ()
    fifth = {**axes, "s.seqs": [1, 2]}
    layout = layout_of(stored_as(tmp_path / "b", frame_of_axes(**fifth), fifth))
    keys = [layout.choice.var_x, *layout.choice.curve_by, layout.choice.col_by, layout.choice.row_by]
    assert len(layout.rows) == len(layout.rows[keys].drop_duplicates())
    assert len(layout.left_out) == 1


def test_an_axis_of_very_many_values_is_thinned_and_said(tmp_path):
    axes = {"w.rate": list(range(1, 31)), "kv.allocator": ["paged"], "s.limit": list(range(20)), "s.k": ["a", "b"]}
    layout = layout_of(stored_as(tmp_path / "a", frame_of_axes(**axes), axes))
    assert layout.choice.var_x == "w.rate"
    assert layout.rows["s.limit"].nunique() <= 9
    assert "of 20 values; the others are in summary.csv" in " ".join(layout.left_out)


@pytest.mark.parametrize(
    "sizes,shown",
    [
        (["64KiB", "128KiB", "2MiB"], ("64 KiB", "128 KiB", "2 MiB")),
        ([65536, 131072, 2097152], ("64 KiB", "128 KiB", "2 MiB")),
        (["64KiB", "192KiB"], ("64 KiB", "192 KiB")),
    ],
)
def test_a_sweep_over_sizes_of_pages_has_these_across_and_not_what_follows_from_them(tmp_path, sizes, shown):
    """The block size of `virtual` follows from the page: it varies, and is no axis."""
    axes = {"kv.allocator": ["paged", "virtual"], "kv.page_bytes": sizes}
    frame = frame_of_axes(**axes)
    follows = [size // 64 for size in by_size(frame["kv.page_bytes"]).astype(int)]
    frame = frame.assign(allocator=frame["kv.allocator"], block_size=follows)
    frame.loc[frame["allocator"] == "paged", "block_size"] = 16
    stored = stored_as(tmp_path / "a", frame, axes)
    layout = layout_of(stored)
    keys = (layout.choice.var_x, layout.choice.curve_by, layout.choice.col_by, layout.choice.row_by)
    assert keys == ("kv.page_bytes", ("kv.allocator",), None, None)
    across = Horizontal.of(stored.summary["kv.page_bytes"])
    assert (across.scale, across.labels) == ("log2", shown)
    assert across.places(stored.summary["kv.page_bytes"]).tolist() == by_size(frame["kv.page_bytes"]).tolist()


@pytest.mark.parametrize("name,values", [("kv.block_size", [8, 24]), ("kv.block_size", [1, 10, 100]), ("x", [1, 2, 4])])
def test_sizes_and_powers_of_two_are_on_a_log2_axis(name, values):
    assert Horizontal.of(pd.Series(values, name=name)).scale == "log2"
    assert Horizontal.of(pd.Series(values, name=name), "linear").scale == "linear"


@pytest.mark.parametrize("name,values", [("x", [1, 2, 3]), ("x", [1, 2]), ("kv.block_size", [8]), ("x", [0, 1, 2])])
def test_other_numbers_are_on_a_linear_axis(name, values):
    assert Horizontal.of(pd.Series(values, name=name)).scale == "linear"


def test_labels_of_very_many_sizes_leave_room_and_keep_both_ends(tmp_path):
    axes = {"kv.block_size": list(range(1, 65))}
    stored = stored_as(tmp_path / "a", frame_of_axes(**axes), axes)
    with style():
        canvas = new_figure(4, 3)
        figures_of(stored)[0].draw(stored, canvas)
    labels = [int(text.get_text()) for text in canvas.axes[0].get_xticklabels()]
    assert (labels[0], labels[-1]) == (1, 64)
    assert 6 < len(labels) <= MOST_TICKS + 1
    assert set(labels) <= set(axes["kv.block_size"])


def test_of_zipped_axes_one_is_shown_and_no_curve_has_a_single_point(tmp_path):
    pairs = pd.DataFrame({"kv.block_size": [8, 16, 32], "kv.num_blocks": [400, 300, 100]})
    frame = pairs.merge(pd.DataFrame({"kv.allocator": ["orca-max", "paged"]}), how="cross")
    axes = {name: list(dict.fromkeys(frame[name])) for name in frame}
    stored = stored_as(tmp_path / "a", frame.assign(seed=0, kv_live_frac=0.5, block_size=16), axes)
    stored.manifest["zip"] = [["kv.block_size", "kv.num_blocks"]]
    choice = layout_of(stored).choice
    assert (choice.var_x, choice.curve_by, choice.col_by) == ("kv.block_size", ("kv.allocator",), None)
    assert (
        "6 configurations (3 of block size with num blocks × 2 of allocator) finished"
        in answer(stored, means(stored))[0]
    )


# the verb, and the manifest -------------------------------------------------------------------------------------------


def test_the_verb_enters_what_it_made_into_the_manifest(own, pagelab):
    assert pagelab("report", own).code == 0
    derived = json.loads((own / "manifest.json").read_text())["derived_files"]
    assert {"report.html", "tables/results.tex", "figures/swept_frontier.png"} <= set(derived)


# the page by itself ---------------------------------------------------------------------------------------------------


def test_the_page_stands_alone(reported):
    page = PageReader(reported[1].path)
    assert page.faults == []
    assert {"tables/results.tex", "tables/results.csv", "summary.csv"} <= set(page.links)


@pytest.mark.parametrize(
    "old,new,fault",
    [
        ("<body>", "<body><script>1</script>", "<script> in a page"),
        ('href="#setup"', 'href="#nowhere"', "#nowhere leads nowhere"),
        ('href="summary.csv"', 'href="lost.csv"', "no such file beside the page"),
        ('href="summary.csv"', 'href="../secret"', "no such file beside the page"),
        ('href="summary.csv"', 'href="https://example.org/a"', "leads out of the folder"),
        ("data:image/png;base64,", "figures/a.png?", "a picture that is not in the page"),
        ("</table>", "", "closes something else"),
        ("<h1>", '<h1 onclick="x()">', "with a script"),
        ("<style>", "<style>@import 'a';", "the style asks for something outside"),
        ('id="setup"', 'id="figures"', "id 'figures' twice"),
    ],
)
def test_the_reader_of_pages_finds_what_is_planted(own, old, new, fault):
    page = own / "report.html"
    text = page.read_text()
    assert old in text
    page.write_text(text.replace(old, new, 1))
    assert any(fault in found for found in PageReader(page).faults)


# in a browser ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def browser(tmp_path):
    program = browser_path()
    if program is None:
        pytest.skip(f"no browser is installed (looked for {', '.join(NAMES)}); the strict reader above always runs")
    made = Browser(program, tmp_path)
    yield made
    made.close()


def test_a_browser_without_a_network_opens_the_report_and_follows_its_links(reported, browser):
    path = reported[1].path
    browser.open(path)
    assert browser.complaints() == []
    assert [url for url in browser.requested() if not url.startswith(("file:", "data:"))] == []
    pictures = browser.value_of("[...document.images].map(i => [i.complete, i.naturalWidth])")
    assert len(pictures) >= 5
    assert all(complete and width > 500 for complete, width in pictures)
    links = browser.value_of("[...document.links].map(a => a.getAttribute('href'))")
    assert links == PageReader(path).links
    for place, link in enumerate(links):
        browser.events.clear()
        browser.value_of(f"document.links[{place}].click()")
        if link.startswith("#"):
            assert browser.value_of("location.hash") == link
            assert browser.value_of("document.querySelector(location.hash) !== null")
        else:
            follow(browser, path.parent / link)
        assert browser.complaints() == []
        if not link.startswith("#"):
            browser.open(path)


def follow(browser, target):
    """A table is saved, byte for byte, or shown as its text."""
    came = browser.wait_for_any(
        ("Browser.downloadWillBegin", lambda params: params["url"] == target.as_uri()),
        ("Page.frameNavigated", lambda params: params["frame"]["url"] == target.as_uri()),
    )
    if "guid" not in came:
        browser.wait_for("Page.frameStoppedLoading")
        assert browser.value_of("document.body.innerText").strip() == target.read_text("utf-8").strip()
        return
    ended = browser.wait_for(
        "Browser.downloadProgress", lambda params: params["guid"] == came["guid"] and params["state"] != "inProgress"
    )
    assert ended["state"] == "completed"
    assert Path(ended["filePath"]).read_bytes() == target.read_bytes()


def test_a_browser_complains_of_what_is_planted(own, browser):
    page = own / "report.html"
    text = page.read_text()
    page.write_text(text.replace("<h1>", '<h1 onclick="x()"><img src="http://example.org/a.png">', 1))
    browser.open(page)
    assert browser.complaints() != []
