"""Settings of the interpreter while it compiles."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable

import pytest

from compiler.driver.interpreter_settings import in_one_stack_chunk

CALLS = 500


def leaf() -> None:
    """Return at once: the call that may need another chunk."""


def most_faults(call: Callable[[Callable[[], int]], int]) -> int:
    """Return the most page faults of `CALLS` calls at any of 400 depths, each run by `call`."""

    def at_depth(depth: int) -> int:
        if depth:
            return at_depth(depth - 1)
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
        for _ in range(CALLS):
            leaf()
        return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before

    return max(call(lambda d=depth: at_depth(d)) for depth in range(400))


@pytest.mark.skipif(
    sys.version_info < (3, 11) or sys.platform != "linux", reason="frames lie in chunks since CPython 3.11"
)
def test_loops_at_no_depth_map_memory_in_each_iteration() -> None:
    assert most_faults(in_one_stack_chunk) < CALLS // 2


IMPORT = """
import gc, torch, compiler
collections = []
gc.callbacks.append(lambda phase, info: collections.append(phase))
compiler.CompiledModule
gc.callbacks.clear()
print(len(collections), gc.isenabled())
"""


def test_modules_are_imported_without_searches_for_garbage() -> None:
    found = subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, check=True).stdout.split()
    assert int(found[0]) < 10  # those after the import
    assert found[1] == "True"
