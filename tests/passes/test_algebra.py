"""Algebraic simplification of scalar expressions."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable

import numpy as np
import pytest

from compiler.ir.interpret.primitives import evaluate_call
from compiler.ir.scalar import Expr, Number, Ref, call_primitive, const, where
from compiler.ir.types import KERNEL_DTYPES, DType, bf16, boolean, f16, f32, f64, i8, i32, i64, u8
from compiler.passes.algebra import can_represent, simplify_scalar

X, Y, N, M = Ref(f32, "x"), Ref(f32, "y"), Ref(i32, "n"), Ref(i32, "m")
B, U = Ref(boolean, "b"), Ref(u8, "u")


def call(name: str, *args: Expr | Number) -> Expr:
    return call_primitive(name, *args)


SIMPLIFIED: list[tuple[Expr, Expr]] = [
    (X + -0.0, X),
    (-0.0 + X, X),
    (N + 0, N),
    (X - 0.0, X),
    (X * 1.0, X),
    (1 * N, N),
    (X / 1.0, X),
    (call("neg", -X), X),
    (call("not", call("not", B)), B),
    (call("abs", call("abs", X)), call("abs", X)),
    (call("floor", call("floor", X)), call("floor", X)),
    (call("min", X, X), X),
    (call("max", X, X), X),
    (N & N, N),
    (N & -1, N),
    (U & 255, U),
    (B & True, B),
    (N | 0, N),
    (N ^ 0, N),
    (N << 0, N),
    (N >> 0, N),
    (where(B, X, X), X),
    (where(const(True, boolean), X, Y), X),
    (where(const(False, boolean), X, Y), Y),
    (X.to(f64).to(f32), X),
    ((X * 1.0 + -0.0) * Y, X * Y),
    (call("exp", call("neg", -(X - 0.0))), call("exp", X)),
]


@pytest.mark.parametrize(("before", "after"), SIMPLIFIED, ids=lambda e: str(e)[:60])
def test_removes_identity(before: Expr, after: Expr) -> None:
    assert simplify_scalar(before).is_structurally_equal(after)


UNCHANGED: list[Expr] = [
    X + 0.0,  # -0.0 + 0.0 is 0.0
    X - -0.0,
    X * 0.0,  # NaN for infinities
    X - X,
    X / X,
    0.0 - X,
    N & 0,
    B | True,
    U & 127,
    where(B, X, Y),
    call("abs", -X),
    X.to(f16).to(f32),  # rounds
    N.to(f32).to(i32),
    X + Y,
]


@pytest.mark.parametrize("e", UNCHANGED, ids=lambda e: str(e)[:60])
def test_keeps_what_may_change_a_bit(e: Expr) -> None:
    assert simplify_scalar(e) is e


SPECIAL = np.array([0.0, -0.0, 1.0, -1.5, np.inf, -np.inf, np.nan, 1e-45], np.float32)


@pytest.mark.parametrize(
    "build",
    [
        lambda x: x + -0.0,
        lambda x: x - 0.0,
        lambda x: x * 1.0,
        lambda x: x / 1.0,
        lambda x: call("neg", -x),
        lambda x: call("max", x, x),
        lambda x: x.to(f64).to(f32),
    ],
)
def test_special_values_keep_their_bits(build: Callable[[Expr], Expr]) -> None:
    """The removed operation, evaluated, returns its operand bit by bit."""
    e = build(X)
    assert simplify_scalar(e) is X

    def value(e: Expr) -> object:
        return SPECIAL if e is X else evaluate_call(e, tuple(map(value, e.args))) if e.args else e.value  # type: ignore[attr-defined,arg-type]

    got = np.asarray(value(e), np.float32)
    numbers = ~np.isnan(SPECIAL)
    np.testing.assert_array_equal(got[numbers].view(np.uint32), SPECIAL[numbers].view(np.uint32))
    assert np.isnan(got[~numbers]).all()


@pytest.mark.parametrize(
    ("wide", "narrow", "expected"),
    [
        (f64, f32, True),
        (f32, f64, False),
        (f32, f16, True),
        (f16, bf16, False),
        (bf16, f16, False),
        (f32, i32, False),
        (f64, i32, True),
        (f32, u8, True),
        (bf16, u8, True),
        (bf16, i32, False),
        (bf16, i8, True),
        (i64, i32, True),
        (i8, u8, False),
        (i32, u8, True),
        (u8, i8, False),
        (i8, boolean, True),
        (i64, f16, False),
    ],
)
def test_can_represent(wide: DType, narrow: DType, expected: bool) -> None:
    assert can_represent(wide, narrow) == expected


def test_can_represent_is_a_partial_order() -> None:
    dtypes = list(KERNEL_DTYPES.values())
    assert all(can_represent(d, d) for d in dtypes)
    for a, b, c in itertools.product(dtypes, repeat=3):
        assert not (can_represent(a, b) and can_represent(b, c)) or can_represent(a, c)
    equivalent = [(a, b) for a, b in itertools.permutations(dtypes, 2) if can_represent(a, b) and can_represent(b, a)]
    assert equivalent == []


def test_operator_of_shared_subexpression_is_simplified_once() -> None:
    shared = X * 1.0
    assert simplify_scalar(operator.add(shared, shared)).is_structurally_equal(X + X)
