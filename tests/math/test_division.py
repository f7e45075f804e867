"""Quotients by a reciprocal have the bits of a division."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from compiler.ir.interpret.primitives import evaluate_call
from compiler.ir.scalar import Const, Expr, PrimitiveCall, Ref
from compiler.ir.types import DType, f32, f64
from compiler.math.division import has_plain_reciprocal, quotient

Floats = NDArray[np.floating]


def evaluate(e: Expr, **values: Floats) -> Floats:
    """The value of `e` in NumPy, each shared part computed once."""
    known: dict[int, Floats] = {}
    with np.errstate(all="ignore"):
        for node in e.subexprs:
            if isinstance(node, PrimitiveCall):
                known[id(node)] = evaluate_call(node, tuple(known[id(a)] for a in node.operands))
            elif isinstance(node, Const):
                known[id(node)] = node.dtype.numpy.type(node.value)
            else:
                assert isinstance(node, Ref)
                known[id(node)] = values[node.name]
    return known[id(e)]


def numbers(dtype: DType, low: int, high: int, count: int = 200_000) -> Floats:
    """Random numbers of both signs with exponents from `low` to `high`."""
    random = np.random.default_rng(3)
    fraction, exponent, sign = (
        1 + random.random(count),
        random.integers(low, high, count),
        random.choice([-1, 1], count),
    )
    return np.ldexp(sign * fraction, exponent).astype(dtype.numpy)


def same_bits(got: Floats, exact: Floats) -> None:
    assert got.dtype == exact.dtype
    np.testing.assert_array_equal(got, exact)
    np.testing.assert_array_equal(np.signbit(got)[~np.isnan(got)], np.signbit(exact)[~np.isnan(exact)])


@pytest.mark.parametrize(("dtype", "exponent", "fraction"), [(f32, 126, 24), (f64, 1022, 53)])
def test_quotients_of_all_sizes(dtype: DType, exponent: int, fraction: int) -> None:
    x, y = (
        numbers(dtype, -exponent + fraction + 1, exponent),
        np.roll(numbers(dtype, -exponent - fraction + 2, exponent + 1), 1),
    )
    got = evaluate(quotient(Ref(dtype, "x"), Ref(dtype, "y")), x=x, y=y)
    with np.errstate(all="ignore"):
        exact = x / y
    normal = np.abs(exact) >= np.ldexp(np.finfo(exact.dtype).tiny, fraction + 1)
    same_bits(got[normal], exact[normal])
    assert (np.abs(got[~normal] - exact[~normal]) <= np.spacing(np.abs(exact[~normal]))).all()


def test_large_divisors_and_constants() -> None:
    """Their reciprocals are subnormal or infinite."""
    y = numbers(f32, 122, 127)
    x = np.roll(np.ldexp(numbers(f32, 0, 1), 100).astype(np.float32), 7)
    same_bits(evaluate(quotient(Ref(f32, "x"), Ref(f32, "y")), x=x, y=y), x / y)
    assert has_plain_reciprocal(Const(f32, 6.0))
    assert not any(has_plain_reciprocal(Const(f32, c)) for c in (0.0, 1e-39, 1e-30, 3e38, math.inf, math.nan))


@pytest.mark.parametrize("dtype", [f32, f64])
def test_special_numbers(dtype: DType) -> None:
    info = np.finfo(dtype.numpy)
    some = [0, 1, 3, info.smallest_subnormal, info.tiny, info.max, np.inf]
    values = np.array([*some, *(-v for v in some), np.nan], dtype.numpy)
    x, y = (v.ravel() for v in np.meshgrid(values, values))
    with np.errstate(all="ignore"):
        same_bits(evaluate(quotient(Ref(dtype, "x"), Ref(dtype, "y")), x=x, y=y), x / y)


@pytest.mark.parametrize("divisor", [6.0, 3.0, -0.7, 1e-18, 9e18])
def test_constants(divisor: float) -> None:
    x = numbers(f32, -90, 20)
    with np.errstate(all="ignore"):
        exact = x / np.float32(divisor)
    got = evaluate(quotient(Ref(f32, "x"), Const(f32, divisor)), x=x)
    normal = np.abs(exact) >= np.finfo(np.float32).tiny
    same_bits(got[normal], exact[normal])


@pytest.mark.parametrize("dtype", [f32, f64])
def test_shares(dtype: DType) -> None:
    """Of all sizes, and of sums that are zero, infinite or NaN."""
    low, info = (-90 if dtype == f32 else -900), np.finfo(dtype.numpy)
    y = np.abs(numbers(dtype, low, -low))
    y[:6] = info.smallest_subnormal, 0, np.inf, np.inf, np.nan, info.max
    x = y * np.random.default_rng(5).random(y.size).astype(y.dtype)
    x[:6] = info.smallest_subnormal, 0, 1, np.inf, 0, info.max
    x[6:99] = 0
    with np.errstate(all="ignore"):
        same_bits(evaluate(quotient(Ref(dtype, "x"), Ref(dtype, "y"), is_share=True), x=x, y=y), x / y)
