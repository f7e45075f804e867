"""Expand transcendental functions into primitives that have instructions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from compiler.ir import scalar
from compiler.ir.scalar import Const, Expr, PrimitiveCall, Ref
from compiler.ir.subexpressions import bind_common_subexprs
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.kernel import Block, Kernel, Let, Reduce, Stmt, Store
from compiler.ir.tile.substitution import NameSupply
from compiler.math import expansions
from compiler.passes.base import Context, TilePass, register

Expansion = Callable[[PrimitiveCall], Expr]
"""Returns what to compute instead of a call."""


@register
@dataclass(frozen=True)
class ExpandMath(TilePass):
    """Expand transcendental functions into arithmetic.

    %y = exp(%x)  ->  %n = round(%x * 1.4427)  %r = fma(%n, -0.6931, %x)  ...  %y = %p * bitcast<f32>(...)

    Reduced floats are computed in f32.  `compiler.math` has the polynomials and their error bounds.
    """

    name = "expand-math"

    def run(self, ir: Kernel, context: Context) -> Kernel:
        expand = partial(expansions.expand, native=context.native_primitives)

        def expansion(e: PrimitiveCall) -> Expansion | None:
            if e.primitive not in expansions.EXPANSIONS:
                return None
            may_apply = context.may_apply(self, f"{e.primitive} expanded", required=True, remark=False)
            context.count(self, e.primitive, int(may_apply))
            return expand if may_apply else None

        def has_expandable_calls(stmt: Stmt) -> bool:
            return any(e.primitive in expansions.EXPANSIONS for value in tile.stmt_exprs(stmt) for e in value.calls)

        return with_expanded_calls(ir, has_expandable_calls, expansion)


def with_expanded_calls(
    ir: Kernel,
    has_expandable_calls: Callable[[Stmt], bool],
    expansion: Callable[[PrimitiveCall], Expansion | None],
) -> Kernel:
    """Replace calls in statements of `ir` by their `expansion`, of a call whose operands are names or constants and at least of f32.

    Only statements that have expandable calls themselves are looked at.  What is used more than once is bound before the statement.
    """
    if not any(map(has_expandable_calls, tile.walk(ir.body))):
        return ir
    fresh = NameSupply(ir)

    def expand_calls(value: Expr) -> tuple[list[Stmt], Expr]:
        """Return bindings, and the value in terms of them."""
        lets: list[Stmt] = []

        def bind(e: Expr) -> Expr:
            if isinstance(e, (Ref, Const)):
                return e
            name = fresh("m")
            lets.append(Let(name, e))
            return Ref(e.dtype, name)

        def rule(e: Expr) -> Expr:
            if not isinstance(e, PrimitiveCall) or (expand := expansion(e)) is None:
                return e
            wide = e.dtype.compute
            call = PrimitiveCall(wide, e.primitive, tuple(bind(a.to(wide)) for a in e.operands))
            return bind_common_subexprs(expand(call), bind).to(e.dtype)

        return lets, scalar.transform(value, rule)

    def expand_statement(stmt: Stmt) -> Block:
        if not isinstance(stmt, (Let, Store, Reduce)) or not has_expandable_calls(stmt):
            return (stmt,)
        lets, value = expand_calls(stmt.value)
        if isinstance(stmt, Reduce):
            return (replace(stmt, body=(*stmt.body, *lets), value=value),)
        return (*lets, replace(stmt, value=value))

    return ir.with_body(tile.expand_stmts(ir.body, expand_statement))
