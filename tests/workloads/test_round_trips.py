"""Laws of reading: through pagelab's own format nothing changes, and reading at once is reading row by row."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.workloads.formats import FILES
from workloads import FORMATS, TraceError, load, load_trace, save_trace
from workloads.columns import HASHED_COLUMNS

SUFFIXES = [".csv", ".csv.gz", ".jsonl", ".jsonl.gz", ".parquet"]
BYTES = ["", "0", "-", "e5", "9" * 25, '"', "}", "{", ",", "\n", "\r\n", " ", "null", "1.5", "0x1", "T", "Z", "+02:00"]
few = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def everything(loaded):
    """All that a caller can see of a file, in plain values."""
    trace = loaded.trace
    names = (*HASHED_COLUMNS, "source_row", "status", "name", "block_size", "block_scope", "block_partial", "source")
    values = {name: getattr(trace, name) for name in names}
    plain = {name: value.tolist() if hasattr(value, "tolist") else value for name, value in values.items()}
    return {**plain, "notes": loaded.notes, "num_read": loaded.num_read, "dropped": loaded.dropped}


def outcome(path, options, at_once_bytes, monkeypatch, **more):
    monkeypatch.setattr(load, "AT_ONCE_BYTES", at_once_bytes)
    try:
        return everything(load_trace(path, **options, **more))
    except TraceError as error:
        return str(error)


def test_every_format_that_is_read_has_random_files():
    assert FILES.keys() == set(FORMATS) - {"auto", "pagelab"}


@pytest.mark.parametrize("name", FILES)
@few
@given(data=st.data())
def test_a_foreign_file_goes_through_the_own_format_without_a_changed_number(name: str, data, tmp_path: Path):
    text, options = data.draw(FILES[name])
    path = tmp_path / "foreign"
    path.write_bytes(text.encode())
    read = load_trace(path, **options).trace
    saved = tmp_path / f"own{data.draw(st.sampled_from(SUFFIXES))}"

    save_trace(read, saved)
    again = load_trace(saved).trace

    assert read.source["format"] == name
    assert again.sha256() == read.sha256()
    assert again.source_row.tolist() == read.source_row.tolist()
    assert (again.name, again.source) == (read.name, read.source)


@pytest.mark.parametrize("name", [*FILES, "pagelab"])
@few
@given(data=st.data())
def test_reading_at_once_is_reading_row_by_row_damage_included(name: str, data, tmp_path: Path):
    monkeypatch = pytest.MonkeyPatch()
    text, options = data.draw(FILES["mooncake" if name == "pagelab" else name])
    path = tmp_path / "file"
    path.write_bytes(text.encode())
    if name == "pagelab":
        own = tmp_path / f"own{data.draw(st.sampled_from(['.csv', '.jsonl']))}"
        save_trace(load_trace(path, **options).trace, own)
        text, path, options = own.read_text(), own, {}
    for at, piece in data.draw(st.lists(st.tuples(st.integers(0, 400), st.sampled_from(BYTES)), max_size=2)):
        text = text[:at] + piece + text[at + data.draw(st.integers(0, 1)) :]
    path.write_bytes(text.encode())

    with monkeypatch.context():
        for policy in ("refuse", "drop"):
            one_by_one = outcome(path, options, 1 << 60, monkeypatch, on_bad_row=policy)
            assert outcome(path, options, 0, monkeypatch, on_bad_row=policy) == one_by_one
    monkeypatch.undo()


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_plain_files_really_are_read_at_once(suffix: str, tmp_path: Path, monkeypatch):
    """Or the law above would compare the rows with themselves."""
    source = Path(__file__).parent / "faults" / "20_mooncake_ms_vs_s.jsonl"
    save_trace(load_trace(source).trace, tmp_path / f"own{suffix}")
    monkeypatch.setattr(load, "AT_ONCE_BYTES", 0)
    for reader in ("pagelab", "mooncake", "azure", "burstgpt", "vidur", "length_list"):
        monkeypatch.setattr(getattr(load, reader), "read", None)

    for path, number in (
        (tmp_path / f"own{suffix}", 2),
        (source, 2),
        (source.with_name("01_azure_7digit_crlf_no_final_newline.csv"), 3),
        (source.with_name("02_azure2024_mixed_offset.csv"), 3),
        (source.with_name("04_azure2025_four_columns.csv"), 2),
        (source.with_name("06_non_monotonic.csv"), 3),
        (source.with_name("10_burstgpt_v1_failures.csv"), 4),
        (source.with_name("11_burstgpt_v3_inserted_columns.csv"), 2),
        (source.with_name("38_second_floor.csv"), 4),
    ):
        assert len(load_trace(path).trace) == number
