"""The table for people, and its one sentence."""

from rich.console import Console

from experiments.comparison_table import COLUMNS, mean_sd, table, verdict, window_notes


def row(allocator, live, batch, *, size=16, seed=0, saturated=False, **other):
    values = dict.fromkeys((column.key for column in COLUMNS), 0.5)
    counts = {"num_finished": 9, "num_truncated": 0, "num_rejected": 0, "num_preemptions": 2_100, "kv_free_frac": 0.01}
    known = {"kv_live_frac": live, "mean_batch_size": batch, "mean_tpot_s": 0.0574}
    return {
        "allocator": allocator,
        "block_size": size,
        "seed": seed,
        "saturated": saturated,
        **values,
        **counts,
        **known,
        **other,
    }


PAPER = [
    row("paged", 0.979, 34.7, size=1, saturated=True),
    row("paged", 0.962, 34.0, saturated=True),
    row("orca-max", 0.2, 7.0, saturated=True),
    row("orca-oracle", 0.382, 13.4, saturated=True),
]


def printed(made, width):
    console = Console(width=width, record=True, file=__import__("io").StringIO())
    console.print(made)
    return console.export_text()


def test_the_table_fits_eighty_columns_and_marks_saturated_rows():
    text = printed(table(PAPER, width=80), 80)
    assert "…" not in text
    assert text.count("0.0574*") == 4
    assert "saturated" in text
    assert "saturated" not in printed(table([row("orca-max", 0.2, 7.0)], width=80), 80)


def test_a_value_that_does_not_exist_is_a_dash():
    assert "–" in printed(table([row("paged", None, None)], width=120), 120)


def test_the_sentence_compares_at_block_size_sixteen():
    assert verdict(PAPER) == (
        "paged at block size 16 keeps 96 % of KV memory live against 20 / 38 % (orca-max / orca-oracle), "
        "4.9x the batch of orca-max."
    )


def test_the_sentence_says_when_there_is_nothing_to_compare():
    assert verdict([]) == "No run finished."
    assert "block size 1 keeps 98 %" in verdict(PAPER[:2])
    none = row("paged", 0.0, 0.0, num_finished=0, num_rejected=40)
    assert verdict([none]).startswith("No request completed (40 rejected)")
    assert verdict([row("paged", None, None)]) == "Nothing was measured: no request ran in the window."


def test_a_partly_idle_pool_is_no_ranking():
    rows = [row("paged", 0.7, 12.0, kv_free_frac=0.2), row("orca-max", 0.9, 5.0, saturated=True)]
    assert verdict(rows) == (
        "paged (block size 16): batch 12.0, TTFT 0.5 s, 0 tok/s; orca-max (block size 16): batch 5.0, TTFT 0.5 s*, "
        "0 tok/s. Part of the memory was free while nothing was refused for want of it, "
        "so live shares do not rank allocators."
    )
    assert "paged kept up with the arrivals, so" in verdict([row("paged", 0.7, 12.0), rows[1]])


def test_a_window_in_which_nothing_ran_is_named():
    window = {"window_start_s": 300.0, "window_stop_s": 900.0}
    idle = row("paged", 0.0, 0.0, **window)
    assert window_notes([idle, idle]) == ["no request ran in the window [300, 900) s: use --window arrivals"]
    both = window_notes([idle, row("orca-max", 0.2, 7.0, **window)])
    assert both == ["paged at block size 16: no request ran in the window [300, 900) s: use --window arrivals"]
    assert window_notes([row("paged", 0.0, 0.0, num_finished=0, num_rejected=9, **window)]) == []


def test_prefix_hits_are_shown_where_some_were_looked_up():
    hits = {"prefix_query_tokens": 4_000, "prefix_hit_tokens": 1_000, "prefix_hit_frac": 0.25}
    text = printed(table([row("paged", 0.9, 30.0, **hits), row("orca-max", 0.2, 7.0)], width=80), 80)
    assert "hit" in text
    assert "25.0" in text
    assert "…" not in text
    assert "1,000" in printed(table([row("paged", 0.9, 30.0, **hits)], width=140), 140)
    assert "hit" not in printed(table(PAPER, width=80), 80)


def test_repeats_are_one_row_with_their_spread():
    runs = [row("paged", 0.9, 30.0), row("paged", 0.96, 34.0, seed=1)]
    mean, sd = mean_sd(runs, "mean_batch_size")
    assert (mean, round(sd, 3)) == (32.0, 2.828)
    text = printed(table(runs, width=200), 200)
    assert text.count("paged") == 1
    assert "32.0 ±2.8" in text
    assert mean_sd([row("paged", None, None)], "kv_live_frac") == (None, None)


def test_a_table_says_what_its_rates_leave_out():
    """Tokens behind the window are in no column: said where there are any worth it, and only there."""
    window = {"window_start_s": 0.0, "window_stop_s": 100.0, "window_kind": "arrivals"}
    for last, said in ((100.0, False), (100.9, False), (140.0, True)):
        text = printed(table([row("paged", 0.9, 5.0, makespan_s=last, **window)], width=120), 120)
        assert ("tok/s are over the arrivals, 0 to 100 s; work went on to 140 s" in text) is said
    assert "tok/s are over" not in printed(table([row("paged", 0.9, 5.0)], width=120), 120)
