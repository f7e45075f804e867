"""Scatters as loops: operand 0 into the output, then every write in its turn.

parallel %i { parallel %j { store %x[%i, %j], %y[%i, %j] } }
parallel %v { for %u { %row = %indices[%v, %u]   check %row in 0..n   store %y[%v, %row] + %values[%v, %u], %y[%v, %row] } }

Steps of a loop that the place follows plainly (%v) meet in no place, so threads and lanes may share them; the others keep their
order.  Loops stay in the order of memory: where no such loop is outermost, threads share blocks of the innermost one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from compiler.ir import tile
from compiler.ir.graph import Node
from compiler.ir.index import Dim, product, var
from compiler.ir.scalar import Expr, Load, call
from compiler.ir.structure import Lookup, Scatter, Writes
from compiler.ir.tile import Range, Store
from compiler.passes.demand import Demand
from compiler.passes.lower_scan import scans
from compiler.passes.nest import LowerError

if TYPE_CHECKING:
    from compiler.passes.lower_kernel import KernelLowering


def lower_scatter(work: KernelLowering, target: Node) -> None:
    """The loops of a kernel whose root is a scatter, its result stored through the views that end in `target`."""
    node = work.root
    assert isinstance(node.structure, Scatter)
    if len(work.graph.outputs) > 1:
        raise LowerError(f"the writes of {node} come in no order that another output could follow")
    if scanned := scans(work.graph):
        raise LowerError(f"the writes of {node} do not come in the order in which {scanned[0]} is made")
    ranges, index = work.nest.over("i", node.shape)
    work.demand = Demand(work.graph, node, index)  # nothing is kept: the two parts share no row

    def copy() -> None:
        work.nest.add(Store("out0", work.push(target, index), work.element(node.operands[0], index, None)))

    work.nest.loops(ranges, True, copy)
    writes = node.structure.writes(node)
    ranges, point = work.nest.over("u", writes.extents)
    plain = {str(d) for d in writes.position(point) if not isinstance(d, Lookup)}
    combine, (shared, rest) = node.structure.combine(node), dealt(work, ranges, plain)
    work.nest.loops(
        shared, True, lambda: work.nest.loops(rest, False, lambda: write(work, target, combine, writes, point))
    )


SHARES = 16
"""Steps that the outermost loops need for threads to share them."""

BLOCK = 256
"""Most elements in a thread's block of the innermost loop: they are read and written side by side."""


def dealt(work: KernelLowering, ranges: list[Range], plain: set[str]) -> tuple[list[Range], list[Range]]:
    """The loops over the writes as those that threads may share and, inside them, the others."""
    count = next((k for k, r in enumerate(ranges) if r.var not in plain), len(ranges))
    shared, rest = ranges[:count], ranges[count:]
    steps = product(r.extent for r in shared)
    if not rest or rest[-1].var not in plain or not isinstance(rest[-1].extent, int) or tile.known(steps) >= SHARES:
        return shared, rest
    last, extent = rest[-1], tile.known_extent(rest[-1])
    size = max(
        (d for d in range(BLOCK // 4, BLOCK + 1) if extent % d == 0), key=lambda d: (d % 16 == 0, d), default=extent
    )
    if size >= extent:
        return shared, rest
    block = Range(work.nest.fresh("block"), 0, extent // size)
    start = var(block.var) * size
    return [*shared, block], [*rest[:-1], last.with_(lo=start, hi=start + size)]


def write(work: KernelLowering, target: Node, combine: str, writes: Writes, point: tuple[Dim, ...]) -> None:
    """One write: the place looked up, what is there combined with what comes."""
    node = work.root
    position = tuple(work.look_up(node, d, None) if isinstance(d, Lookup) else d for d in writes.position(point))
    if node.type.numel == 0:
        return  # the checks have said it
    source = writes.value(point)
    value = work.wide_element(node.operands[source.operand], source.position)
    place = work.push(target, position)
    work.nest.add(Store("out0", place, joined(combine, Load(node.dtype, "out0", place), value)))


def joined(combine: str, old: Load, new: Expr) -> Expr:
    """What a place holds after a write; half types are combined in f32 (the dtype of `new`) and rounded."""
    return (new if combine == "set" else call(combine, old.to(new.dtype), new)).to(old.dtype)
