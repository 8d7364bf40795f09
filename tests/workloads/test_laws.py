"""Laws of traces: what a round trip keeps, what selecting and rescaling may change."""

import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from workloads import Trace, load_trace, save_trace

SUFFIXES = [".csv", ".csv.gz", ".jsonl", ".jsonl.gz", ".parquet"]
few = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@st.composite
def traces(draw: st.DrawFn, min_rows: int = 0) -> Trace:
    """Any valid trace of up to twelve rows: ties, failures, limits, delayed turns, block ids."""
    n = draw(st.integers(min_rows, 12))

    def column(low: int, high: int) -> list[int]:
        return draw(st.lists(st.integers(low, high), min_size=n, max_size=n))

    output = column(0, 9)
    prompt = [max(tokens, 1) if out else tokens for tokens, out in zip(column(0, 70), output, strict=True)]
    parent = [min(p, i - 1) for i, p in enumerate(column(-1, 12))]
    waits = [p >= 0 and output[p] > 0 for p in parent]
    delay = [d if wait else -1 for d, wait in zip(column(-1, 10**12), waits, strict=True)]
    size = draw(st.sampled_from([0, 1, 16]))
    scope = draw(st.sampled_from(["chained", "content"])) if size else ""
    partial = draw(st.sampled_from(["ceil", "floor"])) if size else ""
    up = size - 1 if partial == "ceil" else 0
    counts = [(tokens + up) // size if size else 0 for tokens in prompt]
    total = sum(counts)
    ids = draw(st.lists(st.integers(0, 2**63 - 1), min_size=min(total, 5), max_size=5)) if total else []
    return Trace.build(
        np.cumsum(column(0, 3), dtype=np.int64) * draw(st.sampled_from([1, 10**9 + 7])),
        prompt,
        output,
        limit_tokens=[-1 if limit == 0 else limit for limit in column(-1, 5)],
        priority=column(-3, 3),
        session=column(-1, 4),
        parent=parent,
        delay_ns=delay,
        block_offsets=np.concatenate(([0], np.cumsum(counts, dtype=np.int64))),
        block_ids=[ids[i % len(ids)] for i in range(total)],
        block_size=size,
        block_scope=scope,
        block_partial=partial,
        source_row=column(1, 10**6),
        name=draw(st.text(max_size=5) | st.sampled_from(["a,", '",', "\n#"])),
        source={"recipe": draw(st.text(max_size=5))},
    )


def columns(trace: Trace) -> dict[str, list[int]]:
    names = [
        "arrival_ns",
        "num_prompt_tokens",
        "num_output_tokens",
        "parent",
        "delay_ns",
        "session",
        "source_row",
    ]
    return {name: getattr(trace, name).tolist() for name in names}


@few
@given(trace=traces(), suffix=st.sampled_from(SUFFIXES))
def test_a_round_trip_keeps_hash_rows_name_and_source(trace: Trace, suffix: str, tmp_path: Path):
    path = tmp_path / f"trace{suffix}"

    save_trace(trace, path)
    loaded = load_trace(path)

    assert loaded.trace.sha256() == trace.sha256()
    assert columns(loaded.trace) == columns(trace)
    assert (loaded.trace.name, loaded.trace.source) == (trace.name, trace.source)
    assert (loaded.num_read, loaded.dropped) == (len(trace), {})


@few
@given(trace=traces())
def test_saving_twice_gives_equal_bytes_and_leaves_no_other_file(trace: Trace, tmp_path: Path):
    for name in ("a.jsonl.gz", "b.jsonl.gz"):
        save_trace(trace, tmp_path / name)

    assert (tmp_path / "a.jsonl.gz").read_bytes() == (tmp_path / "b.jsonl.gz").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.jsonl.gz", "b.jsonl.gz"]


@few
@given(trace=traces(min_rows=1), data=st.data())
def test_the_hash_sees_every_column_that_a_replay_sees_and_nothing_else(trace: Trace, data: st.DataObject):
    row = data.draw(st.integers(0, len(trace) - 1))
    priority = trace.priority.copy()
    priority[row] += 1
    plain = {field: getattr(trace, field) for field in Trace.__slots__}

    assert Trace(**plain | {"priority": priority}).sha256() != trace.sha256()
    assert Trace(**plain | {"name": "other", "source": {}, "source_row": priority * 0 + 1}).sha256() == trace.sha256()


@few
@given(trace=traces(), data=st.data())
def test_slices_hold_the_rows_they_name_and_start_at_zero(trace: Trace, data: st.DataObject):
    start = data.draw(st.integers(0, len(trace)))
    stop = data.draw(st.integers(start, len(trace)))

    part = trace.slice(start, stop)

    assert part.source_row.tolist() == trace.source_row[start:stop].tolist()
    assert [part.block_ids_of(i).tolist() for i in range(len(part))] == [
        trace.block_ids_of(i).tolist() for i in range(start, stop)
    ]
    assert part.arrival_ns.tolist() == [t - trace.arrival_ns[start] for t in trace.arrival_ns[start:stop]]
    assert part.parent.tolist() == [p - start if p >= start else -1 for p in trace.parent[start:stop]]


@few
@given(trace=traces(), cut=st.integers(1, 40))
def test_two_adjacent_windows_share_no_row_and_lose_none(trace: Trace, cut: int):
    end = 10**6

    before, after = trace.window(0, cut), trace.window(cut, end)

    assert len(before) + len(after) == len(trace)
    assert (after.arrival_ns + cut * 10**9).tolist() == trace.arrival_ns[len(before) :].tolist()


@few
@given(trace=traces(min_rows=2), rate=st.sampled_from([0.1, 1.0, 3.0, 7.3]))
def test_rescaling_to_a_rate_is_exact_monotone_and_idempotent(trace: Trace, rate: float):
    if trace.arrival_ns[-1] == trace.arrival_ns[0]:
        with pytest.raises(ValueError, match="no span"):
            trace.with_rate(rate)
        return

    scaled = trace.with_rate(rate)

    span_ns = int(scaled.arrival_ns[-1] - scaled.arrival_ns[0])
    assert span_ns == round((len(trace) - 1) * 10**9 / rate)
    assert (np.diff(scaled.arrival_ns) >= 0).all()
    assert scaled.with_rate(rate).sha256() == scaled.sha256()
    assert scaled.num_prompt_tokens.tolist() == trace.num_prompt_tokens.tolist()


@few
@given(trace=traces(), factor=st.integers(1, 1000))
def test_scaling_time_by_a_whole_number_is_exact_on_arrivals_and_delays(trace: Trace, factor: int):
    scaled = trace.scale_time(factor)

    assert scaled.arrival_ns.tolist() == [t * factor for t in trace.arrival_ns.tolist()]
    assert scaled.delay_ns.tolist() == [d * factor if d >= 0 else -1 for d in trace.delay_ns.tolist()]


@few
@given(trace=traces(min_rows=1), seed=st.integers(0, 5), share=st.floats(0, 1))
def test_a_sample_is_a_subset_in_order_decided_by_its_seed(trace: Trace, seed: int, share: float):
    count = int(share * len(trace))
    numbered = Trace.build(trace.arrival_ns, trace.num_prompt_tokens, trace.num_output_tokens)

    drawn = numbered.sample(count, seed)

    assert drawn.sha256() == numbered.sample(count, seed).sha256()
    assert len(set(drawn.source_row.tolist())) == count
    assert drawn.source_row.tolist() == sorted(drawn.source_row.tolist())
    assert numbered.sample(len(trace), seed).num_prompt_tokens.tolist() == trace.num_prompt_tokens.tolist()


def test_more_requests_than_rows_need_replacement():
    trace = Trace.build([0, 5], [1, 2], [3, 4])

    with pytest.raises(ValueError, match=r"3 requests asked for, the trace holds 2.*--repeat"):
        trace.sample(3, seed=0)
    assert len(trace.sample(9, seed=0, replace=True)) == 9


def test_repeated_rows_follow_the_first_copy_of_their_parent():
    trace = Trace.build([0, 1], [1, 2], [3, 4], parent=[-1, 0], delay_ns=[-1, 5])

    drawn = trace.sample(40, seed=0, replace=True)

    parents = int((drawn.source_row == 1).sum())
    assert drawn.parent.tolist() == [-1] * parents + [0] * (40 - parents)
    assert drawn.delay_ns.tolist() == [-1] * parents + [5] * (40 - parents)


@few
@given(trace=traces(min_rows=1), count=st.integers(1, 40))
def test_going_round_repeats_rows_a_mean_gap_apart_with_sessions_of_their_own(trace: Trace, count: int):
    again, n = trace.repeat(count), len(trace)

    assert again.source_row.tolist() == [int(trace.source_row[i % n]) for i in range(count)]
    assert [again.block_ids_of(i).tolist() for i in range(count)] == [
        trace.block_ids_of(i % n).tolist() for i in range(count)
    ]
    span = int(trace.arrival_ns[-1] - trace.arrival_ns[0])
    period = span + (span // (n - 1) if n > 1 else 0)
    assert again.arrival_ns.tolist() == [int(trace.arrival_ns[i % n]) + i // n * period for i in range(count)]
    assert [p if p < 0 else p - i // n * n for i, p in enumerate(again.parent.tolist())] == [
        int(trace.parent[i % n]) for i in range(count)
    ]
    rounds = [set(again.session[i : i + n].tolist()) - {-1} for i in range(0, count, n)]
    assert sum(map(len, rounds)) == len(set().union(*rounds))


@few
@given(trace=traces(), seed=st.integers(0, 3))
def test_shuffling_lengths_keeps_arrivals_and_the_set_of_rows(trace: Trace, seed: int):
    if (trace.parent >= 0).any():
        with pytest.raises(ValueError, match="follow a parent"):
            trace.shuffle_lengths(seed)
        return

    shuffled = trace.shuffle_lengths(seed)

    rows = [
        sorted(zip(t.num_prompt_tokens, t.num_output_tokens, t.limit_tokens, t.source_row, strict=True))
        for t in (trace, shuffled)
    ]
    assert shuffled.arrival_ns.tolist() == trace.arrival_ns.tolist()
    assert rows[0] == rows[1]


@few
@given(trace=traces())
def test_new_arrivals_replace_stamps_and_delays(trace: Trace):
    moved = trace.with_arrivals(np.arange(len(trace)) * 7)

    assert moved.arrival_ns.tolist() == [7 * i for i in range(len(trace))]
    assert (moved.delay_ns == -1).all()
    assert moved.parent.tolist() == trace.parent.tolist()


@few
@given(trace=traces(), bad=st.sets(st.integers(0, 11), min_size=1))
def test_rows_read_are_rows_kept_plus_rows_dropped(trace: Trace, bad: set[int], tmp_path: Path):
    lines = ["input_len,output_len", *(f"{10 + i},x" if i in bad else f"{10 + i},5" for i in range(12))]
    path = tmp_path / "lengths.csv.gz"
    path.write_bytes(gzip.compress("\n".join(lines).encode()))

    if len(bad) == 12:
        with pytest.raises(ValueError, match="read 12 = kept 0 \\+ dropped 12"):
            load_trace(path, on_bad_row="drop")
        return
    loaded = load_trace(path, on_bad_row="drop")

    assert loaded.num_read == 12 == len(loaded.trace) + sum(loaded.dropped.values())
    assert loaded.dropped == {"not a number": len(bad)}
    assert any(f"kept {12 - len(bad)} + dropped {len(bad)}" in note for note in loaded.notes)
    with pytest.raises(ValueError, match=f":{min(bad) + 2}: not a number.*dropped {len(bad)}"):
        load_trace(path)
