"""Dot products: contractions of narrow elements, a few neighbours of which are multiplied at once."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from compiler.analysis.accesses import Accesses
from compiler.analysis.dot_match import DotMatch, NoDot, match_dots
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.kernel import Kernel
from compiler.passes.base import Context, TilePass, register


@register
@dataclass(frozen=True)
class DotProducts(TilePass):
    """Multiply packed elements where the target adds the products of a few neighbours in one instruction.

    in %x: bf16[8, 64], const %w: bf16[48, 64]
    %s = reduce add %k in 0..64 { yield cast<f32>(%x[%i, %k]) * cast<f32>(%w[%j, %k]) }
      ->
    in %x: bf16x2[8, 32], const %w: bf16x2[48, 32]
    %s = reduce add %k in 0..32 { yield dot<f32>(%x[%i, %k], %w[%j, %k]) }

    Operands must be contiguous along the reduction, except constants, which are packed when the program is built.  Sums are
    reassociated.  Integer results are the same.
    """

    name = "dot-products"

    def run(self, ir: Kernel, context: Context) -> Kernel:
        found = list(match_dots(context.accesses(ir), context.matrix_shapes))
        for why in (m for m in found if isinstance(m, NoDot)):
            context.missed(self, f"%{why.stmt.name}: {why.reason}")
        dots = {id(m.old): m for m in found if isinstance(m, DotMatch)}
        while inconsistent := {
            k for k, m in dots.items() if not all_reads_agree(context.accesses(ir), m, dots.values())
        }:
            for k in inconsistent:
                context.missed(self, f"%{dots.pop(k).old.name}: an operand is read in single elements too")
        if not dots:
            return ir
        for m in dots.values():
            lhs, rhs = (x.dtype for x in m.new.value.args)
            context.applied(self, f"%{m.old.name}: adds {lhs.count} products of {lhs} and {rhs} at once")
        types = {name: t for m in dots.values() for name, t in m.types.items()}
        params = tuple(replace(p, type=types.get(p.name, p.type)) for p in ir.params)
        body = tile.expand_stmts(ir.body, lambda s: (dots[id(s)].new,) if id(s) in dots else (s,))
        return replace(ir, params=params, body=body)


def all_reads_agree(table: Accesses, dot: DotMatch, dots: Collection[DotMatch]) -> bool:
    """Return True if all accesses to the operands of `dot` are reads of contractions that pack them in the same way."""
    return all(
        any(m.old is a.stmt and m.types.get(a.buffer) == t for m in dots)
        for name, t in dot.types.items()
        for a in table.all
        if a.buffer == name
    )
