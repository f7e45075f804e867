"""Lowering of scatters: operand 0 is copied to the output, then all writes are applied in order.

parallel %i { parallel %j { store %x[%i, %j], %y[%i, %j] } }
parallel %v { for %u { %row = %indices[%v, %u]   check %row in 0..n   store %y[%v, %row] + %values[%v, %u], %y[%v, %row] } }

Iterations of a loop whose variable directly indexes the output (%v) write disjoint elements and may run in parallel.
The others keep their order.  Loops stay in memory order: if none outermost is parallel, blocks of the innermost are.
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
    """Emit the loops of a kernel whose root is a scatter, stored through the views from the root to `target`."""
    node = lowering.root
    assert isinstance(node.structure, Scatter)
    if len(lowering.graph.outputs) > 1:
        raise LoweringError(f"scatter {node} cannot share a kernel with another output")
    if scans := nontrivial_scans(lowering.graph):
        raise LoweringError(f"scatter {node} cannot be fused with scan {scans[0]}: the orders differ")
    ranges, index = lowering.nest.new_loops("i", node.shape)
    lowering.demand = Demand(lowering.graph, node, index)  # nothing is materialized: copy and writes share no loop

    def copy() -> None:
        position = lowering.output_position(target, index)
        lowering.nest.add(Store("out0", position, lowering.element(node.operands[0], index, None)))

    lowering.nest.emit_loops(ranges, True, copy)
    writes = node.structure.writes(node)
    ranges, point = lowering.nest.new_loops("u", writes.extents)
    direct = {str(d) for d in writes.position(point) if not isinstance(d, Lookup)}
    combine = node.structure.combine(node)
    outer, inner = split_parallel_loops(lowering, ranges, direct)

    def write() -> None:
        lower_write(lowering, target, combine, writes, point)

    lowering.nest.emit_loops(outer, True, lambda: lowering.nest.emit_loops(inner, False, write))


def split_parallel_loops(
    lowering: KernelLowering, ranges: list[Range], direct_vars: set[str]
) -> tuple[list[Range], list[Range]]:
    """Split the loops over the writes into outer parallel loops and inner sequential ones.

    Only loops in `direct_vars` may be parallel.  If the outer ones are too short, the innermost is split into blocks.
    """
    count = next((k for k, r in enumerate(ranges) if r.var not in direct_vars), len(ranges))
    outer, inner = ranges[:count], ranges[count:]
    if not inner or tile.dim_hint(product(r.extent for r in outer)) >= lowering.machine.min_scatter_steps:
        return outer, inner
    last, extent = inner[-1], inner[-1].extent
    if last.var not in direct_vars or not isinstance(extent, int):
        return outer, inner
    most = lowering.machine.scatter_block
    divisors = (d for d in range(most // 4, most + 1) if extent % d == 0)
    size = max(divisors, key=lambda d: (d % 16 == 0, d), default=extent)
    if size >= extent:
        return outer, inner
    block = Range(lowering.nest.fresh_name("block"), 0, extent // size)
    start = var(block.var) * size
    return [*outer, block], [*inner[:-1], last.with_(lo=start, hi=start + size)]


def lower_write(
    lowering: KernelLowering, target: Node, combine: str, writes: ScatterWrites, point: tuple[Dim, ...]
) -> None:
    """Emit one write: look up its position and combine the current value there with the new one."""
    node = lowering.root
    indices = writes.position(point)
    position = tuple(lowering.checked_index(node, d, None) if isinstance(d, Lookup) else d for d in indices)
    if node.type.numel == 0:
        return  # nothing to write to; the bounds checks fail
    source = writes.value(point)
    value = lowering.upcast_element(node.operands[source.operand], source.position)
    position = lowering.output_position(target, position)
    lowering.nest.add(Store("out0", position, combined_value(combine, Load(node.dtype, "out0", position), value)))


def combined_value(combine: str, old: Load, new: Expr) -> Expr:
    """Return the value after a write; reduced floats are combined in f32, the dtype of `new`, and rounded."""
    return (new if combine == "set" else call_primitive(combine, old.to(new.dtype), new)).to(old.dtype)
