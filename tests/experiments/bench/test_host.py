"""A thread stays on the core that was chosen, and only as long as was asked."""

from __future__ import annotations

import os

import pytest

from experiments.bench import host

needs_linux = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system does not pin threads")


@pytest.mark.parametrize(
    "text,cores", [("0-3,8", {0, 1, 2, 3, 8}), ("5", {5}), ("", set()), ("0-1,4-5\n", {0, 1, 4, 5})]
)
def test_lists_of_cores_are_read_as_linux_writes_them(text, cores):
    assert host.cores_of(text) == cores


@pytest.mark.parametrize("text", ["all", "1-", "-3", "1;2"])
def test_other_lists_are_refused(text):
    with pytest.raises(ValueError, match="invalid literal"):
        host.cores_of(text)


@needs_linux
def test_the_fastest_near_core_is_taken_and_given_back(monkeypatch):
    allowed = os.sched_getaffinity(0)
    fast = max(allowed)
    monkeypatch.setattr(host, "near_device", lambda: {fast, 10_000})
    found = {}
    with host.pinned(found):
        assert os.sched_getaffinity(0) == {fast}
    assert os.sched_getaffinity(0) == allowed
    assert found["core"] == fast
    assert (found["pinned"], found["num_cores"], found["near_device"]) == (True, 1, True)


@needs_linux
def test_where_nothing_is_known_of_the_device_every_core_is_tried(monkeypatch):
    allowed, times = os.sched_getaffinity(0), iter([3.0, 1.0, *[2.0] * 500])
    monkeypatch.setattr(host, "near_device", set)
    monkeypatch.setattr(host, "probe_s", lambda: next(times))
    found = {}
    with host.pinned(found):
        assert os.sched_getaffinity(0) == {found["core"]}
    assert os.sched_getaffinity(0) == allowed
    assert found["num_cores"] == len(allowed)
    assert not found["near_device"]
    assert found["core"] == sorted(allowed)[min(1, len(allowed) - 1)]


def test_a_system_without_cores_to_choose_is_left_alone(monkeypatch):
    monkeypatch.delattr(os, "sched_setaffinity", raising=False)
    found = {}
    with host.pinned(found):
        assert found == {"pinned": False}


def test_without_nvidia_smi_no_core_is_near(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert host.near_device() == set()


@pytest.mark.parametrize("cores,expected", [("4-5\n", {4, 5}), (None, set())])
def test_cores_near_the_device_are_those_of_its_slot(monkeypatch, tmp_path, cores, expected):
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 00000000:9B:00.0\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(host, "PCI_DEVICES", tmp_path)
    if cores:
        (tmp_path / "0000:9b:00.0").mkdir()
        (tmp_path / "0000:9b:00.0" / "local_cpulist").write_text(cores)
    assert host.near_device() == expected


def test_the_probe_is_a_short_positive_time():
    assert 0 < host.probe_s() < 1
