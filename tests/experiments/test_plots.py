"""`plot`: any column over any other, of comparisons and sweeps; frontiers, tables, the paper's style."""

import math
import shutil

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgb
from PIL import Image

from experiments.figures.curves import Horizontal
from experiments.figures.intervals import t95
from experiments.figures.labels import axis_label
from experiments.figures.looks import looks_of, nth_look
from experiments.figures.plots import Plot, draw_plot, small_samples
from experiments.figures.spec import NothingToDrawError
from experiments.figures.stored import Stored
from experiments.figures.variables import Choice, draw_facets
from experiments.style import COLUMN_IN, PAGE_IN, new_figure, style
from tests.experiments.swept import write_sweep


@pytest.fixture
def canvas():
    with style():
        yield new_figure(6.9, 3.0)


@pytest.fixture(scope="session")
def sweep(tmp_path_factory):
    """Two allocators, a limit that is unset or 32, two block sizes; two repeats; one cell failed."""
    axes = {
        "kv.allocator": ["orca-max", "paged"],
        "scheduler.long_prefill_token_threshold": [None, 32],
        "kv.block_size": [8, 32],
    }
    folder = tmp_path_factory.mktemp("sweeps") / "limits"
    return write_sweep(folder, axes, repeats=2, failing=[("orca-max", 32, 8)])


@pytest.fixture
def own(sweep, tmp_path):
    """A copy that a test may write into."""
    return shutil.copytree(sweep, tmp_path / "sweep")


def frame_of(**columns):
    return pd.DataFrame(columns)


def plot_of(folder, path, *, rows=None, look="screen", **choice):
    stored = Stored(folder)
    given = Choice(**{"var_x": "block_size", "var_y": "kv_live_frac", "curve_by": ("allocator",)} | choice)
    made = given.on(stored.summary)
    return stored, Plot(made, stored.summary if rows is None else rows, path, look)


# axes and curves ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "values,scale",
    [
        ([1, 2, 4, 256], "log2"),
        ([8, 16], "linear"),
        ([8, 16, 24], "linear"),
        ([0, 1, 2], "linear"),
        ([0.5, 1, 2], "log2"),
    ],
)
def test_three_powers_of_two_make_the_axis_binary(values, scale):
    assert Horizontal.of(pd.Series(values, name="x")).scale == scale


def test_a_binary_axis_names_its_values(canvas):
    draw_facets(frame_of(x=[8, 16, 64], y=[1.0, 2.0, 3.0]), Choice("x", "y"), canvas)
    (ax,) = canvas.axes
    assert ax.get_xscale() == "log"
    assert [label.get_text() for label in ax.get_xticklabels()] == ["8", "16", "64"]


def test_a_scale_that_the_values_do_not_have_is_refused():
    with pytest.raises(ValueError, match="'x' is 0 somewhere"):
        Horizontal.of(pd.Series([0, 1], name="x"), "log2")
    with pytest.raises(ValueError, match="values that are no numbers"):
        Horizontal.of(pd.Series(["a", "b"], name="x"), "log")


def test_a_missing_x_becomes_a_category(canvas):
    draw_facets(frame_of(x=[32.0, None], y=[2.0, 1.0]), Choice("x", "y"), canvas)
    (ax,) = canvas.axes
    assert [label.get_text() for label in ax.get_xticklabels()] == ["unset", "32"]
    assert all(line.get_linestyle() == "None" for line in ax.lines if line.get_label() == "all")


def test_bands_are_the_intervals_and_latencies_say_simulated(canvas):
    frame = frame_of(allocator=["paged"] * 4, rate=[1.0, 1.0, 2.0, 2.0], mean_ttft_s=[1.0, 3.0, 2.0, 2.0])
    table = draw_facets(frame, Choice("rate", "mean_ttft_s", ("allocator",)), canvas)
    (ax,) = canvas.axes
    (band,) = ax.collections
    half = t95(1) * math.sqrt(2) / math.sqrt(2)
    assert table["mean_ttft_s_ci95"].tolist() == pytest.approx([half, 0.0])
    corners = band.get_paths()[0].vertices
    assert (corners[:, 1].min(), corners[:, 1].max()) == pytest.approx((2 - half, 2 + half))
    assert ax.get_ylabel() == "TTFT (s, simulated)"
    assert ax.lines[0].get_color() == "#0072B2"


def test_one_run_a_point_has_no_band(canvas):
    draw_facets(frame_of(x=[1, 2], y=[1.0, 2.0]), Choice("x", "y"), canvas)
    assert not canvas.axes[0].collections


def test_panels_are_rows_times_columns_and_every_row_is_in_one(canvas):
    frame = frame_of(
        x=[1, 2] * 6, y=np.arange(12.0), r=["a"] * 6 + [None] * 6, c=[1, 1, 2, 2, 3, 3] * 2, allocator=["paged"] * 12
    )
    table = draw_facets(frame, Choice("x", "y", ("allocator",), row_by="r", col_by="c"), canvas)
    assert len(canvas.axes) == 6
    drawn = sorted(float(y) for ax in canvas.axes for line in ax.lines for y in line.get_ydata())
    assert drawn == list(range(12)) == sorted(table["y"])
    assert [ax.get_title("left") for ax in canvas.axes[:3]] == ["c = 1", "c = 2", "c = 3"]
    assert [text.get_text() for ax in canvas.axes for text in ax.texts] == ["r = unset", "r = a"]


def test_more_than_three_columns_alone_are_wrapped(canvas):
    frame = frame_of(x=[1] * 5, y=[1.0] * 5, c=[1, 2, 3, 4, 5])
    draw_facets(frame, Choice("x", "y", col_by="c"), canvas)
    assert [ax.get_title("left") for ax in canvas.axes] == [f"c = {n}" for n in (1, 2, 3, 4, 5)]


@pytest.mark.parametrize(
    "choice,said",
    [
        ({"row_by": "x"}, "'x' is asked for twice"),
        ({"row_by": "c", "col_by": "c"}, "'c' is asked for twice"),
        ({"var_y": "c"}, "'c' is not a number in every row"),
    ],
)
def test_a_choice_that_cannot_be_drawn_is_refused(choice, said):
    with pytest.raises(ValueError, match=said):
        Choice(**{"var_x": "x", "var_y": "y"} | choice).on(frame_of(x=[1], y=[1.0], c=["a"]))


def test_curves_look_different_in_colour_and_in_grey():
    looks = [nth_look(place) for place in range(36)]
    assert len({(look.line, look.marker) for look in looks}) == len(looks)
    frame = frame_of(allocator=["paged", "paged", "orca-max"], limit=[None, 32, None])
    made = looks_of(frame, ["allocator", "limit"])
    assert list(made) == ["orca-max, unset", "paged, unset", "paged, 32"]
    assert made["paged, unset"].colour == made["paged, 32"].colour
    assert made["paged, unset"].marker == made["orca-max, unset"].marker != made["paged, 32"].marker


@pytest.mark.parametrize(
    "column,label",
    [
        ("kv.block_size", "block size (tokens)"),
        ("kv_live_frac", "live (fraction)"),
        ("p99_ttft_s", "p99 TTFT (s, simulated)"),
        ("median_s", "median (s)"),
        ("flop_per_s", "flop (1/s)"),
        ("makespan_s", "makespan (s, simulated)"),
        ("mean_host_gap_s", "host gap (s)"),
        ("kv.victim", "victim"),
    ],
)
def test_every_axis_has_words_and_its_unit(column, label):
    assert axis_label(column) == label


# files ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".png", ".pdf", ".svg", ".tex"])
@pytest.mark.parametrize("look", ["screen", "paper"])
def test_a_plot_gives_the_same_bytes_twice_and_tells_where_it_is_from(sweep, tmp_path, suffix, look, monkeypatch):
    for name, epoch in (("a", "0"), ("b", "1700000000")):
        monkeypatch.setenv("SOURCE_DATE_EPOCH", epoch)
        rows = None if suffix == ".tex" else "long_prefill_token_threshold"
        draw_plot(*plot_of(sweep, tmp_path / f"{name}{suffix}", look=look, row_by=rows))
    first, second = ((tmp_path / f"{name}{suffix}").read_bytes() for name in ("a", "b"))
    assert first == second
    if suffix == ".png":
        first = Image.open(tmp_path / "a.png").text["Description"].encode()
    for part in ("0123456789ab", "simulated", "pagelab sweep --axis", "seeds 16"):
        assert part.encode("utf-16-be" if suffix == ".pdf" else "utf-8") in first


def test_the_numbers_beside_a_plot_are_the_means_of_the_summary(sweep, tmp_path):
    stored, plot = plot_of(sweep, tmp_path / "a.png", curve_by=("allocator", "long_prefill_token_threshold"))
    draw_plot(stored, plot)
    written = pd.read_csv(tmp_path / "a.csv")
    keys = ["kv.allocator", "scheduler.long_prefill_token_threshold", "kv.block_size"]
    means = pd.read_csv(sweep / "summary.csv").groupby(keys, dropna=False)["kv_live_frac"].mean()
    assert len(written) == len(means) == 7
    assert sorted(written["kv_live_frac"]) == pytest.approx(sorted(means))


@pytest.mark.parametrize("columns,width", [(None, COLUMN_IN), ("long_prefill_token_threshold", PAGE_IN)])
def test_the_papers_style_has_the_widths_of_its_columns_and_editable_fonts(sweep, tmp_path, columns, width):
    draw_plot(*plot_of(sweep, tmp_path / "a.pdf", look="paper", col_by=columns))
    data = (tmp_path / "a.pdf").read_bytes()
    assert f"/MediaBox [ 0 0 {72 * width:.6g}".encode() in data
    assert b"/Subtype /Type42" in data or b"/CIDFontType2" in data
    assert b"/Type3" not in data
    assert b"STIX" in data


def test_curves_of_a_plot_can_be_told_apart_without_colours(sweep, tmp_path, canvas):
    plot = plot_of(sweep, tmp_path / "a.png", curve_by=("allocator", "long_prefill_token_threshold"))[1]
    draw_facets(plot.rows, plot.choice, canvas)
    lines = [line for line in canvas.axes[0].lines if line.get_marker() not in ("None", None, "")]
    looks = {(line.get_marker(), str(line.get_linestyle()), round(sum(to_rgb(line.get_color())), 3)) for line in lines}
    assert len(looks) == len(lines) == 4


def test_a_group_of_nothing_is_no_picture(sweep, tmp_path):
    rows = Stored(sweep).summary.assign(kv_live_frac=math.nan)
    with pytest.raises(NothingToDrawError, match="kv_live_frac has no value in any of these 14 rows"):
        draw_plot(*plot_of(sweep, tmp_path / "a.png", rows=rows))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("column,flagged", [("p99_ttft_s", True), ("p95_ttft_s", False), ("mean_ttft_s", False)])
def test_percentiles_of_too_few_requests_are_flagged(sweep, column, flagged):
    """Forty finished requests are enough for p95 and too few for p99."""
    said = small_samples(Stored(sweep).summary, [column])
    assert bool(said) is flagged
    assert all("below 100" in text for text in said)


# the verb -------------------------------------------------------------------------------------------------------------


def test_plots_of_a_sweep_from_the_command_line(own, pagelab, strict_object):
    words = ("--var-x", "block_size", "--col-by", "long_prefill_token_threshold", "--json")
    answer = strict_object(pagelab("plot", own, *words).out)
    assert answer["failed_figures"] == []
    assert {point["scheduler.long_prefill_token_threshold"] for point in answer["points"]} == {None, 32}
    assert (own / "figures" / "kv_live_frac-by-block_size.png").stat().st_size > 1000


def test_a_dry_run_names_the_figures_and_writes_nothing(own, pagelab, strict_object, tree):
    before = tree(own)
    words = ("plot", own, "--fig-by", "long_prefill_token_threshold", "--dry-run")
    answer = strict_object(pagelab(*words, "--json").out)
    assert [figure["figure"].rpartition("-")[2] for figure in answer["figures"]] == ["unset.png", "32.png"]
    assert [figure["points"] for figure in answer["figures"]] == [4, 3]
    assert len(pagelab(*words).out.splitlines()) == 2
    assert tree(own) == before


def test_a_mean_over_conditions_is_said(own, pagelab):
    done = pagelab("plot", own, "--curve-by", "none")
    assert done.code == 0
    assert "each point is a mean over kv.allocator and scheduler.long_prefill_token_threshold too" in done.err


def test_a_frontier_and_a_table_from_the_command_line(own, pagelab, tmp_path):
    goals = "max:output_tok_per_s,min:mean_tpot_s"
    assert pagelab("plot", own, "--pareto", goals, "--style", "paper").code == 0
    assert (own / "figures" / "pareto-max-output_tok_per_s-min-mean_tpot_s.pdf").exists()
    assert pagelab("plot", own, "--pareto", goals, "-o", "t.tex").code == 3
    done = pagelab("plot", own, "--filter-by", "long_prefill_token_threshold=unset", "-o", "t.tex")
    assert done.code == 0, done.err
    assert r"block size (tokens) & orca-max & paged \\" in (tmp_path / "t.tex").read_text()


@pytest.mark.parametrize(
    "words,said",
    [
        (("--filter-by", "block_size=64"), "no row has block_size=64; block_size is 8, 32"),
        (("--row-by", "blok_size"), "did you mean"),
        (("--scale-x", "cubic"), "Invalid value"),
        (("-o", "a.bmp"), "a picture ends in .png, .pdf, .svg, a table in .tex"),
        (("--pareto", "max:x"), "--pareto takes two goals"),
    ],
)
def test_what_cannot_be_plotted_is_exit_2_and_writes_nothing(own, pagelab, words, said, tree):
    before = tree(own)
    done = pagelab("plot", own, *words)
    assert done.code == 2
    assert said in done.err
    assert tree(own) == before
