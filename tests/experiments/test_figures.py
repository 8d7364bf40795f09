import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex

from experiments.figures import (
    FIGURES,
    batched_requests,
    by_block_size,
    external_fragmentation,
    free_extents,
    latency_ecdf,
    memory_map,
    memory_map_text,
    slot_states,
    trace_lengths,
    waste_breakdown,
)
from experiments.figures.block_size import unequal_pools
from experiments.figures.memory import gaps
from experiments.style import ALLOCATOR_LOOKS, PAPER_STATES, STRICT_STATES, in_order, look_of, new_figure, save, style

STRICT = ["live", "reserved", "internal_reserve", "internal_roundup", "external_hole", "external_short", "free"]


@pytest.fixture
def ax():
    with style():
        yield new_figure(6.9, 2.5).subplots()


def summary_row(allocator, seed, live, block_size=16, **more):
    rest = (1 - live) / 6
    row = {"allocator": allocator, "seed": seed, "block_size": block_size, "mean_batch_size": 10 * live}
    row |= {f"kv_{name}_frac": rest for name in STRICT} | {"kv_live_frac": live}
    row |= {"kv_internal_frac": 2 * rest, "kv_external_frac": 2 * rest}
    row |= {f"iter_paper_{name}_frac": (1 - live) / 3 for name in ("reserved", "internal", "external")}
    return row | {"iter_paper_token_frac": live, "iter_mean_batch_size": 10 * live + 0.5, **more}


@pytest.fixture
def summary():
    return pd.DataFrame(
        [
            summary_row("paged", 0, 0.90),
            summary_row("paged", 1, 0.94),
            summary_row("orca-max", 0, 0.20),
            summary_row("orca-max", 1, 0.30),
            summary_row("mine", 0, 0.5),
        ]
    )


@pytest.fixture
def requests():
    return pd.DataFrame(
        {
            "status": ["finished", "finished", "finished", "unfinished"],
            "arrival_s": [0.0, 1.0, 2.0, 3.0],
            "first_token_s": [1.0, 3.0, 6.0, 4.0],
            "finish_s": [2.0, 6.0, 6.0, np.nan],
            "num_output_tokens": [11, 31, 1, 5],
        }
    )


def regions(*rows):
    return pd.DataFrame(rows, columns=["time_s", "start_block", "num_blocks", "owner"])


POOL = regions(
    (0.0, 0, 1, -4), (0.0, 1, 8, -1),
    (2.0, 0, 1, -4), (2.0, 1, 3, 7), (2.0, 4, 1, -1), (2.0, 5, 1, -2), (2.0, 6, 1, -3), (2.0, 7, 1, -1), (2.0, 8, 1, 9),
)  # fmt: skip


# colours --------------------------------------------------------------------------------------------------------------


def test_each_allocator_has_its_okabe_ito_colour():
    colours = {name: look.colour for name, look in ALLOCATOR_LOOKS.items()}
    assert colours == {
        "orca-max": "#D55E00",
        "orca-pow2": "#E69F00",
        "orca-oracle": "#CC79A7",
        "paged": "#0072B2",
        "fastertransformer": "#000000",
        "virtual": "#009E9E",  # a teal: the set's other colours are those of slot states
    }


def test_another_allocators_look_depends_on_its_name_alone():
    first = look_of("contiguous-max-best-fit")
    look_of("something-else")
    assert look_of("contiguous-max-best-fit") == first
    assert (first.colour, first.hatch, first.marker) == ("#009E73", "++", "P")
    assert first.colour not in {look.colour for look in ALLOCATOR_LOOKS.values()}


def test_no_slot_state_has_an_allocators_colour():
    states = {state.colour for state in (*STRICT_STATES, *PAPER_STATES)}
    assert not states & {look.colour for look in ALLOCATOR_LOOKS.values()}


def test_bars_and_lines_of_an_allocator_have_the_same_colour(summary, ax):
    batched_requests(summary, ax)
    bars = [to_hex(bar.get_facecolor()).upper() for bar in ax.patches]
    assert bars == [look_of(name).colour.upper() for name in ("orca-max", "mine", "paged")]


def test_the_order_is_the_papers_with_paged_last():
    assert in_order(["paged", "zeta", "orca-oracle", "alpha", "orca-max"]) == [
        "orca-max",
        "orca-oracle",
        "alpha",
        "zeta",
        "paged",
    ]


def test_fonts_are_embedded_as_outlines_and_names_are_not_mathematics():
    import matplotlib

    with style():
        assert matplotlib.rcParams["pdf.fonttype"] == 42
        assert matplotlib.rcParams["text.parse_math"] is False


# bars -----------------------------------------------------------------------------------------------------------------


def test_waste_is_the_mean_over_seeds_with_its_sd_and_sums_to_the_capacity(summary, ax):
    plotted = waste_breakdown(summary, ax).set_index("allocator")
    assert list(plotted.index) == ["orca-max", "mine", "paged"]
    assert plotted.loc["paged", "kv_live_frac"] == pytest.approx(0.92)
    assert plotted.loc["paged", "kv_live_frac_sd"] == pytest.approx(np.std([0.90, 0.94], ddof=1))
    assert np.isnan(plotted.loc["mine", "kv_live_frac_sd"])
    assert plotted[[f"kv_{name}_frac" for name in STRICT]].sum(axis=1).to_numpy() == pytest.approx(1.0)
    assert sum(bar.get_width() for bar in ax.patches) == pytest.approx(3.0)
    assert ax.get_xlim() == (0, 1)


def test_the_papers_accounting_reads_the_means_over_iterations(summary, ax):
    plotted = waste_breakdown(summary, ax, accounting="paper").set_index("allocator")
    assert plotted.loc["orca-max", "iter_paper_token_frac"] == pytest.approx(0.25)
    assert plotted.loc["orca-max", "iter_paper_external_frac"] == pytest.approx(0.25)


def test_batched_requests_start_at_zero_and_show_both_means(summary, ax):
    plotted = batched_requests(summary, ax).set_index("allocator")
    assert plotted.loc["orca-max", "mean_batch_size"] == pytest.approx(2.5)
    assert plotted.loc["orca-max", "iter_mean_batch_size"] == pytest.approx(3.0)
    assert plotted.loc["orca-max", "num_runs"] == 2
    assert ax.get_xlim()[0] == 0


def test_block_sizes_are_on_a_base_two_axis_that_names_them():
    frame = pd.DataFrame([summary_row("paged", s, 0.9 - b / 1000, b) for s in (0, 1) for b in (8, 16, 64)])
    with style():
        axes = list(new_figure(6.9, 2.5).subplots(1, 2))
        plotted = by_block_size(frame, axes)
    assert [label.get_text() for label in axes[0].get_xticklabels()] == ["8", "16", "64"]
    assert axes[0].get_xscale() == "log"
    assert all(ax.get_ylim()[0] == 0 for ax in axes)
    rest = (1 - (0.9 - 0.064)) / 6
    assert plotted.loc[plotted["block_size"] == 64, "kv_waste_frac"].item() == pytest.approx(5 * rest)
    assert list(plotted["num_runs"]) == [2, 2, 2]


# time -----------------------------------------------------------------------------------------------------------------


def timeline(num_bins):
    frame = pd.DataFrame({"time_s": np.arange(num_bins) * 1.0, "duration_s": 1.0})
    live = np.linspace(0.1, 0.9, num_bins)
    for name in STRICT:
        frame[f"kv_{name}_frac"] = live if name == "live" else (1 - live) / 6
    return frame.assign(
        kv_external_frac=frame["kv_external_hole_frac"] + frame["kv_external_short_frac"],
        external_fragmentation_index=0.25,
    )


def test_slot_states_join_bins_without_changing_the_mean(ax):
    frame = timeline(500)
    plotted = slot_states(frame, ax)
    assert len(plotted) <= 180
    whole = (plotted["kv_live_frac"] * plotted["duration_s"]).sum()
    assert whole == pytest.approx((frame["kv_live_frac"] * frame["duration_s"]).sum())
    assert plotted["duration_s"].sum() == pytest.approx(500)
    assert ax.get_ylim() == (0, 1)


def test_slot_states_of_few_bins_are_the_bins_themselves(ax):
    frame = timeline(5)
    plotted = slot_states(frame, ax)
    assert plotted["kv_live_frac"].to_numpy() == pytest.approx(frame["kv_live_frac"].to_numpy())


def test_fragmentation_is_joined_from_its_sums_not_averaged(ax):
    frame = timeline(120)
    frame["kv_external_frac"] = np.where(np.arange(120) % 2, 0.1, 0.3)
    frame["kv_free_frac"] = 0.0
    frame["external_fragmentation_index"] = np.where(np.arange(120) % 2, 0.5, 0.0)
    plotted = external_fragmentation({"paged": frame}, ax)
    largest, free = 0.3 + 0.5 * 0.1, 0.3 + 0.1
    assert plotted["external_fragmentation_index"].to_numpy() == pytest.approx(1 - largest / free)
    assert ax.lines[0].get_color() == look_of("paged").colour


# latencies ------------------------------------------------------------------------------------------------------------


def test_the_ecdf_is_over_finished_requests(requests, ax):
    plotted = latency_ecdf({"paged": requests}, ax, "ttft_s", saturated={"paged"})
    assert list(plotted["ttft_s"]) == [1.0, 2.0, 4.0]
    assert list(plotted["share"]) == pytest.approx([1 / 3, 2 / 3, 1])
    assert "simulated" in ax.get_xlabel()
    assert ax.get_legend_handles_labels()[1] == ["paged (saturated)"]


def test_tpot_needs_two_tokens(requests, ax):
    plotted = latency_ecdf({"paged": requests}, ax, "tpot_s")
    assert list(plotted["tpot_s"]) == pytest.approx([0.1, 0.1])


def test_repeats_are_lines_of_their_own_under_one_name(requests, ax):
    both = pd.concat([requests.assign(seed=0), requests.assign(seed=1)])
    plotted = latency_ecdf({"paged": both, "orca-max": requests.assign(seed=0)}, ax)
    assert plotted.groupby(["allocator", "seed"]).size().tolist() == [3, 3, 3]
    assert ax.get_legend_handles_labels()[1] == ["orca-max", "paged"]
    assert len(ax.lines) == 3


def test_a_latency_that_is_not_known_is_refused(requests, ax):
    with pytest.raises(ValueError, match="unknown latency 'e2e'"):
        latency_ecdf({"paged": requests}, ax, "e2e")


# memory ---------------------------------------------------------------------------------------------------------------


def test_the_map_paints_free_blocks_white_and_each_request_in_one_colour(ax):
    plotted = memory_map(POOL, ax, 8)
    image = ax.images[0].get_array()
    assert image.shape[0] == 8
    assert (image[:, 0] == 1.0).all()
    last = image[:, -1]
    assert (last[0] == last[2]).all()
    assert (last[3] == 1.0).all()
    assert (last[5] == 0.0).all()
    assert not (last[0] == last[7]).all()
    assert len(plotted) == len(POOL)


def test_a_snapshot_is_drawn_no_wider_than_one_and_a_half_spacings(ax):
    times = (10.0, 11.0, 12.0, 20.0, 21.0)
    assert gaps(np.array(times)) == [(13.5, 20.0)]
    assert gaps(np.array([0.0, 2.0])) == []
    memory_map(regions((0.0, 1, 8, -1), *((time, 1, 8, 3) for time in times)), ax, 8)
    assert ax.images[0].get_extent()[0] == 10.0, "the empty pool at the start is left out"
    assert len(ax.patches) == 1


def test_unequal_pools_are_said():
    rows = [summary_row("paged", 0, 0.9, 16, capacity_tokens=4000), summary_row("paged", 0, 0.9, 256)]
    rows[1]["capacity_tokens"] = 3840
    assert unequal_pools(pd.DataFrame(rows)).endswith("token slots 4,000 at 16, 3,840 at 256.")
    assert unequal_pools(pd.DataFrame(rows[:1])) == ""


def test_free_runs_join_free_and_cached_blocks(ax):
    plotted = free_extents(POOL, ax, num_blocks=8)
    assert plotted.values.tolist() == [[0.0, 3, 1, 8], [2.0, 0, 1, 1], [2.0, 1, 1, 2]]


def test_the_text_map_gives_letters_in_order_of_address():
    text = memory_map_text(POOL, 5.0, 8, width=4).splitlines()
    assert text[:2] == ["1 AAA.", "5 ,#.B"]
    assert text[2].startswith("t = 2.000 s, 1 block a character, 37.5% free: letters are 2 requests")


def test_the_text_map_takes_the_last_snapshot_before_the_time_and_the_majority_of_a_bucket():
    assert memory_map_text(POOL, 1.9, 8, width=8).splitlines()[0] == "1 ........"
    many = regions((0.0, 1, 20, 3), (0.0, 21, 12, -1))
    assert memory_map_text(many, 0.0, 32, width=1).splitlines()[:16] == [f"{i:>2} A" for i in range(1, 20, 2)] + [
        f"{i:>2} ." for i in range(21, 32, 2)
    ]


def test_the_text_map_has_escape_codes_only_if_asked():
    assert "\x1b" not in memory_map_text(POOL, 5.0, 8, width=4)
    assert memory_map_text(POOL, 5.0, 8, width=4, colour=True).splitlines()[0] == "1 \x1b[31mAAA\x1b[0m."


@pytest.mark.parametrize("frame,width", [(POOL, 0), (regions(), 8)])
def test_a_map_of_nothing_is_refused(frame, width):
    with pytest.raises(ValueError, match=r"positive sizes|no snapshots"):
        memory_map_text(frame, 0.0, 8, width)


# lengths --------------------------------------------------------------------------------------------------------------


def test_every_length_falls_into_one_bin(ax):
    lengths = np.random.default_rng(0).integers(1, 2049, (2, 500))
    frame = pd.DataFrame({"num_prompt_tokens": lengths[0], "num_output_tokens": lengths[1]})
    plotted = trace_lengths(frame, ax)
    assert plotted[["num_prompt", "num_output"]].sum().tolist() == [500, 500]
    assert plotted[["prompt_frac", "output_frac"]].sum().to_numpy() == pytest.approx([1, 1])
    assert ax.get_xscale() == "log"


# files ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_a_figure_gives_the_same_bytes_twice(summary, tmp_path, suffix):
    for name in ("a", "b"):
        with style():
            canvas = new_figure(3.33, 2.0)
            batched_requests(summary.replace("mine", "$x_{$"), canvas.subplots())
            save(canvas, tmp_path / f"{name}{suffix}")
    assert (tmp_path / f"a{suffix}").read_bytes() == (tmp_path / f"b{suffix}").read_bytes()


def test_the_standard_figures_say_what_to_see_and_where_the_paper_has_them():
    assert list(FIGURES) == [figure.name for figure in FIGURES.values()]
    assert all(figure.claim.endswith(".") and figure.paper.endswith(".") for figure in FIGURES.values())
