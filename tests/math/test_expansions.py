"""Every elementary function against a better one, over the whole range of its type.

The bounds are those that the docstrings promise: a docstring that says too little or too much fails here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest

from compiler.ir.interpret.primitives import evaluate_call
from compiler.ir.scalar import PRIMITIVES, Const, Expr, PrimitiveCall, Ref
from compiler.ir.subexpressions import likely_subexprs
from compiler.ir.types import DType, f16, f32, f64
from compiler.math.expansions import EXPANSIONS, SCALED_EXPANSIONS, expand
from compiler.math.pi import scaled_two_over_pi, two_over_pi

INF, NAN = math.inf, math.nan
SCALED = {function.__name__: function for function in SCALED_EXPANSIONS.values()}
UNARY = sorted(set(EXPANSIONS) - {"pow"})
BASIC = set(PRIMITIVES) - set(EXPANSIONS) - {"rem", "min", "max"}


def expansion(name: str, dtype: DType, native: Sequence[str] = ()) -> Expr:
    """`name` of x, or of x and y, spelt out for a target that has the primitives `native`."""
    names = ("x", "y")[: PRIMITIVES[name].arity]
    return expand(PrimitiveCall(dtype, name, tuple(Ref(dtype, n) for n in names)), native)


def evaluate(e: Expr, **values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The value of `e` in NumPy, each shared part computed once."""
    known: dict[int, Any] = {}
    for node in e.subexprs:
        if isinstance(node, PrimitiveCall):
            known[id(node)] = evaluate_call(node, tuple(known[id(a)] for a in node.operands))
        else:
            known[id(node)] = values[node.name] if isinstance(node, Ref) else node.dtype.numpy.type(node.value)
    return np.asarray(known[id(e)])


def promise(name: str, pattern: str) -> tuple[float, float]:
    """The numbers for f32 and f64 that the docstring of `name` gives."""
    found = re.search(pattern, {**EXPANSIONS, **SCALED}[name].__doc__ or "")
    assert found, f"{name} does not state {pattern}"
    return float(found[1]), float(found[2])


def promised_error(name: str, dtype: DType) -> float:
    return promise(name, r"Error ([\d.]+) ulp in f32, ([\d.]+) in f64\.")[dtype == f64]


def arguments(e: Expr, per_exponent: int) -> np.ndarray[Any, Any]:
    """Numbers of every exponent and both signs, denormals included; every constant of `e` and its neighbours; special values."""
    dtype = e.dtype.numpy
    fraction, exponents = (23, 255) if e.dtype == f32 else (52, 2047)
    random = np.random.default_rng(7)
    bits = np.repeat(np.arange(exponents, dtype=np.int64) << fraction, per_exponent)
    bits = bits | random.integers(0, 1 << fraction, bits.size)
    spread = bits.astype(f"i{dtype.itemsize}").view(dtype)
    constants = [n.value for n in e.subexprs if isinstance(n, Const) and n.dtype.is_float]
    near = np.array([*constants, 0.5, 1, 2, math.pi, 88.722839, 709.782712893384, 103.97, 745.13, 9.01, 5.9], dtype)
    neighbours = near[:, None] * (1 + np.arange(-4, 5) * np.finfo(dtype).eps)
    dense = random.uniform(-12, 12, per_exponent * 40)
    special = [0.0, np.finfo(dtype).smallest_subnormal, np.finfo(dtype).tiny, np.finfo(dtype).max, INF]
    with np.errstate(all="ignore"):
        positive = np.concatenate(
            [spread, neighbours.ravel().astype(dtype), dense.astype(dtype), np.array(special, dtype)]
        )
    return np.concatenate([positive, -positive, np.array([NAN], dtype)])


def in_domain(name: str, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The arguments for which `name` is defined."""
    return x[~(x > 0)] if name.endswith("_ftz") else x


def without_flushed(name: str, got: np.ndarray[Any, Any], exact: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """`exact`, with 0 for subnormal numbers that `name` may flush to zero, and did."""
    flushed = (got == 0) & (exact < np.finfo(got.dtype).tiny) & name.endswith("_ftz")
    return np.where(flushed, 0, exact)


def worst_f32(got: np.ndarray[Any, Any], exact: np.ndarray[Any, Any]) -> tuple[float, int]:
    """The greatest error in ulp of float32, and where; infinite where NaN, sign or infinity is wrong."""
    with np.errstate(all="ignore"):
        rounded = exact.astype(np.float32)
        ulp = np.spacing(np.minimum(np.abs(rounded), np.finfo(np.float32).max)).astype(np.float64)
        bounded = [np.clip(v.astype(np.float64), -(2.0**128), 2.0**128) for v in (got, exact)]
        error = np.abs(bounded[0] - bounded[1]) / ulp
    wrong = (np.isnan(got) != np.isnan(exact)) | (~np.isnan(exact) & (np.signbit(got) != np.signbit(exact)))
    error = np.where(wrong, INF, np.where(np.isnan(exact), 0, error))
    return float(error.max()), int(error.argmax())


REFERENCES: dict[str, Callable[..., Any]] = {
    "exp_ftz": np.exp, "exp2_ftz": np.exp2, "erf": np.vectorize(math.erf, otypes=[np.float64]), "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan,
    "rsqrt": lambda x: 1 / np.sqrt(x), "pow": np.power,
}  # fmt: skip


def reference(name: str, *args: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """`name` by NumPy in float64."""
    with np.errstate(all="ignore"):
        known = REFERENCES.get(name) or getattr(np, name)
        return np.asarray(known(*(a.astype(np.float64) for a in args)))


@pytest.mark.parametrize("name", UNARY)
def test_f32_error_is_as_promised(name: str) -> None:
    e = expansion(name, f32)
    x = in_domain(name, arguments(e, per_exponent=150))
    got = evaluate(e, x=x)
    exact = without_flushed(name, got, reference(name, x))
    error, at = worst_f32(got, exact)
    assert promised_error(name, f32) <= (1 if name == "exp" else 2)
    assert error <= promised_error(name, f32), f"{name}({x[at]!r}) is {got[at]!r}, not {exact[at]!r}"


def pairs(dtype: DType, count: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """x and y with x^y anywhere between underflow and overflow, some x near 1; then small integer powers of any x."""
    random = np.random.default_rng(3)
    exponents = 126 if dtype == f32 else 1022
    x = 2.0 ** random.uniform(-exponents, exponents, count)
    x[::3] = 1 + random.normal(size=x[::3].size) * 2.0 ** random.uniform(-20, -2, x[::3].size)
    y = random.uniform(-1.19, 1.02, count) * exponents / np.log2(np.abs(x))
    y[::7], x[::14] = np.rint(random.uniform(-4, 9, y[::7].size)), -x[::14]
    return x.astype(dtype.numpy), y.astype(dtype.numpy)


POWER_GRID = [
    *(0.0, -0.0, 1, -1, 0.5, -0.5, 2, -2, 3, -3, 1.5, 2.5, -2.5, 1e30, -1e30, 2**24 - 1, 1 - 2**24, INF, -INF, NAN),
    *(1e-40, -1e-40, 0.9999999, -0.9999999, 1.000001, 4, -4, 0.25),
]  # fmt: skip


def test_power_f32() -> None:
    e = expansion("pow", f32)
    x, y = pairs(f32, 60_000)
    grid = np.array(POWER_GRID, np.float32)
    x, y = np.concatenate([x, np.repeat(grid, grid.size)]), np.concatenate([y, np.tile(grid, grid.size)])
    got, exact = evaluate(e, x=x, y=y), reference("pow", x, y)
    error, at = worst_f32(got, exact)
    assert error <= promised_error("pow", f32), f"{x[at]!r} ** {y[at]!r} is {got[at]!r}, not {exact[at]!r}"


# --- f64 against mpmath


EXACT: dict[str, Callable[..., Any]] = {
    "exp2": lambda x: mpmath.power(2, x), "exp_ftz": mpmath.exp, "exp2_ftz": lambda x: mpmath.power(2, x), "rsqrt": lambda x: 1 / mpmath.sqrt(x), "pow": mpmath.power,
    "log2": lambda x: mpmath.log(x) / mpmath.log(2),
}  # fmt: skip
SATURATES = {"exp", "exp2", "exp_ftz", "exp2_ftz", "expm1", "sinh", "cosh", "tanh", "erf"}


def ulps_f64(got: float, exact: Any) -> float:
    """The error in ulp of float64."""
    rounded = float(exact)
    unit = math.ulp(min(abs(rounded), 1.7976931348623157e308))
    value = mpmath.mpf(got) if math.isfinite(got) else math.copysign(1, got) * mpmath.mpf(2) ** 1024
    bounded = exact if math.isfinite(rounded) else math.copysign(1, rounded) * mpmath.mpf(2) ** 1024
    return float(abs(value - bounded) / unit)


def exact_f64(name: str, *args: float) -> Any:
    """`name` to 120 bits at finite arguments, or None where it is not a finite real number."""
    if name in SATURATES:
        args = (min(max(args[0], -2000.0), 2000.0),)
    x = args[0]
    outside = {"log": x <= 0, "log2": x <= 0, "rsqrt": x <= 0, "log1p": x <= -1, "asin": abs(x) > 1, "acos": abs(x) > 1}
    if outside.get(name, False):
        return None
    with mpmath.workprec(120):
        return EXACT.get(name, getattr(mpmath, name, None))(*(mpmath.mpf(a) for a in args))


def check_f64(name: str, got: np.ndarray[Any, Any], *args: np.ndarray[Any, Any]) -> None:
    bound = promised_error(name, f64)
    assert bound <= 4
    for value, *point in zip(got.tolist(), *(a.tolist() for a in args)):
        exact = exact_f64(name, *point)
        if exact is None or (name.endswith("_ftz") and value == 0 and exact < np.finfo(np.float64).tiny):
            continue
        assert ulps_f64(value, exact) <= bound, f"{name}{tuple(point)} is {value!r}, not {exact}"
        if exact != 0 and value != 0:
            assert (value < 0) == (exact < 0), f"{name}{tuple(point)} has the wrong sign"


@pytest.mark.parametrize("name", UNARY)
def test_f64_error_is_as_promised(name: str) -> None:
    e = expansion(name, f64)
    x = arguments(e, per_exponent=40)
    x = np.concatenate([x[np.isfinite(x)][::41], arguments(e, 1)[-60:-1]])
    x = in_domain(name, x[np.isfinite(x)])
    check_f64(name, evaluate(e, x=x), x)


def test_power_f64() -> None:
    e = expansion("pow", f64)
    x, y = pairs(f64, 3000)
    check_f64("pow", evaluate(e, x=x, y=y), x, y)
    grid = np.array(POWER_GRID, np.float64)
    x, y = np.repeat(grid, grid.size), np.tile(grid, grid.size)
    got, known = evaluate(e, x=x, y=y), reference("pow", x, y)
    np.testing.assert_array_max_ulp(got, known, maxulp=2)
    assert np.array_equal(np.signbit(got), np.signbit(known) & ~np.isnan(known))


# --- special values, f32 and f64 alike


SPECIAL: dict[str, list[tuple[float, float]]] = {
    "exp": [(0.0, 1.0), (-0.0, 1.0), (INF, INF), (-INF, 0.0), (1e5, INF), (-1e5, 0.0)],
    "exp2": [(0.0, 1.0), (10.0, 1024.0), (-149.0, 2.0**-149), (INF, INF), (-INF, 0.0)],
    "exp_ftz": [(0.0, 1.0), (-0.0, 1.0), (-INF, 0.0), (-1e5, 0.0)],
    "exp2_ftz": [(0.0, 1.0), (-126.0, 2.0**-126), (-INF, 0.0), (-2000.0, 0.0)],
    "expm1": [(0.0, 0.0), (-0.0, -0.0), (1e-42, 1e-42), (INF, INF), (-INF, -1.0), (-1e5, -1.0)],
    "log": [(1.0, 0.0), (0.0, -INF), (-0.0, -INF), (INF, INF), (-1.0, NAN), (-INF, NAN), (-1e-42, NAN)],
    "log2": [(1.0, 0.0), (2.0**-149, -149.0), (2.0**127, 127.0), (0.0, -INF), (INF, INF), (-1.0, NAN)],
    "log1p": [(0.0, 0.0), (-0.0, -0.0), (1e-42, 1e-42), (-1.0, -INF), (INF, INF), (-1.5, NAN), (-INF, NAN)],
    "tanh": [(0.0, 0.0), (-0.0, -0.0), (1e-42, 1e-42), (INF, 1.0), (-INF, -1.0), (30.0, 1.0)],
    "erf": [(0.0, 0.0), (-0.0, -0.0), (INF, 1.0), (-INF, -1.0), (10.0, 1.0)],
    "sin": [(0.0, 0.0), (-0.0, -0.0), (1e-42, 1e-42), (INF, NAN), (-INF, NAN)],
    "cos": [(0.0, 1.0), (-0.0, 1.0), (1e-42, 1.0), (INF, NAN), (-INF, NAN)],
    "tan": [(0.0, 0.0), (-0.0, -0.0), (-1e-42, -1e-42), (INF, NAN), (-INF, NAN)],
    "asin": [
        (0.0, 0.0),
        (-0.0, -0.0),
        (1e-42, 1e-42),
        (1.0, math.pi / 2),
        (-1.0, -math.pi / 2),
        (1.5, NAN),
        (INF, NAN),
    ],
    "acos": [(1.0, 0.0), (-1.0, math.pi), (0.0, math.pi / 2), (-0.0, math.pi / 2), (-1.5, NAN), (-INF, NAN)],
    "atan": [(0.0, 0.0), (-0.0, -0.0), (1e-42, 1e-42), (INF, math.pi / 2), (-INF, -math.pi / 2)],
    "sinh": [(0.0, 0.0), (-0.0, -0.0), (1e-42, 1e-42), (INF, INF), (-INF, -INF), (1e4, INF)],
    "cosh": [(0.0, 1.0), (-0.0, 1.0), (INF, INF), (-INF, INF), (-1e4, INF)],
    "rsqrt": [(0.0, INF), (-0.0, -INF), (INF, 0.0), (-1.0, NAN), (4.0, 0.5)],
}


@pytest.mark.parametrize("dtype", [f32, f64], ids=str)
@pytest.mark.parametrize("name", UNARY)
def test_special_values_are_exact(name: str, dtype: DType) -> None:
    points = [*SPECIAL[name], (NAN, NAN)]
    x, exact = (np.array(v, dtype.numpy) for v in zip(*points))
    got = evaluate(expansion(name, dtype), x=x)
    np.testing.assert_array_equal(got, exact)
    number = ~np.isnan(exact)
    np.testing.assert_array_equal(np.signbit(got[number]), np.signbit(exact[number]))


@pytest.mark.parametrize("dtype", [f32, f64], ids=str)
@pytest.mark.parametrize("name", ["sin", "cos", "tanh", "erf"])
def test_never_beyond_one(name: str, dtype: DType) -> None:
    x = np.concatenate([np.linspace(-7, 7, 20_001), np.arange(-200, 200) * (math.pi / 2)]).astype(dtype.numpy)
    assert np.abs(evaluate(expansion(name, dtype), x=x)).max() == 1


# --- arguments nearest to multiples of pi/2


def nearest_to_multiples(fraction: int, last_exponent: int) -> list[float]:
    """For every exponent, the floats m 2^e with m < 2^fraction nearest to a multiple of pi/2.

    They are convergents of 2^e 2/pi: its best approximations with denominators below 2^fraction.
    """
    digits = 1300
    found = []
    for e in range(-fraction, last_exponent - fraction + 2):
        rest = Fraction(two_over_pi(digits)) * Fraction(2) ** (e - digits)
        before, m = 0, 1
        while True:
            rest -= math.floor(rest)
            if not rest:
                break
            rest = 1 / rest
            before, m = m, before + math.floor(rest) * m
            if m >= 1 << fraction:
                break
        found.append(math.ldexp(before, e))
    return found


@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_nearest_to_multiples_of_half_pi(name: str) -> None:
    x = np.array(nearest_to_multiples(53, 1023))
    assert 6381956970095103 * 2.0**797 in x  # the nearest of all (Muller, "Elementary Functions", 3rd ed., 11.2)
    check_f64(name, evaluate(expansion(name, f64), x=x), x)
    x = np.array(nearest_to_multiples(24, 127), np.float32)
    exact = np.array([float(exact_f64(name, v)) for v in x.tolist()])
    assert worst_f32(evaluate(expansion(name, f32), x=x), exact)[0] <= promised_error(name, f32)


def test_two_over_pi() -> None:
    with mpmath.workprec(2000):
        assert two_over_pi(1800) == int(mpmath.floor(mpmath.mpf(2) ** 1801 / mpmath.pi))
        high, low = scaled_two_over_pi(84)
        turns = mpmath.mpf(2) ** 85 / mpmath.pi
        assert abs(turns - 4 * mpmath.nint(turns / 4) - mpmath.mpf(high) - mpmath.mpf(low)) < 2.0**-106


@pytest.mark.parametrize("dtype", [f32, f64])
@pytest.mark.parametrize("name", SCALED_EXPANSIONS)
def test_scaling_by_one_instruction_keeps_the_bits(name: str, dtype: DType) -> None:
    plain, scaled = expansion(name, dtype), expansion(name, dtype, ["scale"])
    x = np.concatenate([arguments(plain, 64), arguments(scaled, 64)])
    np.testing.assert_array_equal(evaluate(scaled, x=x), evaluate(plain, x=x))
    assert "scale" in {n.primitive for n in scaled.calls}


# --- what expansions are made of


@pytest.mark.parametrize("name", sorted({**EXPANSIONS, **SCALED}))
def test_cost_is_as_promised(name: str) -> None:
    promised = promise(name, r"Cost f32: (\d+) operations, f64: (\d+)")
    native = ["scale"] if name in SCALED else []
    for dtype, cost in zip((f32, f64), promised):
        e = expansion(name.removeprefix("scaled_"), dtype, native)
        assert {c.primitive for c in e.calls} <= BASIC
        likely = [c for c in likely_subexprs(e) if isinstance(c, PrimitiveCall)]
        assert sum(c.primitive != "bitcast" for c in likely) == cost


def test_every_transcendental_primitive_expands() -> None:
    names = list(PRIMITIVES)
    assert set(EXPANSIONS) == set(names[names.index("exp") : names.index("rsqrt") + 1])


def test_half_precision_is_refused() -> None:
    with pytest.raises(TypeError, match="f32 and f64, not in f16"):
        expand(PrimitiveCall(f16, "exp", (Ref(f16, "x"),)))
