"""Two-level scan of few long rows: independent blocks, and a scan of their totals (Blelloch, 1990)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isqrt

from compiler.cost.machine import Machine
from compiler.ir import ops
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import Node
from compiler.ir.graph.structure import Scan
from compiler.ir.symbolic.index_expr import Dim
from compiler.ir.types import DType, boolean
from compiler.passes.base import Context, GraphPass, from_machine, register

REDUCE_OPS: Mapping[str, Callable[..., Node]] = {"add": ops.sum_, "mul": ops.prod, "max": ops.amax, "min": ops.amin}

BOOLEAN_REDUCE_OPS: Mapping[str, Callable[..., Node]] = {"max": ops.any_, "min": ops.all_}
"""The same on booleans."""

COMBINE_OPS: Mapping[str, Callable[..., Node]] = {
    "add": ops.add,
    "mul": ops.mul,
    "max": ops.maximum,
    "min": ops.minimum,
}


def reduce_op(combine: str, dtype: DType) -> Callable[..., Node]:
    """Return the op that reduces elements of `dtype` by `combine`."""
    return (BOOLEAN_REDUCE_OPS if dtype == boolean else REDUCE_OPS)[combine]


def divisors(n: int) -> list[int]:
    """Return the divisors of a positive number, in no order; the root of a square twice."""
    return [d for k in range(1, isqrt(n) + 1) if n % k == 0 for d in (k, n // k)]


@register
@dataclass(frozen=True)
class TwoLevelScan(GraphPass):
    """Scan long rows in independent blocks.

    %y = cumsum %x {dim=0}
    ->  %b = reshape %x   %t = sum %b   %s = cumsum %t {exclusive=true}   %c = cumsum %b   %y = add %c, %s

    Applies to at most `max_rows` rows of at least `min_length` elements that blocks of about `block_size` divide, or shorter
    ones so that each thread has a block for every lane.  It reads each element twice, but gives threads and lanes independent
    chains.
    """

    name = "two-level-scan"
    min_length: int = from_machine("scan_min_length")
    block_size: int = from_machine("scan_block")
    max_rows: int = from_machine("scan_max_rows")

    def run(self, ir: Graph, context: Context) -> Graph:
        new: dict[Node, Node] = {}
        for n in ir.nodes:
            size = self.block_length(n, context.machine)
            if size is not None and context.may_apply(self, f"two-level scan, blocks of {size}", n):
                new[n] = two_level_scan(n, size).with_name(n.name)
        return ir.replace_nodes(new)

    def block_length(self, n: Node, machine: Machine) -> int | None:
        """Return the block length for scan `n` in elements, or None to leave it as it is."""
        if not isinstance(n.structure, Scan) or not n.structure.combine:
            return None
        extent, total = n.shape[n.structure.axis(n).dim], n.type.numel
        if not isinstance(extent, int) or not isinstance(total, int):
            return None
        if extent < self.min_length or total > extent * self.max_rows:
            return None
        candidates = [
            d for d in divisors(extent) if max(2, self.block_size // 8) <= d <= self.block_size * 2 and d * 4 <= extent
        ]
        chains = machine.threads * machine.lanes(n.dtype.bits)
        return max((d for d in candidates if d * chains <= extent), default=min(candidates, default=None))


def two_level_scan(n: Node, size: int) -> Node:
    """Build scan `n` from scans of blocks of `size` elements and of their totals; rounds once, as `n` itself does."""
    assert isinstance(n.structure, Scan)
    d, combine, carried = n.structure.axis(n).dim, n.structure.combine, n.structure.initial(n)[0].dtype
    shape: tuple[Dim, ...] = (*n.shape[:d], n.shape[d] // size, size, *n.shape[d + 1 :])
    blocks = ops.as_dtype(ops.reshape(n.operands[0], shape=shape), carried)
    totals = reduce_op(combine, blocks.dtype)(blocks, dims=(d + 1,), keepdim=True)
    before = n.op(totals, **{**n.attrs, "dim": d, "exclusive": True})
    inside = n.op(blocks, **{**n.attrs, "dim": d + 1})
    return ops.reshape(ops.as_dtype(COMBINE_OPS[combine](inside, before), n.dtype), shape=n.shape)
