"""Two-level reduction of few long rows: independent blocks, and a reduction of their results."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf, prod

from compiler.analysis.plain_reductions import reduced_dims
from compiler.cost.issue import operation_cost
from compiler.cost.machine import Machine
from compiler.ir import ops
from compiler.ir.graph.graph import Graph, reachable
from compiler.ir.graph.node import Node
from compiler.ir.graph.structure import (
    Elementwise,
    Reduction,
    index_vars,
    is_permutation,
    is_view,
    primitive_of,
    through_view,
)
from compiler.ir.symbolic.index_atoms import FloorDiv
from compiler.ir.symbolic.index_expr import IndexExpr, floordiv
from compiler.passes.base import Context, GraphPass, from_machine, register
from compiler.passes.graph.two_level_scan import reduce_op

EXPONENTIALS = ("exp", "exp_ftz")


@register
@dataclass(frozen=True)
class TwoLevelReduction(GraphPass):
    """Reduce few long rows in blocks, which threads share, then the results of the blocks.

    %y = sum %x {dims=[1]}   ->   %b = reshape %x   %p = sum %b {dims=[2]}   %y = sum %p {dims=[1]}       %x: f32[1, 200000], %b: f32[1, 100, 2000]

    Exponentials of differences from the maximum of a row are computed from the maximum of their block, while that is in cache,
    and their sums and quotients scaled (Milakov and Gimelshein, 2018): see `two_level_exponentials`.

    Blocks are equal slices of the reduced dimension that is outermost in memory, at least `steps_per_thread` for each thread, and fit half of
    the first-level cache where it has such a divisor, but are at most `max_excess` times more than that takes.  Blocks of a value that
    is joined again are taken as they are: others would have to find theirs by a division for each element.  Applies
    where threads would idle for longer than a second kernel takes, and than rows take to be read again that one kernel keeps in cache;
    and where exponentials would read rows again that no kernel keeps.
    """

    name = "two-level-reduction"
    min_seconds: float = from_machine("parallel_seconds")
    steps_per_thread: int = from_machine("steps_per_thread")
    max_excess: int = 8

    def run(self, ir: Graph, context: Context) -> Graph:
        maxima = {n: m for n in ir.nodes if (m := maximum_of_exponentials(n)) is not None}
        waiting = {*maxima, *maxima.values()}
        found = ((n, self.blocks(ir, n, context.machine, n in waiting)) for n in ir.nodes)
        chosen = {n: b for n, b in found if b and context.may_apply(self, f"reduced in {b} blocks, then these", n)}
        new = {n: two_level_reduction(n, b) for n, b in chosen.items()}
        for n, count in chosen.items():
            if maxima.get(n) in chosen:
                new |= two_level_exponentials(ir, n, count)
        return ir.replace_nodes({n: m.with_name(n.name) for n, m in new.items()})

    def blocks(self, ir: Graph, n: Node, machine: Machine, is_waiting: bool = False) -> int:
        """Return the number of blocks of each row of `n`, or 0 to leave it as it is.

        A maximum is read before exponentials of the same row, and their sum is waiting.
        """
        dims = reduced_dims(n)
        if not dims or n.dtype.is_reduced_float or not n.type.is_static or not n.operands[0].type.is_static:
            return 0
        assert isinstance(n.structure, Reduction)
        (x,), rows = n.operands, prod(n.type.static_shape())
        operations = prod(x.type.static_shape()) * (1 + operation_cost(n.structure.combine, machine))
        seconds = machine.operation_seconds(operations)
        if seconds < self.min_seconds:
            return 0
        outer, row_bytes = x.type.static_shape()[outermost_dim(n)], prod(x.type.static_shape()) // rows * x.dtype.bytes
        steps = -(-self.steps_per_thread * machine.threads // rows)
        fitting = -(-2 * row_bytes // machine.l1)
        most = min(outer, self.max_excess * max(2, steps, fitting))
        counts = [b for b in range(max(2, steps), most + 1) if outer % b == 0]
        known, large_enough = viewed_block_counts(n), (b for b in counts if b >= fitting)
        count = min(large_enough, key=lambda b: (b not in known, b), default=max(counts, default=0))
        idle = seconds * (machine.idle_factor(rows) - 1)
        size = prod(x.type.static_shape()) * x.dtype.bytes
        again = machine.traffic_seconds(size) if row_bytes <= machine.l1 and is_read_again(ir, x) else 0.0
        is_reread = is_waiting and row_bytes // x.dtype.bytes > machine.max_row_elements
        saved = machine.seconds(size / machine.bytes_per_cycle(size)) if is_reread else 0.0
        return count if idle + saved > again + machine.round_trip_seconds(rows * count * n.dtype.bytes) else 0


def elementwise_sources(x: Node) -> Iterable[Node]:
    """Return the values of the shape of `x` that it is computed from element by element, and itself."""

    def operands(n: Node) -> Sequence[Node]:
        return [o for o in n.operands if o.shape == x.shape] if isinstance(n.structure, Elementwise) else ()

    return reachable([x], operands)


def viewed_block_counts(n: Node) -> set[int]:
    """Return the numbers of blocks that values under a plain reduction have of its outermost dimension, where views join them."""
    (x,), dim = n.operands, outermost_dim(n)
    index, extent = index_vars("i", x.type.rank), x.shape[dim]
    views = (v for v in elementwise_sources(x) if is_view(v.structure, v) and len(v.operands) == 1)
    positions = [d for v in views for d in through_view(v, index, {})[1]]
    assert isinstance(extent, int)
    divisors = {
        a.den for d in positions if isinstance(d, IndexExpr) for m, _ in d.terms for a in m if isinstance(a, FloorDiv)
    }
    sizes = (size for size in divisors if isinstance(size, int) and extent % size == 0)
    return {extent // size for size in sizes if floordiv(index[dim], size) in positions}


def is_read_again(graph: Graph, x: Node) -> bool:
    """Return True if others read `x` as well, or a value of its shape that it is computed from element by element."""
    return any(len(graph.users[n]) > 1 for n in elementwise_sources(x))


def outermost_dim(n: Node) -> int:
    """Return the dimension that a plain reduction reduces and that is outermost in memory, as far as permutations tell."""
    (x,), dims = n.operands, reduced_dims(n)
    index = index_vars("i", x.type.rank)
    variables = {index[d]: d for d in dims}
    while is_permutation(x):
        x, index = through_view(x, index, {})
    return next((variables[d] for d in index if d in variables), dims[0])


def in_blocks(x: Node, dim: int, count: int) -> Node:
    """Return `x` with `dim` split into blocks and their elements, or with another dimension of 1 if it is one."""
    size = (count, x.shape[dim] // count) if x.shape[dim] != 1 else (1, 1)
    return ops.reshape(x, shape=(*x.shape[:dim], *size, *x.shape[dim + 1 :]))


def dims_in_blocks(n: Node, dim: int) -> tuple[int, ...]:
    """Return the dimensions that reduction `n` reduces where its operand has blocks of `dim`."""
    return tuple(d + (d >= dim) for d in reduced_dims(n))


def in_each_block(n: Node, blocks: Node, dim: int) -> Node:
    """Build reduction `n` of each of `blocks` of `dim`."""
    assert isinstance(n.structure, Reduction)
    return reduce_op(n.structure.combine, n.dtype)(blocks, dims=dims_in_blocks(n, dim), keepdim=True)


def of_all_blocks(n: Node, partial: Node, dim: int) -> Node:
    """Build reduction `n` from the results of its blocks of `dim`."""
    assert isinstance(n.structure, Reduction)
    dims = tuple(sorted((dim, *dims_in_blocks(n, dim))))
    return ops.reshape(reduce_op(n.structure.combine, n.dtype)(partial, dims=dims, keepdim=True), shape=n.shape)


def two_level_reduction(n: Node, count: int) -> Node:
    """Build reduction `n` from reductions of `count` blocks of its outermost reduced dimension, and of their results."""
    dim = outermost_dim(n)
    return of_all_blocks(n, in_each_block(n, in_blocks(n.operands[0], dim, count), dim), dim)


def maximum_of_exponentials(n: Node) -> Node | None:
    """Return the maximum of %x behind %t, where `n` adds exp(%x - %t); None for other reductions.

    %t has one element for each row.
    """
    s, dims = n.structure, reduced_dims(n)
    (e, *_) = (*n.operands, n)
    if not dims or not isinstance(s, Reduction) or s.combine != "add" or primitive_of(e) not in EXPONENTIALS:
        return None
    (d,) = e.operands
    if primitive_of(d) != "sub" or d.operands[0].shape != e.shape or not is_same_in_rows(d.operands[1], e, dims):
        return None
    x, shift = d.operands

    def is_maximum(m: Node) -> bool:
        is_max = isinstance(m.structure, Reduction) and m.structure.combine == "max"
        return is_max and m.operands == (x,) and tuple(reduced_dims(m)) == tuple(dims)

    return next(filter(is_maximum, reachable([shift], lambda m: () if is_maximum(m) else m.operands)), None)


def is_same_in_rows(y: Node, x: Node, dims: Sequence[int]) -> bool:
    """Return True if `y` has the rank of `x`, and one element in each of `dims`."""
    return y.type.rank == x.type.rank and all(y.shape[d] == 1 for d in dims)


def two_level_exponentials(graph: Graph, n: Node, count: int) -> dict[Node, Node]:
    """Build the sum `n` of exponentials, these, and their quotients, from exponentials that wait for the maximum of their block only.

    %e = exp (%x - %t)   %s = sum %e   %y = div %e, %s
      ->
    %b = reshape %x   %m = amax %b   %p = exp (%b - %m)   %f = exp (%m - %t)   %s = sum (mul (sum %p), %f)   %y = mul %p, (div %f, %s)

    %m is 0 where the maximum is infinite, and so are its products with %f what %e was.
    """
    (e,), dims, dim = n.operands, reduced_dims(n), outermost_dim(n)
    x, shift = e.operands[0].operands
    blocks = in_blocks(x, dim, count)
    largest = ops.amax(blocks, dims=dims_in_blocks(n, dim), keepdim=True)
    power = e.op(ops.sub(blocks, ops.where(ops.isinf(largest), 0, largest)), loc=e.loc)
    bounded = ops.where(ops.eq(largest, inf), 0, largest)
    factor = e.op(ops.sub(bounded, in_blocks(shift, dim, count)), loc=e.loc)

    def scaled(by: Node) -> Node:
        return ops.reshape(ops.mul(power, by), shape=e.shape)

    quotients = (
        u
        for u in graph.users[e]
        if primitive_of(u) == "div" and u.operands[0] is e and is_same_in_rows(u.operands[1], e, dims)
    )
    return {
        n: of_all_blocks(n, ops.mul(in_each_block(n, power, dim), factor), dim),
        e: scaled(factor),
        **{u: scaled(ops.div(factor, in_blocks(u.operands[1], dim, count))) for u in quotients},
    }
