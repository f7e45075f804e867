"""Bounds of integers that conditions select."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest

from compiler.analysis.value_bounds import UNKNOWN, ValueBounds, compared
from compiler.ir.scalar import Expr, Ref, maximum, minimum, where
from compiler.ir.types import boolean, f32, i8, i64

X, N = Ref(f32, "x"), Ref(i64, "n")


def selected(condition: Expr, value: Expr = X) -> Expr:
    return where(condition, value.to(i64), 0)


@pytest.mark.parametrize(
    ("value", "bounds"),
    [
        (selected((X >= 0.0) & (X < 32.0)), (0, 31)),
        (selected((X > -1.0) & (X <= 31.5)), (0, 31)),
        (selected(X < 32.0), UNKNOWN),  # no integer is as low as all floats
        (where(N < 32, N, 0), (-inf, 31)),
        (selected((X >= 0.0) | (X < 32.0)), UNKNOWN),  # either may fail
        (selected((X >= 0.0) & (X < 32.0), X + 1.0), UNKNOWN),  # another value
        (selected((X >= 0.0) & (inf > X)), UNKNOWN),  # no integer
        (where((X >= 0.0) & (X < 32.0), 40, X.to(i64)), UNKNOWN),  # the condition fails
        (where((X >= 0.0) & (X < 300.0), X.to(i8).to(i64), 0), UNKNOWN),  # a narrow integer wraps
        (minimum(maximum(N, 0), 7), (0, 7)),
        (N & 7, (0, 7)),
        (N & -8, UNKNOWN),  # keeps the sign
        (where(N.eq(3), N, 5), (3, 5)),
    ],
)
def test_bounds(value: Expr, bounds: tuple[float, float]) -> None:
    assert ValueBounds({}).of(value) == bounds


def test_names_are_followed_to_their_definitions() -> None:
    inside, row = Ref(boolean, "inside"), Ref(i64, "row")
    named = {"inside": (X >= 0.0) & (X < 32.0), "row": X.to(i64)}
    assert ValueBounds(named).of(where(inside, row, 0)) == (0, 31)
    assert ValueBounds({"inside": named["inside"]}).of(where(inside, row, 0)) == UNKNOWN


def test_what_many_selections_share_takes_no_time() -> None:
    names = {f"n{k + 1}": where(Ref(i64, f"n{k}") < 5, Ref(i64, f"n{k}"), Ref(i64, f"n{k}")) for k in range(60)}
    assert ValueBounds(names).of(Ref(i64, "n60")) == UNKNOWN


@pytest.mark.parametrize("limit", [-2.0, -1.5, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0])
@pytest.mark.parametrize(
    ("name", "holds"), [("lt", np.less), ("le", np.less_equal), ("gt", np.greater), ("ge", np.greater_equal), ("eq", np.equal)]
)  # fmt: skip
def test_comparisons_bound_integer_parts(name: str, holds: np.ufunc, limit: float) -> None:
    values = np.arange(-4, 4, 0.25)
    low, high = compared(name, limit, True)
    parts = np.trunc(values[holds(values, limit)])
    assert ((parts >= low) & (parts <= high)).all()
    if limit == int(limit):
        whole = values[values == np.trunc(values)]
        low, high = compared(name, limit, False)
        assert (holds(whole, limit) == ((whole >= low) & (whole <= high))).all()
