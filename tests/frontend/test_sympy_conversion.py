"""PyTorch's sizes and the numbers computed from them."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import ceil
from typing import Any

import pytest
import sympy
import torch
from frontend_kit import check_import
from hypothesis import assume, given
from hypothesis import strategies as st
from torch.utils._sympy import functions as of

from compiler.frontend.promotion import as_node
from compiler.frontend.registry import ConversionError
from compiler.frontend.sympy_conversion import exact_ratio, from_sympy, integer_node
from compiler.frontend.unbacked_symbols import UnbackedSymbols
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import Node, input_node
from compiler.ir.interpret.graph import interpret
from compiler.ir.symbolic.index_expr import evaluate
from compiler.ir.types import TensorType, i64

S = sympy.Symbol("s0", integer=True, positive=True)
T = sympy.Symbol("s1", integer=True, positive=True)
N = sympy.Symbol("u0", integer=True)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        (S * T + 3, 38),
        (of.Min(S, T), 5),
        (of.Max(S, T, 6), 7),
        (of.PowByNatural(S, 3), 343),
        (of.TruncToInt(of.IntTrueDiv(S, 2)), 3),
        (of.FloorToInt(of.IntTrueDiv(S, T)), 1),
        (of.CeilToInt(of.IntTrueDiv(S, T)), 2),
        (of.TruncToInt(1.7 * of.ToFloat(S)), 11),
        (of.FloorToInt(0.5 * of.ToFloat(S)), 3),
        (of.CeilToInt(0.5 * of.ToFloat(S)), 4),
    ],
    ids=str,
)
def test_sizes(expression: Any, value: int) -> None:
    assert evaluate(from_sympy(expression), {"s0": 7, "s1": 5}) == value


@pytest.mark.parametrize(
    "expression",
    [
        of.TruncToInt(-1.5 * of.ToFloat(S)),
        of.TruncToInt(0.123456789 * of.ToFloat(S)),
        of.TruncToInt(of.OpaqueUnaryFn_sqrt(of.ToFloat(S))),
    ],
    ids=str,
)
def test_sizes_that_integers_do_not_give(expression: Any) -> None:
    with pytest.raises(ConversionError):
        from_sympy(expression)


@given(st.integers(1, 1000), st.integers(1, 1000), st.integers(0, 2**31), st.booleans())
def test_a_ratio_rounds_as_its_float_does(p: int, q: int, n: int, up: bool) -> None:
    times = exact_ratio(p / q)
    assume(times)
    assert times == Fraction(p, q)
    found = -(-n * p // q) if up else n * p // q
    assert found == (ceil if up else int)(n * (p / q))


def test_ratios() -> None:
    found = [exact_ratio(n / 10) for n in range(1, 41)]
    assert sum(f is not None for f in found) > 30
    assert exact_ratio(1.7) == Fraction(17, 10)


@pytest.mark.parametrize("scale", [0.123456789, 2**0.5, 0.3333333])
def test_numbers_that_are_no_ratio(scale: float) -> None:
    assert exact_ratio(scale) is None


def test_numbers_computed_from_sizes_count_as_numbers() -> None:
    """A tensor keeps its element type beside them, as beside any number of Python."""

    def scaled(x: torch.Tensor, y: torch.Tensor) -> Any:
        n = x.shape[0]
        return x / n**0.5, x * (1 / n), torch.add(x, x, alpha=n / 3), torch.lerp(x, x + 1, 1 / n), y * (n / 2)

    x = torch.randn(5, 3), torch.arange(6)
    imported = check_import(scaled, *x, dynamic_shapes={"args": ({0: torch.export.Dim("n", min=2, max=64)}, None)})
    assert [str(o.dtype) for o in imported.graph.outputs] == ["f32"] * 5


def test_ranges_with_steps_that_are_sizes() -> None:
    def starts(x: torch.Tensor) -> torch.Tensor:
        return torch.arange(0, x.shape[0] * x.shape[1], x.shape[1])

    dims = {0: torch.export.Dim("n", min=2, max=64), 1: torch.export.Dim("m", min=2, max=64)}
    check_import(starts, torch.randn(5, 3), dynamic_shapes={"args": (dims,)})


@pytest.mark.parametrize(
    ("expression", "function"),
    [
        (sympy.Piecewise((1, sympy.And(sympy.Eq(N + 2, 0), N < 0)), (0, True)), lambda n: int(n + 2 == 0 and n < 0)),
        (
            sympy.Piecewise((3, N < -2), (2 * N, sympy.Not(N > 1)), (7, True)),
            lambda n: 3 if n < -2 else 2 * n if n <= 1 else 7,
        ),
        (of.FloorDiv(N, 3) + of.PythonMod(N, 3), lambda n: n // 3 + n % 3),
        (of.Max(N, 1, of.Min(-N, 2)), lambda n: max(n, 1, min(-n, 2))),
    ],
    ids=["condition", "choice", "division", "extremes"],
)
def test_numbers_of_data(expression: Any, function: Callable[[int], int]) -> None:
    x = input_node("n", TensorType(i64, ()))

    def convert(e: Any) -> Node:
        return x if e == N else as_node(int(e)) if e.is_Integer else integer_node(e, convert)

    graph = Graph((x,), (convert(expression),))
    for n in range(-5, 6):
        assert interpret(graph, [torch.tensor(n)])[0] == function(n)


def test_a_known_number_stays_one() -> None:
    assert UnbackedSymbols().float_or_scalar(1.5) == 1.5
