"""Two-level search for the index of an extreme value: the block that has it, then the element."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isqrt, prod

from compiler.analysis.plain_reductions import reduced_dims
from compiler.cost.machine import Machine
from compiler.ir import ops
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import Node, Op, scalar_value
from compiler.ir.graph.structure import Leaf, Opaque, Reduction, is_view, viewed
from compiler.ir.ops.reductions import first_index
from compiler.ir.types import i64
from compiler.passes.base import Context, GraphPass, from_machine, register
from compiler.passes.graph.two_level_reduction import in_blocks

SEARCH_OPERATIONS = 4
"""Operations for each element that is compared with the extreme value: equal, NaN, the index, the least index."""


def divisors(n: int) -> list[int]:
    """Return the divisors of a positive number, in no order; the root of a square twice."""
    return [d for k in range(1, isqrt(n) + 1) if n % k == 0 for d in (k, n // k)]


@register
@dataclass(frozen=True)
class TwoLevelArgmax(GraphPass):
    """Look for the first extreme element of long rows in the first block that has it.

    %m = amax %x {keepdim=true}   %y = amin (where (eq %x, %m), iota, 8000)
      ->
    %p = amax (reshape %x) {dims=[2]}   %b = the first index of the maximum of %p
    %g = gather %x, %b                  %y = add (mul %b, 100), the first index of the maximum of %g    %x: f32[1, 8000], %p: f32[1, 80]

    Each element is read once, and only one block is compared with the extreme value.  What blocks leave over, where no good number
    of them divides the row, is a block of its own.  Blocks of contiguous elements have at least `min_block`; elements of others are
    looked up one by one.  Applies to rows in memory whose comparisons with the extreme value take at least `min_seconds`, and
    longer than those with one block.
    """

    name = "two-level-argmax"
    min_seconds: float = from_machine("parallel_seconds")
    min_block: int = 512
    lookup_ops: int = from_machine("lookup_ops")

    def run(self, ir: Graph, context: Context) -> Graph:
        new: dict[Node, Node] = {}
        for n in ir.nodes:
            if (extreme := match_first_index(n)) is None or not (size := self.block_size(n, extreme, context.machine)):
                continue
            if context.may_apply(self, f"searched in blocks of {size}, then in one of them", n):
                blocks = split_rows(extreme, size)
                new[n] = two_level_index(n, extreme, blocks).with_name(n.name)
                new |= {
                    m: extreme_of_blocks(m, blocks)
                    for m in ir.users[extreme.operands[0]]
                    if is_same_reduction(m, extreme)
                }
        return ir.replace_nodes(new)

    def block_size(self, n: Node, extreme: Node, machine: Machine) -> int:
        """Return the elements of a block, so that comparing takes least, or 0 to leave `n` as it is."""
        (x,), (dim,) = extreme.operands, reduced_dims(extreme)
        if not x.type.is_static or not is_stored(x):
            return 0
        shape = x.type.static_shape()
        if machine.operation_seconds(prod(shape) * SEARCH_OPERATIONS) < self.min_seconds:
            return 0
        length, is_contiguous = shape[dim], prod(shape[dim + 1 :]) == 1
        lookup = 0 if is_contiguous else self.lookup_ops
        least = self.min_block if is_contiguous else 2

        def compared(size: int) -> int:
            """Return the operations of comparing one block, the extreme values of all, and the rest."""
            rest = size if length % size else 0
            return size * (SEARCH_OPERATIONS + lookup) + (length // size + rest) * SEARCH_OPERATIONS

        sizes = (s for s in (*divisors(length), max(least, isqrt(length))) if least <= s <= length // 2)
        return min((s for s in sizes if compared(s) < length * SEARCH_OPERATIONS), key=compared, default=0)


@dataclass(frozen=True)
class Blocks:
    """Rows along dimension `dim` as equal blocks [..., blocks, elements of a block, ...], and the elements left over, if any."""

    full: Node
    rest: Node | None
    dim: int

    @property
    def count(self) -> int:
        """Blocks of each row, without the rest."""
        return self.full.type.static_shape()[self.dim]

    @property
    def size(self) -> int:
        """Elements of a block."""
        return self.full.type.static_shape()[self.dim + 1]

    def extremes(self, reduce: Op) -> Node:
        """Return the extreme value of each block [..., blocks, ...], that of the rest last."""
        values = reduce(self.full, dims=(self.dim + 1,))
        rest = [reduce(x, dims=(self.dim,), keepdim=True) for x in (self.rest,) if x is not None]
        return ops.cat(values, *rest, dim=self.dim) if rest else values


def match_first_index(n: Node) -> Node | None:
    """Return the extreme value, along one dimension, whose first index `n` is; None for any other node."""
    dims = reduced_dims(n)
    if len(dims) != 1 or n.dtype != i64:
        return None
    keepdim = n.type.rank == n.operands[0].type.rank

    def is_searched(extreme: Node) -> bool:
        (x,), same_dims = extreme.operands, tuple(reduced_dims(extreme)) == tuple(dims)
        same_rank = extreme.type.rank == x.type.rank == n.operands[0].type.rank
        return same_dims and same_rank and is_same_value(n, first_index(x, extreme, dims[0], keepdim))

    return next(filter(is_searched, extremes_below(n, depth=4)), None)


def extremes_below(n: Node, depth: int) -> Iterator[Node]:
    """Yield the maxima and minima that `n` is computed from in up to `depth` steps."""
    for o in n.operands if depth else ():
        if isinstance(o.structure, Reduction) and o.structure.combine in ("max", "min") and len(o.operands) == 1:
            yield o
        yield from extremes_below(o, depth - 1)


def is_same_reduction(a: Node, b: Node) -> bool:
    """Return True if two reductions have the same result, with or without the reduced dimension."""
    return a.op is b.op and a.operands == b.operands and tuple(reduced_dims(a)) == tuple(reduced_dims(b))


def is_same_value(a: Node, b: Node) -> bool:
    """Return True if two nodes are the same op on the same operands, and these alike; views that change nothing do not count."""
    a, b = without_idle_views(a), without_idle_views(b)
    if a is b or (scalar_value(a) is not None and scalar_value(a) == scalar_value(b) and a.type == b.type):
        return True
    if isinstance(a.structure, Leaf) or a.op is not b.op or a.attrs != b.attrs or a.result_type != b.result_type:
        return False
    return len(a.operands) == len(b.operands) and all(map(is_same_value, a.operands, b.operands))


def is_stored(x: Node) -> bool:
    """Return True if `x` is a view of a value that is in memory in any case."""
    return isinstance(viewed(x).structure, (Leaf, Opaque))


def without_idle_views(n: Node) -> Node:
    """Return what `n` is a view of, where that has its type."""
    while is_view(n.structure, n) and len(n.operands) == 1 and n.type == n.operands[0].type:
        (n,) = n.operands
    return n


def split_rows(extreme: Node, size: int) -> Blocks:
    """Return the operand of `extreme` in blocks of `size` elements."""
    (x,), (d,) = extreme.operands, reduced_dims(extreme)
    count, left = divmod(x.type.static_shape()[d], size)
    if not left:
        return Blocks(in_blocks(x, d, count), None, d)
    head, rest = (ops.slice_(x, dim=d, start=k, size=n) for k, n in ((0, count * size), (count * size, left)))
    return Blocks(in_blocks(head, d, count), rest, d)


def extreme_of_blocks(extreme: Node, blocks: Blocks) -> Node:
    """Build `extreme` from the extreme values of `blocks`."""
    total = extreme.op(blocks.extremes(extreme.op), dims=(blocks.dim,), keepdim=True)
    return ops.reshape(total, shape=extreme.shape).with_name(extreme.name)


def two_level_index(n: Node, extreme: Node, blocks: Blocks) -> Node:
    """Build `n`, the first index of `extreme`, from that of the first of `blocks` with this value."""
    d, reduce, full, size = blocks.dim, extreme.op, blocks.full, blocks.size
    before, after = full.shape[:d], full.shape[d + 2 :]
    first = index_of_extreme(blocks.extremes(reduce), reduce, d)
    block = first if blocks.rest is None else ops.minimum(first, blocks.count - 1)
    indices = ops.expand(ops.reshape(block, shape=(*before, 1, 1, *after)), shape=(*before, 1, size, *after))
    row = ops.reshape(ops.gather(full, indices, dim=d, in_bounds=True), shape=(*before, size, *after))
    index = ops.add(ops.mul(block, size), index_of_extreme(row, reduce, d))
    if blocks.rest is not None:
        beyond = ops.add(index_of_extreme(blocks.rest, reduce, d), blocks.count * size)
        index = ops.where(ops.lt(first, blocks.count), index, beyond)
    return ops.reshape(index, shape=n.shape).with_loc(n.loc)


def index_of_extreme(x: Node, reduce: Op, d: int) -> Node:
    """Return the first index of the extreme value of `x` along dimension `d`, which becomes 1."""
    return first_index(x, reduce(x, dims=(d,), keepdim=True), d, keepdim=True)
