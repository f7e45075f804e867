"""Two-level reduction of few long rows: independent blocks, and a reduction of their results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from compiler.analysis.plain_reductions import reduced_dims
from compiler.cost.issue import operation_cost
from compiler.cost.machine import Machine
from compiler.ir import ops
from compiler.ir.graph.graph import Graph, reachable
from compiler.ir.graph.node import Node
from compiler.ir.graph.structure import Elementwise, Reduction
from compiler.passes.base import Context, GraphPass, from_machine, register
from compiler.passes.graph.two_level_scan import reduce_op


@register
@dataclass(frozen=True)
class TwoLevelReduction(GraphPass):
    """Reduce few long rows in blocks, which threads share, then the results of the blocks.

    %y = sum %x {dims=[1]}   ->   %b = reshape %x   %p = sum %b {dims=[2]}   %y = sum %p {dims=[1]}       %x: f32[1, 200000], %b: f32[1, 100, 2000]

    Blocks are equal slices of the outermost reduced dimension, at least `steps_per_thread` for each thread, and fit half of
    the first-level cache where it has such a divisor, but are at most `max_excess` times more than that takes.  Applies
    where threads would idle for longer than a second kernel takes, and than rows take to be read again that one kernel keeps in cache.
    """

    name = "two-level-reduction"
    min_seconds: float = from_machine("parallel_seconds")
    steps_per_thread: int = from_machine("steps_per_thread")
    max_excess: int = 8

    def run(self, ir: Graph, context: Context) -> Graph:
        found = ((n, self.blocks(ir, n, context.machine)) for n in ir.nodes)
        chosen = {n: b for n, b in found if b and context.may_apply(self, f"reduced in {b} blocks, then these", n)}
        return ir.replace_nodes({n: two_level_reduction(n, b).with_name(n.name) for n, b in chosen.items()})

    def blocks(self, ir: Graph, n: Node, machine: Machine) -> int:
        """Return the number of blocks of each row of `n`, or 0 to leave it as it is."""
        dims = reduced_dims(n)
        if not dims or n.dtype.is_reduced_float or not n.type.is_static or not n.operands[0].type.is_static:
            return 0
        assert isinstance(n.structure, Reduction)
        (x,), rows = n.operands, prod(n.type.static_shape())
        operations = prod(x.type.static_shape()) * (1 + operation_cost(n.structure.combine, machine))
        seconds = machine.operation_seconds(operations)
        if seconds < self.min_seconds:
            return 0
        outer, row_bytes = x.type.static_shape()[dims[0]], prod(x.type.static_shape()) // rows * x.dtype.bytes
        steps = -(-self.steps_per_thread * machine.threads // rows)
        fitting = -(-2 * row_bytes // machine.l1)
        most = min(outer, self.max_excess * max(2, steps, fitting))
        counts = [b for b in range(max(2, steps), most + 1) if outer % b == 0]
        count = next((b for b in counts if b >= fitting), max(counts, default=0))
        idle = seconds * (machine.idle_factor(rows) - 1)
        again = (
            machine.traffic_seconds(prod(x.type.static_shape()) * x.dtype.bytes)
            if row_bytes <= machine.l1 and is_read_again(ir, x)
            else 0.0
        )
        return count if idle > again + machine.round_trip_seconds(rows * count * n.dtype.bytes) else 0


def is_read_again(graph: Graph, x: Node) -> bool:
    """Return True if others read `x` as well, or a value of its shape that it is computed from element by element."""

    def operands(n: Node) -> Sequence[Node]:
        return [o for o in n.operands if o.shape == x.shape] if isinstance(n.structure, Elementwise) else ()

    return any(len(graph.users[n]) > 1 for n in reachable([x], operands))


def two_level_reduction(n: Node, count: int) -> Node:
    """Build reduction `n` from reductions of `count` blocks of its outermost reduced dimension, and of their results."""
    assert isinstance(n.structure, Reduction)
    (x,), dims, reduce = n.operands, reduced_dims(n), reduce_op(n.structure.combine, n.dtype)
    first, *others = dims
    blocks = ops.reshape(x, shape=(*x.shape[:first], count, x.shape[first] // count, *x.shape[first + 1 :]))
    partial = reduce(blocks, dims=(first + 1, *(d + 1 for d in others)), keepdim=True)
    total = reduce(partial, dims=(first, first + 1, *(d + 1 for d in others)), keepdim=True)
    return ops.reshape(total, shape=n.shape)
