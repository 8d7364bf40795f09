"""The snapshot: PyTorch's own tools read it, and its events end in what its segment shows."""

from __future__ import annotations

import pickle

import pytest

from experiments.exits import UsageError
from experiments.export.runs import runs_of
from experiments.export.torch_snapshot import BASE, pickled, snapshot_of


@pytest.fixture(scope="module", params=["paged", "orca-oracle"])
def run(request, results):
    return runs_of(results / "compared", [request.param])[0]


def test_the_tools_of_pytorch_read_it(run):
    viz = pytest.importorskip("torch.cuda._memory_viz")
    snapshot = pickle.loads(pickled(snapshot_of(run, 6.0)))
    summary = viz.segsum(snapshot)
    assert "segments: 1" in summary
    assert "cudaMalloc" in viz.trace(snapshot)
    assert "snapshot.pickle" in viz.trace_plot(snapshot)
    assert "snapshot.pickle" in viz.segment_plot(snapshot)
    assert viz.calc_active(snapshot["segments"][0]) == snapshot["segments"][0]["active_size"]


def test_blocks_tile_the_pool_in_bytes(run):
    (segment,) = snapshot_of(run)["segments"]
    unit = run.manifest["capacity"]["bytes_per_token"] * run.row["block_size"]
    assert segment["total_size"] == (run.row["num_blocks"] + 1) * unit, "the null block is there, too"
    address = BASE
    for block in segment["blocks"]:
        assert block["address"] == address
        assert block["size"] % unit == 0
        assert block["requested_size"] <= block["size"]
        assert block["state"] in {"active_allocated", "inactive"}
        address += block["size"]
    assert address == BASE + segment["total_size"]


@pytest.mark.parametrize("at_s", [1.0, 3.0, 7.5, None])
def test_what_the_events_leave_is_what_the_segment_shows(run, at_s):
    snapshot = snapshot_of(run, at_s)
    (events,), (segment,) = snapshot["device_traces"], snapshot["segments"]
    assert [event["action"] for event in events].count("segment_alloc") == 1
    held, before = {}, 0
    for event in events:
        assert before <= event["time_us"] <= (12e6 if at_s is None else at_s * 1e6)
        before = event["time_us"]
        if event["action"] == "alloc":
            assert event["addr"] not in held
            held[event["addr"]] = event["size"]
        elif event["action"] == "free_completed":
            assert held.pop(event["addr"]) == event["size"]
    active = {b["address"]: b["size"] for b in segment["blocks"] if b["state"] == "active_allocated"}
    assert held == active
    assert sum(active.values()) == segment["allocated_size"]


def test_owners_are_requests_by_their_number(run):
    names = {f["name"] for b in snapshot_of(run, 6.0)["segments"][0]["blocks"] for f in b["frames"]}
    assert "null block" in names
    ids = {int(name.split()[1]) for name in names if name.startswith("request ")}
    assert ids
    assert ids <= set(run.requests["request_id"])


def test_a_run_without_pictures_and_several_runs_are_refused(pagelab, results, run, tmp_path):
    done = pagelab("export", results / "compared", "--to", "torch-snapshot", "-o", "x.pickle")
    assert done.code == 2
    assert "say --cell" in done.err
    assert (
        pagelab("export", results / "compared", "--to", "torch-snapshot", "--cell", "paged", "-o", "x.pickle").code == 0
    )
    assert pickle.loads((tmp_path / "x.pickle").read_bytes())["segments"]
    early = pagelab("export", results / "compared", "--to", "torch-snapshot", "--cell", "paged", "-o", "x", "--at", "0")
    assert early.code == 2
    assert "the first one is of" in early.err
    bare = type(run)(tmp_path, run.row, run.manifest)
    with pytest.raises(UsageError, match=r"map\.parquet: not there"):
        snapshot_of(bare)
