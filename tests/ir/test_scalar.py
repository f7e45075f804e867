"""Scalar expressions: what is inside them."""

from __future__ import annotations

from compiler.ir.index import var
from compiler.ir.scalar import IndexValue, Load, Ref, call
from compiler.ir.types import boolean, f32, i64

X, MASK = Ref(f32, "x"), Ref(boolean, "m")


def test_parts_come_operands_first_and_each_once() -> None:
    double = X + X
    whole = double * double
    assert [id(e) for e in whole.parts] == [id(X), id(double), id(whole)]
    assert X.parts == (X,)


def test_what_is_written_twice_is_two_parts() -> None:
    assert len((Ref(f32, "x") + Ref(f32, "x")).parts) == 3


def test_names_are_those_of_values_and_of_loops_but_not_of_buffers() -> None:
    load = Load(f32, "w", (var("i") + 1, 2 * var("j")), MASK, X)
    assert call("add", load, IndexValue(i64, var("k")).to(f32)).names == {"i", "j", "k", "m", "x"}
