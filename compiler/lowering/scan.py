"""Lowering of scans: one loop runs in order, and the carried values are local buffers declared just outside it.

for %j { local %carry: f64[]   store 0, %carry[]   for %i { %c = %carry[]  %t = %c + %x[%i, %j]  store %t, %carry[]  ... } }
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from compiler.analysis.demand import Demand
from compiler.errors import LoweringError
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import Node
from compiler.ir.graph.structure import Position, Reduction, Scan, position_variables
from compiler.ir.scalar import Expr, Load, Ref
from compiler.ir.symbolic.index_expr import Dim, var, variables
from compiler.ir.tile.kernel import Let, Local, Store
from compiler.ir.types import TensorType

if TYPE_CHECKING:
    from compiler.lowering.kernel import KernelLowering


def nontrivial_scans(graph: Graph) -> list[Node]:
    """Return the scans of a group along a dimension of more than one element."""
    return [n for n in graph.nodes if isinstance(n.structure, Scan) and n.shape[n.structure.axis(n).dim] != 1]


def orient_for_scans(graph: Graph, root: Node, index: Position) -> Position:
    """Return `index`, reversed in the dimension that the group's scans traverse from its end."""
    demand = Demand(graph, root, index)
    for n in nontrivial_scans(graph):
        for d in _scan_positions(n, demand):
            for k, (i, size) in enumerate(zip(index, root.shape, strict=True)):
                if not isinstance(i, int) and d == size - 1 - i:
                    return (*index[:k], d, *index[k + 1 :])
    return index


def find_sequential_loop(demand: Demand) -> str | None:
    """Return the loop that must run in order, along which every scan of the group is read; None without scans.

    Raises LoweringError if there is no such loop, or if a reduction in it is faster as a kernel of its own.
    """
    sizes = {v: size for d, size in zip(demand.index, demand.root.shape, strict=True) for v in variables(d)}
    loops: set[str] = set()
    for n in nontrivial_scans(demand.graph):
        for r in demand.requests.get(n, ()):
            is_plain = all(isinstance(d, int) or len(variables(d)) == 1 for d in r.index)
            if not is_plain or position_variables(r.index) != set(sizes):
                raise LoweringError(f"scan {n} is not indexed by all loops of {demand.root}")
        for d in _scan_positions(n, demand):
            name, axis = str(d), n.structure.axis(n)  # type: ignore[attr-defined]
            if name not in sizes or d != var(name) or sizes[name] != n.shape[axis.dim]:
                raise LoweringError(f"scan {n} is not read in scan order")
            loops.add(name)
    if len(loops) > 1:
        raise LoweringError("scans along several dimensions")
    loop = next(iter(loops), None)
    for n, requests in demand.requests.items():
        if isinstance(n.structure, Reduction) and loop in position_variables(*(r.index for r in requests)):
            raise LoweringError(f"reduction {n} inside a scan loop is faster as its own kernel")
    return loop


def _scan_positions(n: Node, demand: Demand) -> list[Dim]:
    """Return, per request, the number of elements of scan `n` before the requested one in scan order."""
    assert isinstance(n.structure, Scan)
    axis = n.structure.axis(n)
    indices = [r.index[axis.dim] for r in demand.requests.get(n, ())]
    return [n.shape[axis.dim] - 1 - d if axis.reverse else d for d in indices]


def lower_scan_step(lowering: KernelLowering, node: Node, s: Scan, index: Position, mask: Expr | None) -> Expr:
    """Emit one step of scan `node` in its loop and return the element; LoweringError if `index` is elsewhere or masked."""
    if mask is not None:
        raise LoweringError(f"scan {node} is read under a guard")
    nest, axis, initial = lowering.nest, s.axis(node), s.initial(node)
    loop = lowering.sequential_loop if node.shape[axis.dim] != 1 else None
    if loop is not None and loop not in variables(index[axis.dim]):  # a materialized consumer has its own loop
        raise LoweringError(f"scan {node} is read outside its loop")
    if loop is not None and nest.defining_depth(position_variables(index)) > nest.defining_depth({loop}):
        raise LoweringError(f"scan {node} is read in loops inside its own, each of which would need a carry")
    before: list[Expr] = [*initial]
    names: list[str] = []
    if loop is not None:
        with nest.at_depth(nest.defining_depth({loop}) - 1):
            for c in initial:
                names.append(nest.fresh_name("carry"))
                nest.defining_level[names[-1]] = nest.current_level
                nest.add(Local(names[-1], TensorType(c.dtype, ())))
                nest.add(Store(names[-1], (), c))
        loads = (Load(c.dtype, name, ()) for c, name in zip(initial, names, strict=True))
        before = [bind_in_innermost_loop(lowering, load) for load in loads]
    elements = [lowering.upcast_element(o, index) for o in node.operands]
    after = [bind_in_innermost_loop(lowering, lowering.bind_shared(e)) for e in s.step(*before, *elements)]
    for name, value in zip(names, after, strict=loop is not None):
        nest.add(Store(name, (), value))
    result = lowering.bind_shared(s.result(*(before if axis.exclusive else after)))
    return bind_in_innermost_loop(lowering, result.to(node.dtype))


def bind_in_innermost_loop(lowering: KernelLowering, value: Expr) -> Ref:
    """Bind `value` to a name in the innermost loop, as it changes per iteration even if its operands do not."""
    if isinstance(value, Ref):
        return value
    name = lowering.nest.fresh_name("s")
    lowering.nest.add(Let(name, value))
    lowering.nest.defining_level[name] = lowering.nest.current_level
    return Ref(value.dtype, name)
