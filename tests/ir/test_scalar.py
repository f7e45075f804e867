"""Scalar expressions: what is inside them."""

from __future__ import annotations

import gc
import weakref

from compiler.ir.scalar import IndexValue, Load, Ref, call_primitive
from compiler.ir.symbolic.index_expr import var
from compiler.ir.types import boolean, f32, i64

X, MASK = Ref(f32, "x"), Ref(boolean, "m")


def test_parts_come_operands_first_and_each_once() -> None:
    double = X + X
    whole = double * double
    assert [id(e) for e in whole.subexprs] == [id(X), id(double), id(whole)]
    assert X.subexprs == (X,)


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
