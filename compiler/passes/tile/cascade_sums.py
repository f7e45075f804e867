"""Cascade summation: long sums are added in blocks, so that they round less."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isqrt, prod

from compiler.cost.tile_strides import trip_count_hint
from compiler.ir.scalar import Expr, Ref
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.contraction import adds_products
from compiler.ir.tile.kernel import Block, Kernel, Let, Range, Reduce, Stmt
from compiler.ir.tile.substitution import NameSupply, with_fresh_names
from compiler.passes.base import Context, TilePass, register
from compiler.passes.tile.unroll import vector_count
from compiler.transforms.split import strip_mine


@register
@dataclass(frozen=True)
class CascadeSums(TilePass):
    """Add the terms of a long sum in blocks, and then the sums of the blocks (Higham, Accuracy and Stability, 2002, section 4).

    %s = reduce add %r in 0..1000 { yield %x[%r, %i] }
    ->
    %s.blocks = reduce add %r.block in 0..15 { %s.block = reduce add %r in 64*%r.block..64*%r.block + 64 { yield %x[%r, %i] }  yield %s.block }
    %s.rest = reduce add %r in 960..1000 { yield %x[%r, %i] }
    %s = %s.blocks + %s.rest

    An accumulator that adds n terms rounds up to n times; in blocks of b, b + n/b times.  Applies to sums of floats with more
    than `max_terms` terms for each accumulator, in blocks of their square root, of `min_block` at least.  Products of two
    operands stay, and sums whose accumulators take more than half of the registers.
    """

    name = "cascade-sums"
    max_terms: int = 512
    min_block: int = 64

    def run(self, ir: Kernel, context: Context) -> Kernel:
        table, fresh = context.accesses(ir), NameSupply(ir)

        def rule(stmt: Stmt) -> Block:
            if not isinstance(stmt, Reduce) or stmt.op != "add" or not stmt.value.dtype.is_float:
                return (stmt,)
            around = table.loops[stmt.ranges[0].var][2]
            accumulators = vector_count((*around, *stmt.ranges))
            terms = steps(stmt.ranges)
            is_product = adds_products(stmt) and len(set(table.loads_of(stmt))) > 1
            if terms <= self.max_terms or is_product or 2 * accumulators > context.machine.registers:
                return (stmt,)
            if not context.may_apply(self, f"%{stmt.name} in blocks"):
                return (stmt,)
            return self.in_blocks(stmt, max(self.min_block, isqrt(terms)), fresh)

        return ir.with_body(tile.expand_stmts(ir.body, rule))

    def in_blocks(self, stmt: Reduce, block: int, fresh: NameSupply) -> Block:
        """Return a sum of the sums over about `block` steps of the innermost ranges."""
        outer, inner = list(stmt.ranges), list[Range]()
        while steps(inner) * steps(outer[-1:]) <= block:
            inner.insert(0, outer.pop())
        r, count = outer[-1], block // steps(inner)
        if count < 2:
            return (sum_of(stmt.name, outer, replace(stmt, name=fresh(f"{stmt.name}.block"), ranges=tuple(inner))),)
        strips = strip_mine(r, -(-count // r.unroll) * r.unroll * r.tile, fresh(f"{r.var}.block"))
        blocks = replace(stmt, name=fresh(f"{stmt.name}.block"), ranges=(strips.inner, *inner))
        if strips.remainder is None:
            return (sum_of(stmt.name, [*outer[:-1], strips.outer], blocks),)
        total = sum_of(fresh(f"{stmt.name}.blocks"), [strips.outer], blocks)
        rest = replace(stmt, name=fresh(f"{stmt.name}.rest"), ranges=(strips.remainder, *inner))
        rest = with_fresh_names(rest, fresh)
        value = result_of(total) + result_of(rest)
        if outer[:-1]:
            return (Reduce(stmt.name, stmt.op, tuple(outer[:-1]), (total, rest), value),)
        return (total, rest, Let(stmt.name, value))


def steps(ranges: Sequence[Range]) -> int:
    """Return the terms that each accumulator of a sum over `ranges` adds."""
    return prod(map(trip_count_hint, ranges))


def result_of(sum_: Reduce) -> Expr:
    """Return the value that a reduction binds."""
    return Ref(sum_.value.dtype, sum_.name)


def sum_of(name: str, ranges: Sequence[Range], sum_: Reduce) -> Reduce:
    """Return the sum of the results of another one over `ranges`."""
    return Reduce(name, sum_.op, tuple(ranges), (sum_,), result_of(sum_))
