"""Local buffers as values: on a machine without addressable registers, every access must range over the whole buffer."""

from __future__ import annotations

from compiler.analysis.accesses import Accesses
from compiler.ir.symbolic.index_expr import Dim
from compiler.ir.tile.kernel import Kernel


def addressing_problem(kernel: Kernel) -> str:
    """Return how a kernel addresses a local buffer otherwise than by one loop for each dimension, always alike; "" if it does not."""
    table = Accesses(kernel)
    bounds: dict[tuple[str, int], tuple[Dim, Dim]] = {}
    for access in table.all:
        if table.roles[access.buffer] != "local":
            continue
        loops = {r.var: r for r in access.loops}
        used = [str(d) for d in access.index]
        for k, name in enumerate(used):
            r = loops.get(name)
            if r is None or used.count(name) > 1 or bounds.setdefault((access.buffer, k), (r.lo, r.hi)) != (r.lo, r.hi):
                return f"local %{access.buffer} would be addressed by {name}, and is held in registers"
    return ""
