"""Scalar expressions: what is inside them."""

from __future__ import annotations

import gc
import weakref

from compiler.ir import scalar
from compiler.ir.scalar import Expr, IndexValue, Load, Ref, call_primitive
from compiler.ir.subexpressions import bind_common_subexprs
from compiler.ir.symbolic.index_expr import var
from compiler.ir.text.tile_printer import print_expr
from compiler.ir.types import bf16, boolean, f32, i64

X, MASK = Ref(f32, "x"), Ref(boolean, "m")


def test_parts_come_operands_first_and_each_once() -> None:
    double = X + X
    whole = double * double
    assert [id(e) for e in whole.subexprs] == [id(X), id(double), id(whole)]
    assert X.subexprs == (X,)


def test_subexpressions_are_the_same_whether_those_of_operands_are_known() -> None:
    def build(ask: bool) -> Expr:
        shared = X * 2.0
        left, right = scalar.exp(shared) + X, (shared - 1.0) * shared
        if ask:
            assert right.subexprs
            assert left.subexprs
        return scalar.maximum(left * right, shared)

    assert [print_expr(e) for e in build(True).subexprs] == [print_expr(e) for e in build(False).subexprs]
    assert len(build(True).subexprs) == len({id(e) for e in build(True).subexprs})


def test_an_expression_that_shares_no_call_has_nothing_to_bind() -> None:
    def bind(e: Expr) -> Expr:
        bound.append(print_expr(e))
        return Ref(e.dtype, f"v{len(bound)}")

    bound = list[str]()
    alone = X * X + scalar.exp(X)
    assert bind_common_subexprs(alone, bind) is alone
    square = X * X
    assert print_expr(bind_common_subexprs(square + scalar.exp(square), bind)) == "%v1 + exp(%v1)"
    assert bound == ["%x * %x"]


def test_what_is_written_twice_is_two_parts() -> None:
    assert len((Ref(f32, "x") + Ref(f32, "x")).subexprs) == 3


def test_names_are_those_of_values_and_of_loops_but_not_of_buffers() -> None:
    load = Load(f32, "w", (var("i") + 1, 2 * var("j")), MASK, X)
    assert call_primitive("add", load, IndexValue(i64, var("k")).to(f32)).used_names == {"i", "j", "k", "m", "x"}


def test_expressions_die_with_their_last_name() -> None:
    """What is kept of one that has been looked at does not hold it: cycles are looked for late."""
    gc.disable()
    try:
        found = [Ref(f32, "x"), Load(f32, "w", (var("i"),), MASK, X), X * X]
        seen = [(len(e.subexprs), len(e.loads), len(e.calls), len(e.used_names)) for e in found]
        assert seen == [(1, 0, 0, 1), (3, 1, 0, 3), (2, 0, 1, 1)]
        alive = [weakref.ref(e) for e in found]
        found.clear()
        assert [e() for e in alive] == [None, None, None]
    finally:
        gc.enable()


def test_literals_are_converted_at_once_to_formats_with_all_their_numbers() -> None:
    assert scalar.const(0.1, bf16).to(f32) == scalar.const(0.10009765625, f32)
    assert scalar.const(0.1, f32).to(bf16) == call_primitive("cast", scalar.const(0.1, f32), dtype=bf16)
    assert scalar.const(3, i64).to(f32) == call_primitive("cast", scalar.const(3, i64), dtype=f32)
