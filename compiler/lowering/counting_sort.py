"""Lowering of counting sorts: keys are counted, counts become the first positions of buckets, and elements take the next one of theirs.

parallel %i {
  local %next: i32[257]
  for %b { store 0, %next[%b] }
  for %k { %key = %keys[%i, %k]   store %next[%key + 1] + 1, %next[%key + 1] }
  for %b { store %next[%b] + %next[%b + 1], %next[%b + 1] }
  for %k { %key = %keys[%i, %k]   %at = %next[%key]   store %x[%i, %k], %out0[%i, %at]   store %at + 1, %next[%key] }
}
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from compiler.analysis.demand import Demand
from compiler.errors import LoweringError
from compiler.ir.graph.node import Node
from compiler.ir.graph.structure import CountingSort
from compiler.ir.scalar import Load, Ref, const
from compiler.ir.symbolic.index_expr import Dim, var
from compiler.ir.tile.kernel import Local, Store
from compiler.ir.types import TensorType, i32, i64
from compiler.lowering.scan import bind_in_innermost_loop, nontrivial_scans

if TYPE_CHECKING:
    from compiler.lowering.kernel import KernelLowering


def lower_counting_sort(lowering: KernelLowering, target: Node) -> None:
    """Emit the loops of a kernel whose root is a counting sort, stored through the views from the root to `target`."""
    node, nest = lowering.root, lowering.nest
    assert isinstance(node.structure, CountingSort)
    structure, buckets = node.structure, node.structure.buckets(node)
    if len(lowering.graph.outputs) > 1:
        raise LoweringError(f"counting sort {node} cannot share a kernel with another output")
    if scans := nontrivial_scans(lowering.graph):
        raise LoweringError(f"counting sort {node} cannot be fused with scan {scans[0]}: it goes through a row twice")
    rows, row = nest.new_loops("i", node.shape[:-1])

    def for_each(prefix: str, extent: Dim, body: Callable[[Dim], None]) -> None:
        ranges, (d,) = nest.new_loops(prefix, (extent,))
        nest.emit_loops(ranges, False, lambda: body(d))

    def sort_row() -> None:
        buffer = nest.fresh_name("next")
        nest.add(Local(buffer, TensorType(i32, (buckets + 1,))))
        nest.defining_level[buffer] = nest.current_level

        def bucket(k: Dim) -> Dim:
            return lowering.checked_index(node, structure.key(node, (*row, k)), None)

        def load(b: Dim) -> Ref:
            return bind_in_innermost_loop(lowering, Load(i32, buffer, (b,)))

        def count(k: Dim) -> None:
            following = bucket(k) + 1
            nest.add(Store(buffer, (following,), load(following) + 1))

        def place(k: Dim) -> None:
            b, value = bucket(k), lowering.element(node.operands[0], (*row, k), None)
            at = load(b)
            position = bind_in_innermost_loop(lowering, at.to(i64))
            nest.add(Store("out0", lowering.output_position(target, (*row, var(position.name))), value))
            nest.add(Store(buffer, (b,), at + 1))

        for_each("b", buckets + 1, lambda b: nest.add(Store(buffer, (b,), const(0, i32))))
        for_each("k", node.shape[-1], count)
        for_each("b", buckets, lambda b: nest.add(Store(buffer, (b + 1,), load(b) + load(b + 1))))
        for_each("k", node.shape[-1], place)

    lowering.demand = Demand(lowering.graph, node, (*row, 0))  # nothing is materialized: loops read elements again
    nest.emit_loops(rows, True, sort_row)
