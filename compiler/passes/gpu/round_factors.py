"""Round a factor of products to the dtype of the other one, where results are rounded to it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from compiler.ir.scalar import Const, Expr
from compiler.ir.tile.contraction import contraction_of, uncast
from compiler.ir.tile.kernel import Block, Kernel, Stmt, expand_stmts
from compiler.ir.types import DType
from compiler.passes.base import Context, TilePass, register
from compiler.target import MATRIX_DTYPES


@register
@dataclass(frozen=True)
class RoundFactors(TilePass):
    """Round the wider factor of a contraction to the narrow dtype of the other, which matrix units multiply.

    %s = reduce add %r { yield %p[%r] * cast<f32>(%v[%r, %j]) }  store cast<f16>(%s), %y[%j]
      ->  %s = reduce add %r { yield cast<f32>(cast<f16>(%p[%r])) * cast<f32>(%v[%r, %j]) }  ...

    Applies where the kernel writes results of that dtype only: they are rounded as much anyway.  Attention in PyTorch rounds its
    probabilities in the same way.
    """

    name = "round-factors"

    def run(self, ir: Kernel, context: Context) -> Kernel:
        written = {p.type.dtype for p in ir.params if p.is_written}
        if len(written) != 1:
            return ir
        (narrow,) = written

        def rule(stmt: Stmt) -> Block:
            contraction = contraction_of(stmt)
            if contraction is None or (narrow.name, contraction.accumulator.name) not in MATRIX_DTYPES:
                return (stmt,)
            factors = contraction.lhs, contraction.rhs
            if [uncast(e).dtype == narrow for e in factors].count(True) != 1:
                return (stmt,)
            x, y = (round_through(e, narrow) for e in factors)
            if not context.may_apply(self, f"%{contraction.reduction.name}: factors of {narrow}"):
                return (stmt,)
            return (replace(contraction.reduction, value=x * y),)

        return ir.with_body(expand_stmts(ir.body, rule))


def round_through(e: Expr, narrow: DType) -> Expr:
    """Return `e` rounded to `narrow` and widened again; `e` itself if it is widened from there."""
    return e if isinstance(e, Const) or uncast(e).dtype == narrow else e.to(narrow).to(e.dtype)
