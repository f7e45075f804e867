"""Contractions: which reductions combine two operands that tiles of registers use again."""

from __future__ import annotations

import pytest

from compiler.ir.tile.contraction import adds_products, is_contraction
from compiler.ir.tile.kernel import Reduce, walk
from compiler.testing.checks import parse_ir


def reduction(text: str, rows: str = "%i", columns: str = "%j") -> Reduce:
    """A reduction inside loops over %i and %j, of what stands in `text`."""
    kernel = parse_ir(f"""kernel @k(in %x: f32[8, 4], in %y: f32[8, 4], in %b: f32[8], out %z: f32[8, 8]) {{
      parallel %i in 0..8 {{ parallel %j in 0..8 {{
        %s = reduce {text.replace("X", f"%x[{rows}, %k]").replace("Y", f"%y[{columns}, %k]")}
        store %s, %z[%i, %j]
      }} }}
    }}""")
    return next(s for s in walk(kernel.body) if isinstance(s, Reduce))


@pytest.mark.parametrize(
    "text",
    [
        "add %k in 0..4 { yield abs(X - Y) }",
        "max %k in 0..4 { yield abs(X - Y) }",
        "min %k in 0..4 { yield X + Y }",
        "add %k in 0..4 { yield cast<f32>(X < Y) }",
        "add %k in 0..4 { %v = X - Y  yield %v * %v }",
        "max %k in 0..4 { %v = X - Y  yield max(%v, -%v) }",
        "add %k in 0..4 { yield exp(X) * Y }",
    ],
)
def test_a_function_of_two_operands_is_a_contraction(text: str) -> None:
    assert is_contraction(reduction(text))


@pytest.mark.parametrize(
    "text",
    [
        "add %k in 0..4 { yield abs(X) }",
        "max %k in 0..4 { yield X + %b[%i] }",  # a bias of the same rows
        "max %k in 0..4 { yield X + %b[%k] }",  # what both loops around share
    ],
)
def test_one_operand_that_varies_is_none(text: str) -> None:
    assert not is_contraction(reduction(text))


def test_operands_of_the_same_rows_are_none() -> None:
    assert not is_contraction(reduction("add %k in 0..4 { yield abs(X - Y) }", columns="%i"))
    assert not is_contraction(reduction("add %k in 0..4 { %v = X - Y  yield abs(%v) }", columns="%i"))


def test_only_products_are_multiply_adds() -> None:
    assert adds_products(reduction("add %k in 0..4 { yield X * Y }"))
    assert not adds_products(reduction("max %k in 0..4 { yield X * Y }"))
    assert not adds_products(reduction("add %k in 0..4 { yield X - Y }"))
