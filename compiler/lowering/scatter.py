"""Scatters as loops: operand 0 into the output, then every write in its turn.

parallel %i { parallel %j { store %x[%i, %j], %y[%i, %j] } }
parallel %v { for %u { %row = %indices[%v, %u]   check %row in 0..n   store %y[%v, %row] + %values[%v, %u], %y[%v, %row] } }

Steps of a loop that the place follows plainly (%v) meet in no place, so threads and lanes may share them; the others keep their
order.  Loops stay in the order of memory: where no such loop is outermost, threads share blocks of the innermost one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from compiler.analysis.demand import Demand
from compiler.errors import LoweringError
from compiler.ir.graph.node import Node
from compiler.ir.graph.structure import Lookup, Scatter, ScatterWrites
from compiler.ir.scalar import Expr, Load, call_primitive
from compiler.ir.symbolic.index_expr import Dim, product, var
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.kernel import Range, Store
from compiler.lowering.scan import nontrivial_scans

if TYPE_CHECKING:
    from compiler.lowering.kernel import KernelLowering


def lower_scatter(lowering: KernelLowering, target: Node) -> None:
    """The loops of a kernel whose root is a scatter, its result stored through the views that end in `target`."""
    node = lowering.root
    assert isinstance(node.structure, Scatter)
    if len(lowering.graph.outputs) > 1:
        raise LoweringError(f"the writes of {node} come in no order that another output could follow")
    if scanned := nontrivial_scans(lowering.graph):
        raise LoweringError(f"the writes of {node} do not come in the order in which {scanned[0]} is made")
    ranges, index = lowering.nest.new_loops("i", node.shape)
    lowering.demand = Demand(lowering.graph, node, index)  # nothing is kept: the two parts share no row

    def copy() -> None:
        lowering.nest.add(
            Store("out0", lowering.output_position(target, index), lowering.element(node.operands[0], index, None))
        )

    lowering.nest.emit_loops(ranges, True, copy)
    writes = node.structure.writes(node)
    ranges, point = lowering.nest.new_loops("u", writes.extents)
    plain = {str(d) for d in writes.position(point) if not isinstance(d, Lookup)}
    combine, (shared, rest) = node.structure.combine(node), split_parallel_loops(lowering, ranges, plain)
    lowering.nest.emit_loops(
        shared,
        True,
        lambda: lowering.nest.emit_loops(rest, False, lambda: lower_write(lowering, target, combine, writes, point)),
    )


MIN_PARALLEL_STEPS = 16
"""Steps that the outermost loops need for threads to share them."""

MAX_BLOCK_ELEMENTS = 256
"""Most elements in a thread's block of the innermost loop: they are read and written side by side."""


def split_parallel_loops(
    lowering: KernelLowering, ranges: list[Range], direct_vars: set[str]
) -> tuple[list[Range], list[Range]]:
    """The loops over the writes as those that threads may share and, inside them, the others."""
    count = next((k for k, r in enumerate(ranges) if r.var not in direct_vars), len(ranges))
    shared, rest = ranges[:count], ranges[count:]
    steps = product(r.extent for r in shared)
    if (
        not rest
        or rest[-1].var not in direct_vars
        or not isinstance(rest[-1].extent, int)
        or tile.dim_hint(steps) >= MIN_PARALLEL_STEPS
    ):
        return shared, rest
    last, extent = rest[-1], tile.extent_hint(rest[-1])
    size = max(
        (d for d in range(MAX_BLOCK_ELEMENTS // 4, MAX_BLOCK_ELEMENTS + 1) if extent % d == 0),
        key=lambda d: (d % 16 == 0, d),
        default=extent,
    )
    if size >= extent:
        return shared, rest
    block = Range(lowering.nest.fresh_name("block"), 0, extent // size)
    start = var(block.var) * size
    return [*shared, block], [*rest[:-1], last.with_(lo=start, hi=start + size)]


def lower_write(
    lowering: KernelLowering, target: Node, combine: str, writes: ScatterWrites, point: tuple[Dim, ...]
) -> None:
    """One write: the place looked up, what is there combined with what comes."""
    node = lowering.root
    position = tuple(
        lowering.checked_index(node, d, None) if isinstance(d, Lookup) else d for d in writes.position(point)
    )
    if node.type.numel == 0:
        return  # the checks have said it
    source = writes.value(point)
    value = lowering.upcast_element(node.operands[source.operand], source.position)
    place = lowering.output_position(target, position)
    lowering.nest.add(Store("out0", place, combined_value(combine, Load(node.dtype, "out0", place), value)))


def combined_value(combine: str, old: Load, new: Expr) -> Expr:
    """What a place holds after a write; half types are combined in f32 (the dtype of `new`) and rounded."""
    return (new if combine == "set" else call_primitive(combine, old.to(new.dtype), new)).to(old.dtype)
