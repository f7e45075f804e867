"""Local buffers as values: on a machine without addressable registers, every access must range over the whole buffer."""

from __future__ import annotations

from compiler.analysis.accesses import Accesses
from compiler.ir.symbolic.index_expr import Dim, var
from compiler.ir.tile.kernel import For, Kernel


def addressing_problem(kernel: Kernel) -> str:
    """Return how a kernel addresses a local buffer otherwise than by one static loop for each dimension, always alike; "" if it does not."""
    table = Accesses(kernel)
    bounds: dict[tuple[str, int], tuple[Dim, Dim]] = {}
    for access in table.all:
        if table.roles[access.buffer] != "local":
            continue
        loops = {r.var: r for r in access.loops}
        used = [str(d) for d in access.index]
        for k, name in enumerate(used):
            r = loops.get(name)
            if r is not None and not isinstance(r.extent, int):
                return f"local %{access.buffer} has a size that only a call decides, and would be held in registers"
            if r is None or used.count(name) > 1 or bounds.setdefault((access.buffer, k), (r.lo, r.hi)) != (r.lo, r.hi):
                return f"local %{access.buffer} would be addressed by {name}, and is held in registers"
            if isinstance(table.loops[name][1], For) and name not in table.parallel_loops:
                return (
                    f"local %{access.buffer} would be addressed step by step, by loop %{name}, and is held in registers"
                )
    return ""


def row_loops(table: Accesses) -> set[str]:
    """Return the loops over rows of local buffers: the index of one is that of the loop, counted from its start."""
    local = (a for a in table.all if table.roles[a.buffer] == "local")
    return {r.var for a in local for r in a.loops if var(r.var) - r.lo in a.index}
