"""Multiply f32 in TF32, where the user allows it."""

from __future__ import annotations

from dataclasses import dataclass

from compiler.ir.tile.contraction import contraction_of
from compiler.ir.tile.kernel import Block, Kernel, Reduce, Stmt, expand_stmts, walk
from compiler.ir.types import f32
from compiler.passes.base import Context, TilePass, register
from compiler.passes.gpu.gpu_rows import gpu_of
from compiler.target import MATRIX_DTYPES


@register
@dataclass(frozen=True)
class Tf32Products(TilePass):
    """Truncate the factors of contractions in f32 to TF32; sums stay in f32.

    %s = reduce add %k { yield %x[%i, %k] * %w[%j, %k] }
      ->  %s = reduce add %k { yield bitcast<f32>(bitcast<i32>(%x[%i, %k]) & -8192) * bitcast<f32>(bitcast<i32>(%w[%j, %k]) & -8192) }

    TF32 has the exponents of f32 and 10 bits of the mantissa: matrix units read f32 in memory and ignore the others.  Applies where they do,
    with `alone` only in kernels with one reduction: `online-softmax` finds attention by its plain factors, and follows.
    """

    name = "tf32-products"
    alone: bool = False

    def run(self, ir: Kernel, context: Context) -> Kernel:
        has_tf32 = gpu_of(context).matrix_flops("tf32") > 0
        if self.alone and sum(isinstance(s, Reduce) for s in walk(ir.body)) != 1:
            return ir

        def rule(stmt: Stmt) -> Block:
            contraction = contraction_of(stmt)
            operands = contraction.matrix_operands(MATRIX_DTYPES) if contraction else None
            if contraction is None or contraction.is_tf32 or operands is None or operands[0].dtype != f32:
                return (stmt,)
            name = contraction.reduction.name
            if not has_tf32:
                context.missed(self, f"%{name}: the target does not multiply TF32")
            elif context.may_apply(self, f"%{name}: factors of TF32"):
                return (contraction.in_tf32,)
            return (stmt,)

        return ir.with_body(expand_stmts(ir.body, rule))
