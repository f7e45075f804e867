"""Check that a target has the memory spaces of local buffers, room in them, and asynchronous copies between them."""

from __future__ import annotations

from collections.abc import Iterator

from compiler.errors import VerifyError
from compiler.ir.symbolic.index_expr import interval
from compiler.ir.tile.kernel import Kernel, Local, async_copies, walk
from compiler.ir.tile.program import Program
from compiler.target import Target


def check_memory(program: Program, target: Target) -> None:
    """Raise VerifyError with what `target` lacks: memory spaces, room in them, asynchronous copies between them."""
    problems = [problem for kernel in program.kernels.values() for problem in memory_problems(kernel, target)]
    if problems:
        raise VerifyError(f"not a program for {target.name}:\n  " + "\n  ".join(problems))


def memory_problems(kernel: Kernel, target: Target) -> Iterator[str]:
    """Yield what is wrong with the memory spaces of a kernel; local buffers without a space are left out.

    Asynchronous copies of those are refused.
    """
    capacity = {space.name: space.capacity for space in target.memory}
    spaces = {p.name: target.memory[-1].name for p in kernel.params}
    spaces |= {s.buffer: s.space for s in walk(kernel.body) if isinstance(s, Local)}
    for copy in async_copies(kernel.body):
        ends = spaces[copy.source], spaces[copy.target]
        if ends not in target.async_copies:
            path = f"%{copy.source} in {ends[0] or 'no space'} to %{copy.target} in {ends[1] or 'no space'}"
            yield f"@{kernel.name}: {target.name} has no asynchronous copy from {path}; run lower-async-copies"
    for stmt in walk(kernel.body):
        if not isinstance(stmt, Local) or not stmt.space:
            continue
        if stmt.space not in capacity:
            yield f"@{kernel.name}: %{stmt.buffer} lies in {stmt.space}; {target.name} has {', '.join(capacity)}"
            continue
        bounds, room = interval(stmt.type.nbytes, {}), capacity[stmt.space]
        if room is not None and (bounds is None or bounds[1] > room):
            needed = "an unknown number of" if bounds is None else bounds[1]
            yield f"@{kernel.name}: %{stmt.buffer} takes {needed} bytes of {stmt.space}; {target.name} has {room}"
