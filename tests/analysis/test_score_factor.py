"""The common factor of scores: which products have one, and what a maximum of scores is without it."""

from __future__ import annotations

from math import inf, nan

import pytest

from compiler.analysis.score_factor import FactoredMax, factored_max, is_store_of, split_factor
from compiler.ir.scalar import Expr, Ref, const, exp, maximum, where
from compiler.ir.text.tile_parser import parse_kernel
from compiler.ir.tile.kernel import Let, Reduce, Store, walk
from compiler.ir.types import boolean, f32, i64

X, Y, N, SEEN = Ref(f32, "x"), Ref(f32, "y"), Ref(i64, "n"), Ref(boolean, "seen")
LOWEST = const(-inf, f32)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (X * 0.125, (X, 0.125)),
        (0.125 * X, (X, 0.125)),
        ((X + Y) * 2.0, (X + Y, 2.0)),
        (X * Y * 0.5, (X * Y, 0.5)),
        (where(SEEN, X * 0.125, LOWEST), (where(SEEN, X, LOWEST), 0.125)),
        (
            where(SEEN, where(X > 0.0, X * 0.125, LOWEST), LOWEST),
            (where(SEEN, where(X > 0.0, X, LOWEST), LOWEST), 0.125),
        ),
        (where(SEEN, X, LOWEST), (where(SEEN, X, LOWEST), 1.0)),
    ],
)
def test_a_positive_constant_is_split_off(value: Expr, expected: tuple[Expr, float]) -> None:
    assert split_factor(value) == expected


@pytest.mark.parametrize(
    "value",
    [
        X,
        const(0.125, f32),
        X + 0.125,
        X * Y,
        X * -0.125,
        X * 0.0,
        X * inf,
        X * nan,
        N * 3,
        X * 0.125 + 1.0,
        exp(X) - 0.5,
        where(SEEN, X * 0.125, const(0.0, f32)),
        where(SEEN, LOWEST, X * 0.125),
        maximum(X * 0.125, LOWEST),
    ],
    ids=str,
)
def test_other_values_have_the_factor_1(value: Expr) -> None:
    assert split_factor(value) == (value, 1.0)


def row(body: str) -> Reduce:
    """The maximum of a row, with the statements `body`."""
    kernel = parse_kernel(f"""kernel @k(in %c: f32[8], in %b: bool[8], out %y: f32[]) {{
      local %p: f32[8]  local %q: f32[8]  %m = reduce max %r in 0..8 {{ {body} }}  store %m, %y[] }}""")
    return next(s for s in walk(kernel.body) if isinstance(s, Reduce))


@pytest.mark.parametrize(
    ("scores", "without", "factor", "buffers"),
    [
        ("yield %c[%r]*0.125", "yield %c[%r]", 0.125, []),
        ("yield where(%b[%r], %c[%r]*2.0, -inf)", "yield where(%b[%r], %c[%r], -inf)", 2.0, []),
        ("%s = %c[%r]*0.125  yield %s", "%s = %c[%r]  yield %s", 0.125, []),
        ("%s = %c[%r]*0.125  store %s, %p[%r]  yield %s", "%s = %c[%r]  store %s, %p[%r]  yield %s", 0.125, ["p"]),
        (
            "%s = %c[%r]*0.125  store %s, %p[%r]  store %s, %q[7 - %r]  yield %s",
            "%s = %c[%r]  store %s, %p[%r]  store %s, %q[7 - %r]  yield %s",
            0.125,
            ["p", "q"],
        ),
        (
            "%d = %c[%r]  %s = where(%b[%r], %d*0.5, -inf)  store %d, %q[%r]  store %s, %p[%r]  yield %s",
            "%d = %c[%r]  %s = where(%b[%r], %d, -inf)  store %d, %q[%r]  store %s, %p[%r]  yield %s",
            0.5,
            ["p"],
        ),
        ("%s = %c[%r]  store %s, %p[%r]  yield %s", "%s = %c[%r]  store %s, %p[%r]  yield %s", 1.0, ["p"]),
    ],
)
def test_scores_and_their_buffers_are_divided_by_the_factor(
    scores: str, without: str, factor: float, buffers: list[str]
) -> None:
    assert factored_max(row(scores)) == FactoredMax(row(without), factor, frozenset(buffers))


@pytest.mark.parametrize(
    "scores",
    [
        "yield %c[%r]",
        "yield exp(%c[%r])",
        "%s = %c[%r]*0.125  yield exp(%s)",
        "%s = %c[%r]*0.125  %t = exp(%s)  store %t, %p[%r]  yield %s",
        "%s = %c[%r]*0.125  store exp(%s), %p[%r]  yield %s",
        "%s = %c[%r]*0.125  store %s, %p[%r]  store %s + 1.0, %q[%r]  yield %s",
    ],
)
def test_scores_without_a_factor_or_with_other_readers_stay(scores: str) -> None:
    assert factored_max(row(scores)) == FactoredMax(row(scores), 1.0)


def test_stores_of_a_value_are_recognized() -> None:
    assert is_store_of(Store("p", (0,), X), X)
    assert not is_store_of(Store("p", (0,), X * 2.0), X)
    assert not is_store_of(Let("x", Y), Y)
