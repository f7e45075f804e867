"""Hardware counters: what is read between steps is counted for the step, and machines without counters show none."""

from __future__ import annotations

import ctypes
import os
import sys

import pytest
import torch
from torch import nn

import compiler
from compiler.report.profile import Profile
from compiler.runtime import hardware_counters

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="perf_event_open is Linux's")


@pytest.fixture(scope="module")
def model() -> compiler.CompiledModule:
    return compiler.compile(nn.Sequential(nn.Linear(64, 64), nn.Softmax(-1)), (torch.randn(32, 64),))


def table_of(profile: Profile) -> tuple[str, ...]:
    return tuple(str(c.header) for c in profile.table().columns)


def test_what_is_read_between_steps_is_counted(model: compiler.CompiledModule, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, read = dict[int, tuple[int, int]](), dict[int, int]()

    def open_counter(kind: int, number: int, thread: int) -> int:
        opened[file := os.open(os.devnull, os.O_RDONLY)] = (number, thread)
        return file

    def read_file(file: int, place: int, size: int) -> int:
        """Count 1, 10 or 1000 between two reads, by event."""
        read[file] = read.get(file, 0) + (1, 10, 0, 1000)[opened[file][0]]
        ctypes.c_int64.from_address(place).value = read[file]
        return size

    callback = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int, ctypes.c_void_p, ctypes.c_int64)(read_file)
    monkeypatch.setattr(hardware_counters, "open_counter", open_counter)
    monkeypatch.setattr(hardware_counters, "symbol_address", lambda *_: ctypes.cast(callback, ctypes.c_void_p).value)
    profile = model.profile(repeats=3)
    threads = len({thread for _, thread in opened.values()})
    assert threads >= 1
    for step, _ in profile.steps:
        assert step.events == {"cycles": threads, "instructions": 10 * threads, "cache misses": 1000 * threads}
    assert table_of(profile)[-5:-2] == ("cycles", "instructions", "cache misses")
    assert profile.as_dict()["kernels"][0]["events"]["instructions"] == 10 * threads * profile.kernels[0].runs
    with pytest.raises(OSError, match="descriptor"):
        os.fstat(next(iter(opened)))


def test_counters_of_the_system_are_read(model: compiler.CompiledModule, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware_counters, "EVENTS", {"ns": (1, 1), "migrations": (1, 4)})  # counted by Linux itself
    profile = model.profile(repeats=3)
    if not profile.steps[0][0].events:
        pytest.skip("this system lets no process count")
    assert all(step.events["ns"] > 0 for step, _ in profile.steps)


def test_absent_counters_are_silent(
    model: compiler.CompiledModule, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(hardware_counters, "EVENTS", {"cycles": (0, 0), "nothing": (1000, 0)})
    files = os.listdir("/proc/self/fd")
    profile = model.profile(repeats=3)
    assert all(not step.events for step, _ in profile.steps)
    assert not {"cycles", "nothing"} & set(table_of(profile))
    assert capfd.readouterr() == ("", "")
    assert os.listdir("/proc/self/fd") == files
