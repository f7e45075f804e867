"""OpenMP runtime that PyTorch has loaded, whose workers may take part in calls (openmp_workers.ll)."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from compiler.runtime.loader import symbol_address

OPENMP_FUNCTIONS = (
    "GOMP_parallel_start", "GOMP_parallel_end", "omp_get_thread_num", "omp_get_max_threads", "omp_in_parallel",
)  # fmt: skip
"""Functions of GNU's OpenMP runtime, which LLVM's and Intel's have too."""

CLOCK_FUNCTIONS = ("pthread_self", "pthread_getcpuclockid", "clock_gettime")
"""Functions of the C library that tell the CPU time of another thread."""

NO_OPENMP = """
define internal void @borrow_workers(i64 %threads, i64 %now) { ret void }
define internal void @return_workers(i1 %is_measured) { ret void }
define internal void @stop_lending() { ret void }
"""
"""LLVM IR that takes the place of openmp_workers.ll where there is no such runtime, or no such clock."""


def openmp_workers() -> str:
    """Return the LLVM IR that lets OpenMP's workers take part in calls, if they can."""
    return Path(__file__).with_name("openmp_workers.ll").read_text("utf-8") if openmp_functions() else NO_OPENMP


@cache
def openmp_functions() -> Mapping[str, int]:
    """Return the addresses of the functions that openmp_workers.ll calls, by name; {} unless there are all."""
    if sys.platform != "linux":
        return {}
    for path in loaded_runtimes():
        try:
            libraries = {OPENMP_FUNCTIONS: ctypes.CDLL(path), CLOCK_FUNCTIONS: ctypes.CDLL(None)}
            return {f: symbol_address(library, f) for names, library in libraries.items() for f in names}
        except (OSError, AttributeError):
            continue
    return {}


def loaded_runtimes() -> list[str]:
    """Return the paths of OpenMP runtimes that are mapped into this process, PyTorch's first."""
    maps = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    paths = {line.split(maxsplit=5)[5] for line in maps if "/" in line}
    found = (p for p in paths if Path(p).name.startswith(("libgomp", "libomp", "libiomp")))
    return sorted(found, key=lambda p: ("torch" not in p, p))
