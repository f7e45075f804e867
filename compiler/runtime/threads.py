"""The threads that kernels run on: those of the OpenMP runtime that PyTorch has loaded.

Kernels call `GOMP_parallel` in that very library, so no second pool of threads competes with PyTorch's, and
`torch.set_num_threads` counts.  Where there is none, a stand-in runs every kernel on the calling thread.
"""

from __future__ import annotations

import ctypes
import sys
from functools import lru_cache
from pathlib import Path

import torch

OPENMP_SYMBOLS = ("GOMP_parallel", "GOMP_barrier", "omp_get_thread_num", "omp_get_num_threads")
"""What generated code calls."""

SERIAL_RUNTIME_IR = """
define void @GOMP_parallel(ptr %work, ptr %data, i32 %threads, i32 %flags) { call void %work(ptr %data)  ret void }
define void @GOMP_barrier() { ret void }
define i32 @omp_get_thread_num() { ret i32 0 }
define i32 @omp_get_num_threads() { ret i32 1 }
"""
"""LLVM IR of the stand-in."""

sync_thread_count = torch.get_num_threads
"""Call before a kernel: on its first call in a thread, PyTorch passes `torch.set_num_threads` on to OpenMP there."""


@lru_cache(maxsize=1)
def openmp_addresses() -> dict[str, int] | None:
    """Addresses of `SYMBOLS` in PyTorch's OpenMP runtime, or None where it has none that we can call."""
    for path in [*_loaded_runtimes(), *_bundled_runtimes()]:
        try:
            library = ctypes.CDLL(path)
            return {s: symbol_address(library, s) for s in OPENMP_SYMBOLS}
        except (OSError, AttributeError):
            continue
    return None


def symbol_address(library: ctypes.CDLL, symbol: str) -> int:
    """Where `symbol` is; AttributeError where the library has none."""
    value = ctypes.cast(getattr(library, symbol), ctypes.c_void_p).value
    assert value is not None
    return value


def _loaded_runtimes() -> list[str]:
    """OpenMP runtimes in this process, by the kernel's own list of mapped files."""
    maps = Path("/proc/self/maps")
    if not sys.platform.startswith("linux") or not maps.exists():
        return []
    files = {line.split(maxsplit=5)[5] for line in maps.read_text().splitlines() if line.count("/")}
    found = (f for f in files if _is_openmp(Path(f).name))
    return sorted(found, key=lambda f: "torch" not in f)


def _bundled_runtimes() -> list[str]:
    """OpenMP runtimes shipped with PyTorch; opening one that is loaded already gives the loaded one."""
    folder = Path(torch.__file__).parent
    return [str(f) for place in (folder / "lib", folder.parent / "torch.libs") if place.exists()
            for f in sorted(place.iterdir()) if _is_openmp(f.name)]  # fmt: skip


def _is_openmp(name: str) -> bool:
    return name.startswith(("libgomp", "libomp", "libiomp"))
