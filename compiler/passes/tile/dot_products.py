"""Dot products: contractions of narrow elements, a few neighbours of which are multiplied at once."""

from __future__ import annotations

from dataclasses import dataclass

from compiler.analysis.dot_match import DotMatch, NoDot, match_dots, with_dots
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

    Operands must be contiguous along the reduction, except constants, which are packed when the program is built.  One of them
    may be contiguous across it: its rows are packed in registers, in all lanes at once.  Sums are reassociated.  Integer results
    are the same.
    """

    name = "dot-products"

    def run(self, ir: Kernel, context: Context) -> Kernel:
        found = match_dots(context.accesses(ir), context.matrix_shapes)
        for why in (m for m in found if isinstance(m, NoDot)):
            context.missed(self, f"%{why.stmt.name}: {why.reason}")
        dots = [m for m in found if isinstance(m, DotMatch)]
        operands = [[x.dtype for x in m.new.value.args] for m in dots]
        messages = (
            f"%{m.old.name}: adds {lhs.count} products of {lhs} and {rhs} at once"
            for m, (lhs, rhs) in zip(dots, operands, strict=True)
        )
        if not dots or not context.may_apply(self, next(messages)):  # all or none, because they share packed operands
            return ir
        for message in messages:
            context.also_applied(self, message)
        return with_dots(ir, dots)
