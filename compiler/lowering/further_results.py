"""Further results of a kernel: elements that the root's loops compute, and rows that lie across them.

%s = sum %e {dims=[1]}   return %s, %e        parallel %i { local %t  for %k { store exp(%x[%i, %k]), %t[%k] }
                                                           %s = reduce add %r { yield %t[%r] }   store %s, %out0[%i]
                                                           for %k { store %t[%k], %out1[%i, %k] } }
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from compiler.errors import LoweringError
from compiler.ir.graph.node import Node
from compiler.ir.graph.structure import Position, position_variables
from compiler.ir.symbolic.index_expr import Dim
from compiler.ir.tile.kernel import Range

if TYPE_CHECKING:
    from compiler.lowering.kernel import KernelLowering


def row_results(lowering: KernelLowering) -> frozenset[Node]:
    """Return the further results that are rows: these are materialized, as the loops of the root do not index them."""
    return frozenset(n for n in lowering.graph.outputs[1:] if not complete_indices(lowering, n))


def further_result(lowering: KernelLowering, node: Node) -> tuple[Sequence[Range], Position]:
    """Return the element of a further result that one iteration of the root's loops computes, inside the loops of its row."""
    complete = complete_indices(lowering, node)
    if not complete:
        return row_result(lowering, node)
    if len({str(d) for d in complete[0] if not isinstance(d, int)}) < sum(s != 1 for s in node.shape):
        raise LoweringError(f"output {node} is read at a diagonal")
    return (), complete[0]


def row_result(lowering: KernelLowering, node: Node) -> tuple[Sequence[Range], Position]:
    """Return the loops over the row of `node` that one iteration of the root's loops computes, and the element inside them."""
    if node not in lowering.demand.requests:
        raise LoweringError(f"output {node} is not read for {lowering.root}")
    outer, at = set(lowering.demand.root_loops), lowering.demand.requests[node][0].index
    fixed = [covers_extent(lowering, d, extent) for d, extent in zip(at, node.shape, strict=True)]
    rank = sum(fixed)
    if position_variables(at[:rank]) != outer or not all(fixed[:rank]) or position_variables(at[rank:]) & outer:
        raise LoweringError(f"output {node} is not indexed by the loops of {lowering.root}")
    loops, inside = lowering.nest.new_loops("k", node.shape[rank:])
    return loops, (*at[:rank], *inside)


def complete_indices(lowering: KernelLowering, node: Node) -> list[Position]:
    """Return the elements of a node that are requested, one in each iteration of the root's loops."""
    requests = lowering.demand.requests.get(node, [])
    return [
        r.index
        for r in requests
        if all(covers_extent(lowering, d, e) for d, e in zip(r.index, node.shape, strict=True))
    ]


def covers_extent(lowering: KernelLowering, d: Dim, extent: Dim) -> bool:
    """Return True if `d` takes exactly the values 0..`extent`: it is a full loop of the root, or `extent` is 1."""
    if isinstance(d, int):
        return extent == 1
    return str(d) in lowering.extents and lowering.extents[str(d)] == extent
