"""Threads of kernels: those of the OpenMP runtime that PyTorch has loaded.

Kernels call `GOMP_parallel` in the same library, so there is only one thread pool and `torch.set_num_threads` applies.
Without an OpenMP runtime, a serial implementation runs every kernel on the calling thread.
"""

from __future__ import annotations

import ctypes
import sys
from functools import lru_cache
from pathlib import Path

import torch

OPENMP_SYMBOLS = ("GOMP_parallel", "GOMP_barrier", "omp_get_thread_num", "omp_get_num_threads")
"""OpenMP functions that generated code calls."""

SERIAL_RUNTIME_IR = """
define void @GOMP_parallel(ptr %work, ptr %data, i32 %threads, i32 %flags) { call void %work(ptr %data)  ret void }
define void @GOMP_barrier() { ret void }
define i32 @omp_get_thread_num() { ret i32 0 }
define i32 @omp_get_num_threads() { ret i32 1 }
"""
"""LLVM IR of the serial implementation."""

sync_thread_count = torch.get_num_threads
"""To be called before a kernel: its first call in a thread makes PyTorch apply `torch.set_num_threads` to OpenMP."""


@lru_cache(maxsize=1)
def openmp_addresses() -> dict[str, int] | None:
    """Return the addresses of `OPENMP_SYMBOLS` in PyTorch's OpenMP runtime, or None if it has no usable one."""
    for path in [*_loaded_runtimes(), *_bundled_runtimes()]:
        try:
            library = ctypes.CDLL(path)
            return {s: symbol_address(library, s) for s in OPENMP_SYMBOLS}
        except (OSError, AttributeError):
            continue
    return None


def symbol_address(library: ctypes.CDLL, symbol: str) -> int:
    """Return the address of `symbol`; AttributeError if the library does not have it."""
    value = ctypes.cast(getattr(library, symbol), ctypes.c_void_p).value
    assert value is not None
    return value


def _loaded_runtimes() -> list[str]:
    """Return the paths of OpenMP runtimes mapped into this process, PyTorch's first; only on Linux."""
    maps = Path("/proc/self/maps")
    if not sys.platform.startswith("linux") or not maps.exists():
        return []
    files = {line.split(maxsplit=5)[5] for line in maps.read_text().splitlines() if line.count("/")}
    return sorted((f for f in files if _is_openmp(Path(f).name)), key=lambda f: "torch" not in f)


def _bundled_runtimes() -> list[str]:
    """Return the paths of OpenMP runtimes shipped with PyTorch; loading one again returns the loaded library."""
    package = Path(torch.__file__).parent
    folders = [f for f in (package / "lib", package.parent / "torch.libs") if f.exists()]
    return [str(file) for folder in folders for file in sorted(folder.iterdir()) if _is_openmp(file.name)]


def _is_openmp(name: str) -> bool:
    return name.startswith(("libgomp", "libomp", "libiomp"))
