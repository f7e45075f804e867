"""Index expressions: canonical forms, simplification and bounds, compared with evaluation by Python."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler.errors import DynamicShapeError
from compiler.ir.symbolic.binding import substitute_symbols
from compiler.ir.symbolic.index_expr import (
    Dim,
    IndexExpr,
    ceildiv,
    dynamic_size,
    dynamic_sizes,
    evaluate,
    floordiv,
    interval,
    maximum,
    minimum,
    mod,
    product,
    simplify,
    size_hint,
    substitute,
    var,
    variables,
)
from compiler.ir.text.lexer import parse_all
from compiler.ir.text.type_parser import read_dim

Values = Mapping[str, int]
A, B, N = var("i"), var("j"), dynamic_size("n", 1, 9, 4)
BOUNDS: Mapping[str, tuple[Dim, Dim]] = {"i": (0, 7), "j": (-3, 3)}
VALUES = st.fixed_dictionaries({"i": st.integers(0, 7), "j": st.integers(-3, 3), "n": st.integers(1, 9)})
FAST = settings(max_examples=150, deadline=None, derandomize=True)


@dataclass(frozen=True)
class Case:
    """An index expression and the Python function that it stands for."""

    dim: Dim
    value: Callable[[Values], int]

    def __repr__(self) -> str:
        return str(self.dim)


LEAVES = st.one_of(
    st.sampled_from(
        [Case(A, lambda v: v["i"]), Case(B, lambda v: v["j"]), Case(N, lambda v: v["n"])],
    ),
    st.integers(-6, 6).map(lambda c: Case(c, lambda v: c)),
)
BINARY: Mapping[str, tuple[Callable[[Dim, Dim], Dim], Callable[[int, int], int]]] = {
    "+": (operator.add, operator.add),
    "-": (operator.sub, operator.sub),
    "*": (operator.mul, operator.mul),
    "min": (minimum, min),
    "max": (maximum, max),
}
DIVISIONS: Mapping[str, tuple[Callable[[Dim, Dim], Dim], Callable[[int, int], int]]] = {
    "//": (floordiv, operator.floordiv),
    "%": (mod, operator.mod),
    "ceildiv": (ceildiv, lambda x, y: -(-x // y)),
}


def combine(build: Callable[[Dim, Dim], Dim], python: Callable[[int, int], int], a: Case, b: Case) -> Case:
    return Case(build(a.dim, b.dim), lambda v: python(a.value(v), b.value(v)))


def extend(children: st.SearchStrategy[Case]) -> st.SearchStrategy[Case]:
    """Sums, products and extrema of two expressions, and divisions by positive constants or the size."""
    divisors = st.one_of(
        st.integers(1, 6).map(lambda c: Case(c, lambda v: c)),
        st.just(Case(N, lambda v: v["n"])),
    )
    binary = st.builds(lambda f, a, b: combine(*f, a, b), st.sampled_from(list(BINARY.values())), children, children)
    divided = st.builds(
        lambda f, a, b: combine(*f, a, b), st.sampled_from(list(DIVISIONS.values())), children, divisors
    )
    return binary | divided


CASES = st.recursive(LEAVES, extend, max_leaves=8)
POLYNOMIALS = st.recursive(
    LEAVES,
    lambda c: st.builds(lambda f, a, b: combine(*BINARY[f], a, b), st.sampled_from("+-*"), c, c),
    max_leaves=6,
)


@FAST
@given(CASES, VALUES)
def test_value_is_that_of_python(case: Case, values: Values) -> None:
    assert evaluate(case.dim, values) == case.value(values)


@FAST
@given(CASES, VALUES)
def test_substitution_in_steps_gives_the_same_value(case: Case, values: Values) -> None:
    half = substitute(case.dim, {"i": values["i"]})
    assert "i" not in variables(half)
    assert evaluate(half, values) == case.value(values)


@FAST
@given(CASES, VALUES)
def test_simplification_under_bounds_keeps_the_value(case: Case, values: Values) -> None:
    assert evaluate(simplify(case.dim, BOUNDS), values) == case.value(values)


@FAST
@given(CASES, VALUES)
def test_interval_contains_the_value(case: Case, values: Values) -> None:
    limits = interval(case.dim, BOUNDS)
    assert limits is None or limits[0] <= case.value(values) <= limits[1]


@FAST
@given(CASES)
def test_text_parses_to_an_equal_expression(case: Case) -> None:
    d = substitute(case.dim, {"n": var("n")})  # a size needs a declaration
    again = parse_all(str(d), read_dim)
    assert again == d
    assert hash(again) == hash(d)


@FAST
@given(POLYNOMIALS, POLYNOMIALS, POLYNOMIALS)
def test_equal_polynomials_have_one_form(a: Case, b: Case, c: Case) -> None:
    x, y, z = a.dim, b.dim, c.dim
    for one, other in (
        (x + y, y + x),
        (x * y, y * x),
        ((x + y) + z, x + (y + z)),
        ((x * y) * z, x * (y * z)),
        (x * (y + z), x * y + x * z),
        (x - y, -(y - x)),
    ):
        assert one == other
        assert hash(one) == hash(other)
        assert str(one) == str(other)
    assert x - x == 0
    assert isinstance(x - x, int)


@FAST
@given(CASES, st.integers(1, 6))
def test_quotient_and_remainder_recombine(case: Case, divisor: int) -> None:
    d = case.dim
    assert (d // divisor) * divisor + d % divisor == d
    assert (d * divisor) // divisor == d
    assert (d * divisor) % divisor == 0
    assert (d + divisor) % divisor == d % divisor
    assert (d + divisor) // divisor == d // divisor + 1


@pytest.mark.parametrize(
    ("d", "text"),
    [
        (B + A * 2 + 1, "i*2 + j + 1"),
        (A * (B + 1) - A, "i*j"),
        ((A * 4 + 2) // 2, "i*2 + 1"),
        ((A * 4 + 3) // 8, "i//2"),
        ((A * 2) // 6, "i//3"),
        ((A * 6 + B) % 6, "j%6"),
        (A * N // N, "i"),
        (A * N % N, "0"),
        (N // N, "1"),
        (floordiv(A, 8, BOUNDS), "0"),
        (mod(A, 8, BOUNDS), "i"),
        (mod(A + 8, 8, BOUNDS), "i"),
        (mod(A, 8, {"i": (8, 15)}), "i - 8"),
        (floordiv(B, 4, BOUNDS), "j//4"),
        (minimum(A, 8, BOUNDS), "i"),
        (maximum(A, 8, BOUNDS), "8"),
        (minimum(N, 9), "n"),
        (minimum(N + 1, N), "n"),
        (ceildiv(N * 4, 4), "n"),
        (-A, "-i"),
        (2 - A, "-i + 2"),
        (A - A, "0"),
    ],
)
def test_canonical_text(d: Dim, text: str) -> None:
    assert str(d) == text


def test_python_operators_with_an_integer_on_the_left() -> None:
    assert evaluate(17 // N, {"n": 5}) == 3
    assert evaluate(17 % N, {"n": 5}) == 2
    assert evaluate(17 - N, {"n": 5}) == 12


def test_what_is_less_than_a_step_leaves_a_division() -> None:
    """(27a + b) // 1080 = a // 40 if b is in 0..27, and the remainder keeps b."""
    bounds = {"i": (0, 500), "j": (0, 26)}
    assert simplify((A * 27 + B) // 1080, bounds) == A // 40
    assert simplify((A * 27 + B) % 1080, bounds) == A % 40 * 27 + B
    assert simplify((A * 27 + B + 1) // 1080, bounds) == (A * 27 + B + 1) // 1080
    assert simplify((A * 27 - B) % 1080, bounds) == (A * 27 - B) % 1080


def test_division_by_zero_is_refused() -> None:
    for divide in (floordiv, mod):
        with pytest.raises(ZeroDivisionError, match="i"):
            divide(A, 0)


def test_evaluation_needs_every_symbol() -> None:
    with pytest.raises(KeyError, match="no value for i, j in"):
        evaluate(A + B * N, {"n": 2})
    with pytest.raises(DynamicShapeError, match="n must be static, but n is dynamic"):
        evaluate(N, {})


def test_symbols_and_hints() -> None:
    d = A * N + B // 2
    assert variables(d) == {"i", "j"}
    assert {s.name for s in dynamic_sizes(d)} == {"n"}
    assert size_hint(d) == A * 4 + B // 2
    assert product([2, A, N]) == A * N * 2
    assert product([]) == 1
    assert interval(N * 2 + 1, {}) == (3, 19)
    assert interval(A, {}) is None


def test_substitutes_symbols_in_attribute_values() -> None:
    assert substitute_symbols((1, (A, "text"), None), {"i": B}) == (1, (B, "text"), None)
    assert substitute_symbols("i", {"i": 3}) == "i"
    assert isinstance(substitute(A + B, {"i": B}), IndexExpr)
