"""Scans as loops: one loop is walked in order, and what is carried lives in local buffers just outside it.

for %j { local %carry: f64[]   store 0, %carry[]   for %i { %c = %carry[]  %t = %c + %x[%i, %j]  store %t, %carry[]  ... } }
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from compiler.analysis.demand import Demand
from compiler.errors import LoweringError
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import Node
from compiler.ir.graph.structure import Position, Reduction, Scan
from compiler.ir.scalar import Expr, Load, Ref
from compiler.ir.symbolic.index_expr import Dim, var, variables
from compiler.ir.tile.kernel import Let, Local, Store
from compiler.ir.types import TensorType

if TYPE_CHECKING:
    from compiler.lowering.kernel import KernelLowering


def nontrivial_scans(graph: Graph) -> list[Node]:
    """The scans of a group that walk more than one element."""
    return [n for n in graph.nodes if isinstance(n.structure, Scan) and n.shape[n.structure.axis(n).dim] != 1]


def orient_for_scans(graph: Graph, root: Node, index: Position) -> Position:
    """`index`, counting down the dimension that the group's scans walk from its end."""
    if not nontrivial_scans(graph):
        return index
    demand = Demand(graph, root, index)
    for n in nontrivial_scans(graph):
        for d in _scan_positions(n, demand):
            for k, (place, size) in enumerate(zip(index, root.shape, strict=True)):
                if not isinstance(place, int) and d == size - 1 - place:
                    return (*index[:k], d, *index[k + 1 :])
    return index


def find_sequential_loop(demand: Demand) -> str | None:
    """The loop that must run in order, along which every scan of the group is read element by element; None without scans.

    LowerError where there is no such loop.
    """
    sizes = {v: size for d, size in zip(demand.index, demand.root.shape, strict=True) for v in variables(d)}
    found: set[str] = set()
    for n in nontrivial_scans(demand.graph):
        for r in demand.requests.get(n, ()):
            others = {v for d in r.index for v in variables(d)}
            if not all(isinstance(d, int) or len(variables(d)) == 1 for d in r.index) or others != set(sizes):
                raise LoweringError(f"{n} does not follow the loops of {demand.root}")
        for d in _scan_positions(n, demand):
            name = str(d)
            if name not in sizes or d != var(name) or sizes[name] != n.shape[n.structure.axis(n).dim]:  # type: ignore[union-attr]
                raise LoweringError(f"{n} is not read in the order in which it is made")
            found.add(name)
    if len(found) > 1:
        raise LoweringError("scans along several dimensions")
    walk = next(iter(found), None)
    for n, asked in demand.requests.items():
        if isinstance(n.structure, Reduction) and any(walk in variables(d) for r in asked for d in r.index):
            raise LoweringError(f"{n} is reduced by itself faster than step by step of a scan")
    return walk


def _scan_positions(n: Node, demand: Demand) -> list[Dim]:
    """How far along its walk each request asks for an element of scan `n`."""
    assert isinstance(n.structure, Scan)
    along = n.structure.axis(n)
    places = [r.index[along.dim] for r in demand.requests.get(n, ())]
    return [n.shape[along.dim] - 1 - d if along.reverse else d for d in places]


def lower_scan_step(lowering: KernelLowering, node: Node, s: Scan, index: Position) -> Expr:
    """One step of the scan, in the loop it walks; the element it yields.  LowerError where it is read in another loop."""
    nest, along, initial = lowering.nest, s.axis(node), s.initial(node)
    walk = lowering.sequential_loop if node.shape[along.dim] != 1 else None
    if walk is not None and walk not in variables(index[along.dim]):  # what reads it is kept, in a loop of its own
        raise LoweringError(f"{node} is not read in the loop that it walks")
    before: list[Expr] = [*initial]
    names: list[str] = []
    if walk is not None:
        with nest.at_depth(nest.defining_depth({walk}) - 1):
            for c in initial:
                names.append(nest.fresh_name("carry"))
                nest.defining_level[names[-1]] = nest.current_level
                nest.add(Local(names[-1], TensorType(c.dtype, ())))
                nest.add(Store(names[-1], (), c))
        before = [
            bind_in_innermost_loop(lowering, Load(c.dtype, name, ())) for c, name in zip(initial, names, strict=True)
        ]
    elements = [lowering.upcast_element(o, index) for o in node.operands]
    after = [bind_in_innermost_loop(lowering, lowering.bind_shared(e)) for e in s.step(*before, *elements)]
    for name, value in zip(names, after, strict=walk is not None):
        nest.add(Store(name, (), value))
    return bind_in_innermost_loop(
        lowering, lowering.bind_shared(s.result(*(before if along.exclusive else after))).to(node.dtype)
    )


def bind_in_innermost_loop(lowering: KernelLowering, value: Expr) -> Expr:
    """`value` under a name, bound in the innermost loop: it changes from step to step, whatever its expression says."""
    if isinstance(value, Ref):
        return value
    name = lowering.nest.fresh_name("s")
    lowering.nest.add(Let(name, value))
    lowering.nest.defining_level[name] = lowering.nest.current_level
    return Ref(value.dtype, name)
