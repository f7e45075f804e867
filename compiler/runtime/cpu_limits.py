"""CPUs that this process may use: its affinity, and the CPU quota of its control group (cgroup v1 and v2)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

PROC = Path("/proc/self")
"""Directory that describes this process; only on Linux."""


def available_cpus() -> int:
    """Return the number of CPUs that this process can keep busy, at least 1.  A quota of 2.5 CPUs counts as 2."""
    quota = min(_quotas(), default=float("inf"))
    return max(1, int(min(_affinity(), quota)))


def _affinity() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _quotas() -> Iterator[float]:
    """Yield the CPU quotas of the process's control group and of the groups that contain it, in CPUs."""
    for directory, is_v2 in _cgroup_directories():
        try:
            if is_v2:
                quota, period = (directory / "cpu.max").read_text().split()
            else:
                quota, period = ((directory / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        except (OSError, ValueError):  # the root group has no quota
            continue
        if quota != "max" and int(quota) > 0:
            yield int(quota) / int(period)


def _cgroup_directories() -> Iterator[tuple[Path, bool]]:
    """Yield the directories of the process's CPU control groups, innermost first, and True for those of cgroup v2.

    A container may see its own group as the root of the mounted file system: paths that do not exist are skipped.
    """
    mounts = dict(_cgroup_mounts())
    for line in _read_lines(PROC / "cgroup"):
        _, controllers, path = line.split(":", 2)
        is_v2 = not controllers
        if (is_v2 or "cpu" in controllers.split(",")) and is_v2 in mounts:
            group = mounts[is_v2] / path.lstrip("/")
            for directory in (group, *group.parents):
                if directory.is_relative_to(mounts[is_v2]):
                    yield directory, is_v2


def _cgroup_mounts() -> Iterator[tuple[bool, Path]]:
    """Yield where the control groups of CPUs are mounted, by whether they are of cgroup v2."""
    for line in _read_lines(PROC / "mountinfo"):
        place, _, file_system = line.partition(" - ")
        kind, _, options = file_system.split(maxsplit=2)
        if kind == "cgroup2" or (kind == "cgroup" and "cpu" in options.split(",")):
            yield kind == "cgroup2", Path(place.split()[4])


def _read_lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
