"""integer-slices: floats times constant integers as dot products of bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler.cost.machine import AVX512
from compiler.ir.float_format import Array
from compiler.ir.graph.graph import Graph
from compiler.ir.interpret.graph import interpret
from compiler.ir.types import i32
from compiler.passes.base import Context
from compiler.passes.graph.fold import known_values
from compiler.passes.manager import run_pipeline
from compiler.target import MatrixShape
from compiler.testing.checks import check_pass, parse_ir

PASS = "integer-slices{min-bytes=0,min-columns=1}"
SHAPES = (MatrixShape(1, 16, 4, "u8", "i8", "i32"),)


def product(weights: str, dtype: str = "u8", rows: int = 1, terms: int = 4) -> str:
    """Rows of floats times constant integers with one column."""
    return f"""graph(%x: f32[{rows}, {terms}]) {{
      %w = constant {dtype}[{terms}, 1] {weights}
      %c = cast %w {{dtype=f32}}  %y = matmul %x, %c  return %y }}"""


def sliced(codes: str) -> str:
    """The product of one row of four floats in slices."""
    return f"""graph(%x: f32[1, 4]) {{
      %starts = constant i32[3, 1, 1] [[[16]], [[8]], [[0]]]  %powers = constant f32[3, 1, 1] [[[65536.0]], [[256.0]], [[1.0]]]
      {codes}
      %abs = abs %x  %most = amax %abs {{dims=[1], keepdim=true}}
      %small = mul %most, 2.384185791015625e-07  %unit = maximum %small, 1.1754943508222875e-38
      %reciprocal = div 1.0, %unit  %scaled = mul %x, %reciprocal  %near = round %scaled  %units = cast %near {{dtype=i32}}
      %positive = add %units, 8421504  %row = reshape %positive {{shape=[1, 1, 4]}}
      %shifted = shift_right %row, %starts  %signed = sub %shifted, 128  %bytes = cast %signed {{dtype=i8}}
      %slices = reshape %bytes {{shape=[3, 4]}}
      %p = matmul %slices, %codes {{dtype=i32}}
      %floats = cast %p {{dtype=f32}}  %apart = reshape %floats {{shape=[3, 1, 1]}}
      %one = reshape %unit {{shape=[]}}  %weights = mul %powers, %one
      %terms = mul %apart, %weights  %y = sum %terms {{dims=[0]}}
      return %y }}"""


def test_bytes_are_multiplied_as_they_are() -> None:
    check_pass(
        PASS,
        before=product("[[3], [200], [0], [255]]"),
        after=sliced("%codes = constant u8[4, 1] [[3], [200], [0], [255]]"),
        remark="multiplied in 3 slices of 8 bits",
        matrix_shapes=SHAPES,
        special=False,
        limits=False,
    )


GROUPS = """graph(%x: f32[{rows}, 8]) {{
  %g = reshape %x {{shape=[{rows}, 2, 4]}}  %a = permute %g {{dims=[1, 0, 2]}}
  %w = constant u8[2, 4, 1] [[[1], [2], [3], [200]], [[4], [5], [6], [7]]]
  %c = cast %w {{dtype=f32}}  %p = matmul %a, %c  %y = sum %p {{dims=[0]}}  return %y }}"""


UNCHANGED = {
    "a machine without dot products": (product("[[1], [2], [3], [4]]"), ()),
    "groups of several rows": (GROUPS.format(rows=2), SHAPES),
    "integers of 16 bits": (product("[[1], [2], [3], [400]]", "i32"), SHAPES),
    "integers that are no constants, of a dynamic number of rows": (
        "graph(size s0 in 1..9 hint 4, %w: u8[s0, 4], %x: f32[4, 1]) { %c = cast %w {dtype=f32}  %y = matmul %c, %x  return %y }",
        SHAPES,
    ),
    "terms that fill no word": (product("[[1], [2], [3], [4], [5]]", terms=5), SHAPES),
}


def test_groups_of_one_row_share_its_unit() -> None:
    x = np.array([[1, 2, 3, 4, 1e-3, 2e-3, 3e-3, 4e-3]], np.float32)
    result, graph = run(GROUPS.format(rows=1), x)
    assert [n.shape for n in graph.nodes if n.op.name == "amax"] == [(1, 1, 1)]
    np.testing.assert_allclose(result[0, 0], 814 + 0.06, rtol=1e-6)


def test_rows_side_by_side() -> None:
    """Each has a unit of its own."""
    x = np.array([[1, 2, 3, 4], [1e-3, 2e-3, 3e-3, 4e-3]], np.float32)
    result, _ = run(product("[[1], [2], [3], [200]]", rows=2), x)
    np.testing.assert_allclose(result[:, 0], [814, 0.814], rtol=1e-6)


@pytest.mark.parametrize("case", UNCHANGED)
def test_others_stay(case: str) -> None:
    before, shapes = UNCHANGED[case]
    check_pass(PASS, unchanged=before, matrix_shapes=shapes)


def run(text: str, x: Array) -> tuple[Array, Graph]:
    """The result of a product in slices, and its graph."""
    graph = run_pipeline(parse_ir(text), PASS, Context(AVX512, SHAPES))
    assert isinstance(graph, Graph)
    assert any(n.op.name == "matmul" and n.dtype == i32 for n in graph.nodes)
    (result,) = interpret(graph, [x])
    return result, graph


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([("u8", 0, 255), ("i8", -128, 127), ("u8", 0, 15), ("i8", -8, 7), ("i8", -2, 1), ("u8", 0, 1)]),
    st.floats(-30, 30),
    st.integers(0, 1 << 30),
)
def test_results_are_those_of_floats(kind: tuple[str, int, int], exponent: float, seed: int) -> None:
    """The error is that of rounding each float to 2^-23 of the largest, and of the last sum."""
    dtype, low, high = kind
    random = np.random.default_rng(seed)
    w = random.integers(low, high, 64, endpoint=True)
    w[:2] = low, high
    x = (random.standard_normal(64) * 2.0**exponent).astype(np.float32)
    result, _ = run(product(f"{w[:, None].tolist()}", dtype, terms=64), x[None])
    exact = np.dot(x.astype(np.float64), w)
    assert abs(result[0, 0] - exact) <= np.abs(x).max() * (np.abs(w).sum() * 2.0**-23 + np.abs(w).max() * 64 * 2.0**-22)


def test_words_hold_four_neighbours_in_their_bytes() -> None:
    _, graph = run(product(f"{[[k] for k in range(8)]}", terms=8), np.ones((1, 8), np.float32))
    constants = [n for n in graph.nodes if n.op.name == "constant" and n.dtype == i32 and n.shape == (1, 1)]
    values = [known_values(n) for n in constants]
    assert [int(v[0, 0]) for v in values if v is not None] == [0x73625140]


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_rows_that_are_not_finite_have_no_finite_results(value: float) -> None:
    x = np.array([[1.0, value, 2.0, 3.0]], np.float32)
    result, _ = run(product("[[3], [200], [9], [255]]"), x)
    assert not np.isfinite(result).any()


@pytest.mark.parametrize("value", [0.0, 1e-45, 1e-38, 1e38])
def test_rows_of_extreme_size(value: float) -> None:
    x = np.array([[value, -value, value, value]], np.float32)
    result, _ = run(product("[[3], [2], [1], [0]]"), x)
    np.testing.assert_allclose(result[0, 0], 2 * np.float64(np.float32(value)), rtol=1e-6, atol=2.0**-126)
