"""Scans as loops: one loop is walked in order, and what is carried lives in local buffers just outside it.

for %j { local %carry: f64[]   store 0, %carry[]   for %i { %c = %carry[]  %t = %c + %x[%i, %j]  store %t, %carry[]  ... } }
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from compiler.ir.graph import Graph, Node
from compiler.ir.index import Dim, var, variables
from compiler.ir.scalar import Expr, Load, Ref
from compiler.ir.structure import Position, Reduction, Scan
from compiler.ir.tile import Let, Local, Store
from compiler.ir.types import TensorType
from compiler.passes.demand import Demand
from compiler.passes.nest import LowerError

if TYPE_CHECKING:
    from compiler.passes.lower_kernel import KernelLowering


def scans(graph: Graph) -> list[Node]:
    """The scans of a group that walk more than one element."""
    return [n for n in graph.nodes if isinstance(n.structure, Scan) and n.shape[n.structure.along(n).dim] != 1]


def facing(graph: Graph, root: Node, index: Position) -> Position:
    """`index`, counting down the dimension that the group's scans walk from its end."""
    if not scans(graph):
        return index
    demand = Demand(graph, root, index)
    for n in scans(graph):
        for d in _steps(n, demand):
            for k, (place, size) in enumerate(zip(index, root.shape, strict=True)):
                if not isinstance(place, int) and d == size - 1 - place:
                    return (*index[:k], d, *index[k + 1 :])
    return index


def walked_loop(demand: Demand) -> str | None:
    """The loop that must run in order, along which every scan of the group is read element by element; None without scans.

    LowerError where there is no such loop.
    """
    sizes = {v: size for d, size in zip(demand.index, demand.root.shape, strict=True) for v in variables(d)}
    found: set[str] = set()
    for n in scans(demand.graph):
        for r in demand.requests.get(n, ()):
            others = {v for d in r.index for v in variables(d)}
            if not all(isinstance(d, int) or len(variables(d)) == 1 for d in r.index) or others != set(sizes):
                raise LowerError(f"{n} does not follow the loops of {demand.root}")
        for d in _steps(n, demand):
            name = str(d)
            if name not in sizes or d != var(name) or sizes[name] != n.shape[n.structure.along(n).dim]:  # type: ignore[union-attr]
                raise LowerError(f"{n} is not read in the order in which it is made")
            found.add(name)
    if len(found) > 1:
        raise LowerError("scans along several dimensions")
    walk = next(iter(found), None)
    for n, asked in demand.requests.items():
        if isinstance(n.structure, Reduction) and any(walk in variables(d) for r in asked for d in r.index):
            raise LowerError(f"{n} is reduced by itself faster than step by step of a scan")
    return walk


def _steps(n: Node, demand: Demand) -> list[Dim]:
    """How far along its walk each request asks for an element of scan `n`."""
    assert isinstance(n.structure, Scan)
    along = n.structure.along(n)
    places = [r.index[along.dim] for r in demand.requests.get(n, ())]
    return [n.shape[along.dim] - 1 - d if along.reverse else d for d in places]


def scan_element(work: KernelLowering, node: Node, s: Scan, index: Position) -> Expr:
    """One step of the scan, in the loop it walks; the element it yields.  LowerError where it is read in another loop."""
    nest, along, initial = work.nest, s.along(node), s.initial(node)
    walk = work.walk if node.shape[along.dim] != 1 else None
    if walk is not None and walk not in variables(index[along.dim]):  # what reads it is kept, in a loop of its own
        raise LowerError(f"{node} is not read in the loop that it walks")
    before: list[Expr] = [*initial]
    names: list[str] = []
    if walk is not None:
        with nest.at(nest.depth({walk}) - 1):
            for c in initial:
                names.append(nest.fresh("carry"))
                nest.home[names[-1]] = nest.top
                nest.add(Local(names[-1], TensorType(c.dtype, ())))
                nest.add(Store(names[-1], (), c))
        before = [bound_here(work, Load(c.dtype, name, ())) for c, name in zip(initial, names, strict=True)]
    elements = [work.wide_element(o, index) for o in node.operands]
    after = [bound_here(work, work.share(e)) for e in s.step(*before, *elements)]
    for name, value in zip(names, after, strict=walk is not None):
        nest.add(Store(name, (), value))
    return bound_here(work, work.share(s.result(*(before if along.exclusive else after))).to(node.dtype))


def bound_here(work: KernelLowering, value: Expr) -> Expr:
    """`value` under a name, bound in the innermost loop: it changes from step to step, whatever its expression says."""
    if isinstance(value, Ref):
        return value
    name = work.nest.fresh("s")
    work.nest.add(Let(name, value))
    work.nest.home[name] = work.nest.top
    return Ref(value.dtype, name)
