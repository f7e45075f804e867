"""Two-level scan of few long rows: independent blocks, and a scan of their totals (Blelloch, 1990)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from compiler.cost.machine import Machine
from compiler.ir import ops
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import Node
from compiler.ir.graph.structure import BlockwiseScan, Scan
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


def blockwise(n: Node) -> BlockwiseScan | None:
    """Return how blocks of a scan are scanned apart; None if they cannot be, or `n` is no scan."""
    s = n.structure
    if not isinstance(s, Scan):
        return None
    if not s.combine:
        return s.blockwise
    reduce = reduce_op(s.combine, s.initial(n)[0].dtype)
    return BlockwiseScan(lambda x, d: reduce(x, dims=(d,), keepdim=True), COMBINE_OPS[s.combine])


@register
@dataclass(frozen=True)
class TwoLevelScan(GraphPass):
    """Scan long rows in independent blocks.

    %y = cumsum %x {dim=0}
    ->  %b = reshape %x   %t = sum %b   %s = cumsum %t {exclusive=true}   %c = cumsum %b   %y = add %c, %s

    Applies to at most `max_rows` rows of at least `min_length` elements, in blocks of about `block_size`, or shorter ones so that
    each thread has a block for every lane.  What they leave of a row is scanned behind them.  It reads each element twice, but
    gives threads and lanes independent chains.
    """

    name = "two-level-scan"
    min_length: int = from_machine("scan_min_length")
    block_size: int = from_machine("scan_block")
    max_rows: int = from_machine("scan_max_rows")

    def run(self, ir: Graph, context: Context) -> Graph:
        new: dict[Node, Node] = {}
        for n in ir.nodes:
            how = blockwise(n)
            size = self.block_length(n, context.machine) if how else None
            if how and size and context.may_apply(self, f"two-level scan, blocks of {size}", n):
                new[n] = two_level_scan(n, how, size).with_name(n.name)
        return ir.replace_nodes(new)

    def block_length(self, n: Node, machine: Machine) -> int | None:
        """Return the block length for scan `n` in elements, or None to leave it as it is."""
        assert isinstance(n.structure, Scan)
        extent, total = n.shape[n.structure.axis(n).dim], n.type.numel
        if not isinstance(extent, int) or not isinstance(total, int):
            return None
        if extent < self.min_length or total > extent * self.max_rows:
            return None
        chains = machine.threads * machine.lanes(n.dtype.bits)
        least, most = max(2, self.block_size // 8), min(self.block_size * 2, extent // 4)
        most = max(least, min(most, extent // chains)) if least <= most else most

        def steps(size: int) -> int:
            """Return the steps of the chain with most blocks, and of what is left."""
            return -(-(extent // size) // chains) * size + extent % size

        return min(range(least, most + 1), key=lambda size: (steps(size), -size), default=None)


def two_level_scan(n: Node, how: BlockwiseScan, size: int) -> Node:
    """Build scan `n` from a scan of whole blocks of `size` elements and one of the elements that are left at its end."""
    assert isinstance(n.structure, Scan)
    axis, extent = n.structure.axis(n), n.shape[n.structure.axis(n).dim]
    assert isinstance(extent, int)
    left, d = extent % size, axis.dim
    if not left:
        return scan_in_blocks(n, how, n.operands[0], size)[0]
    start = left if axis.reverse else 0
    x, rest = (
        ops.slice_(n.operands[0], dim=d, start=k, size=length)
        for k, length in ((start, extent - left), (0 if axis.reverse else extent - left, left))
    )
    blocks, total = scan_in_blocks(n, how, x, size)
    last = ops.as_dtype(how.join(n.op(ops.as_dtype(rest, total.dtype), **n.attrs), total), n.dtype)
    return ops.cat(*((last, blocks) if axis.reverse else (blocks, last)), dim=d)


def scan_in_blocks(n: Node, how: BlockwiseScan, x: Node, size: int) -> tuple[Node, Node]:
    """Scan `x` as `n` does from scans of blocks of `size` elements and of their totals, and return its total too.

    Rounds once, as `n` itself does.
    """
    assert isinstance(n.structure, Scan)
    d, carried = n.structure.axis(n).dim, n.structure.initial(n)[0].dtype
    shape: tuple[Dim, ...] = (*x.shape[:d], x.shape[d] // size, size, *x.shape[d + 1 :])
    blocks = ops.as_dtype(ops.reshape(x, shape=shape), carried)
    totals = how.total(blocks, d + 1)
    before = n.op(totals, **{**n.attrs, "dim": d, "exclusive": True})
    inside = n.op(blocks, **{**n.attrs, "dim": d + 1})
    total = ops.reshape(how.total(totals, d), shape=(*x.shape[:d], 1, *x.shape[d + 1 :]))
    return ops.reshape(ops.as_dtype(how.join(inside, before), n.dtype), shape=x.shape), total
