"""Parallel loops along which the results of a kernel are neighbours in memory."""

from __future__ import annotations

from compiler.ir.symbolic.index_expr import substitute, var
from compiler.ir.tile.kernel import Kernel, Store, is_parallel_loop, walk


def contiguous_loops(kernel: Kernel) -> dict[str, bool]:
    """Return the parallel loops of a kernel, and whether neighbours along them are neighbours in memory in all its stores."""
    types = {p.name: p.type for p in kernel.params}
    offsets = [types[s.buffer].offset(s.index) for s in walk(kernel.body) if isinstance(s, Store) and s.buffer in types]

    def is_contiguous(v: str) -> bool:
        return bool(offsets) and all(substitute(d, {v: var(v) + 1}) - d == 1 for d in offsets)

    return {s.range.var: is_contiguous(s.range.var) for s in walk(kernel.body) if is_parallel_loop(s)}
