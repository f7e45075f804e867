"""How many CPUs a process may use: affinity and the quotas of control groups."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from compiler.runtime import cpu_limits

V1 = "22 1 0:1 / {root} rw - cgroup cgroup rw,cpu,cpuacct"
V2 = "22 1 0:1 / {root} rw - cgroup2 cgroup2 rw"


def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mounts: str, groups: str, files: dict[str, str]) -> None:
    """Pretend to be a process with these control groups on a machine of 16 CPUs."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/mountinfo").write_text(mounts.format(root=tmp_path / "cg"))
    (tmp_path / "proc/cgroup").write_text(groups)
    for name, text in files.items():
        (tmp_path / "cg" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "cg" / name).write_text(text)
    monkeypatch.setattr(cpu_limits, "PROC", tmp_path / "proc")
    monkeypatch.setattr(cpu_limits, "_affinity", lambda: 16)


CASES = {
    "no quota": (V2, "0::/a", {"a/cpu.max": "max 100000\n"}, 16),
    "v2": (V2, "0::/a/b", {"a/b/cpu.max": "300000 100000\n"}, 3),
    "v2, of a group around it": (V2, "0::/a/b", {"a/cpu.max": "200000 100000\n", "a/b/cpu.max": "max 100000\n"}, 2),
    "v2, in a container": (V2, "0::/host/path", {"cpu.max": "250000 100000\n"}, 2),
    "v2, less than one CPU": (V2, "0::/a", {"a/cpu.max": "50000 100000\n"}, 1),
    "v1": (V1, "4:cpu,cpuacct:/a\n3:memory:/b", {"a/cpu.cfs_quota_us": "400000", "a/cpu.cfs_period_us": "100000"}, 4),
    "v1 without quota": (V1, "4:cpu,cpuacct:/a", {"a/cpu.cfs_quota_us": "-1", "a/cpu.cfs_period_us": "100000"}, 16),
    "no control groups": ("", "", {}, 16),
}


@pytest.mark.parametrize("case", CASES)
def test_the_least_quota_counts(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts, groups, files, expected = CASES[case]
    system(tmp_path, monkeypatch, mounts, groups, files)
    assert cpu_limits.available_cpus() == expected


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system has no affinity")
def test_affinity_counts() -> None:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert cpu_limits.available_cpus() == 1
    finally:
        os.sched_setaffinity(0, before)
