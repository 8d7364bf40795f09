"""Recorded step times: back from seconds to the picosecond, and refused where they are no recording."""

import random

import pandas as pd
import pytest

from sim.cost import PS_PER_S
from sim.recorded_executor import COLUMNS, EXACT_PS, read_recording


def table(**columns):
    whole = {"duration_s": [0.5, 0.25], "num_decodes": [0, 3], "num_chunk_tokens": [7, 0]} | columns
    return pd.DataFrame({name: values for name, values in whole.items() if values is not None})


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_picoseconds_come_back_exactly(tmp_path, suffix):
    rng = random.Random(0)
    durations = [1, EXACT_PS - 1, *(rng.randrange(1, 1 << rng.randrange(1, 50)) for _ in range(2000))]
    seconds = [duration / PS_PER_S for duration in durations]
    counts = list(range(len(durations)))
    frame = table(duration_s=seconds, num_decodes=counts, num_chunk_tokens=counts)
    path = tmp_path / f"steps{suffix}"
    frame.to_csv(path) if suffix == ".csv" else frame.to_parquet(path)
    recording = read_recording(path)
    assert list(recording.durations_ps) == durations
    assert list(recording.num_decodes) == list(recording.num_chunk_tokens) == counts
    assert recording.coefficients()["total_ps"] == sum(durations)


def test_the_hash_is_that_of_every_number(tmp_path):
    hashes = set()
    for column in (None, *COLUMNS):
        changed = {} if column is None else {column: [1, 3]}
        table(**changed).to_parquet(tmp_path / "steps.parquet")
        hashes.add(read_recording(tmp_path / "steps.parquet").coefficients()["sha256"])
    assert len(hashes) == 4


@pytest.mark.parametrize(
    "columns,said",
    [
        ({"num_decodes": None}, "lacks num_decodes: name the steps.parquet of a cell that ran on --backend cpu or gpu"),
        ({"duration_s": [0.5, 0.0]}, "step 2 lasts 0.0 s"),
        ({"duration_s": [float("nan"), 0.5]}, "step 1 lasts nan s"),
        ({"duration_s": [0.5, 1e9]}, "less than 1126 s"),
    ],
)
def test_what_is_no_recording_is_refused(tmp_path, columns, said):
    table(**columns).to_parquet(tmp_path / "steps.parquet")
    with pytest.raises(ValueError, match=said):
        read_recording(tmp_path / "steps.parquet")


def test_files_that_cannot_be_read_are_named(tmp_path):
    (tmp_path / "steps.parquet").write_text("no table")
    for name, said in (("steps.parquet", "cannot be read"), ("missing.parquet", "there is no such table")):
        with pytest.raises(ValueError, match=said) as error:
            read_recording(tmp_path / name)
        assert name in str(error.value)
