"""narrow-constants: constant integers of a few bits in words."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import constant_node
from compiler.ir.interpret.graph import interpret
from compiler.passes.graph.narrow_constants import fewest_bits, unpacked_words
from compiler.passes.manager import run_pipeline
from compiler.testing.checks import check_equivalent, check_pass, parse_ir

PASS = "narrow-constants{min-bytes=0}"


def product(values: list[int], dtype: str = "i8") -> str:
    """A vector times one row of weights."""
    return f"""graph(%x: f32[1, {len(values)}]) {{
      %w = constant {dtype}[1, {len(values)}] [{values}]
      %c = cast %w {{dtype=f32}}  %t = permute %c {{dims=[1, 0]}}  %y = matmul %x, %t
      return %y }}"""


def test_eight_nibbles_share_a_word() -> None:
    check_pass(
        PASS,
        before=product([1, 2, 3, 4, 5, 6, 7, -8]),
        after=f"""graph(%x: f32[1, 8]) {{
          %words = constant i32[1, 1] [[{int.from_bytes(bytes.fromhex("87654321"), "big") - (1 << 32)}]]
          %column = reshape %words {{shape=[1, 1, 1]}}
          %i = iota {{size=8}}  %n = mul %i, 4  %start = cast %n {{dtype=i32}}  %left = sub 28, %start
          %up = shift_left %column, %left  %field = shift_right %up, 28  %w = reshape %field {{shape=[1, 8]}}
          %c = cast %w {{dtype=f32}}  %t = permute %c {{dims=[1, 0]}}  %y = matmul %x, %t
          return %y }}""",
        remark="stored in 4 bits",
    )


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([1, 2, 3, 4, 5, 6, 8, 0], "i8"),  # one too many for a nibble with sign, but not for one without
        ([15] * 8, "u8"),
        ([0, 3] * 8, "i8"),
        ([-2, 1] * 8, "i8"),
        ([0, 1] * 16, "u8"),
        ([-1, 0] * 16, "i8"),
    ],
)
def test_results_are_the_same(values: list[int], dtype: str) -> None:
    before = parse_ir(product(values, dtype))
    result = run_pipeline(before, PASS)
    assert isinstance(result, Graph)
    assert any(n.op.name == "iota" for n in result.nodes)
    check_equivalent(before, result, exact=True)


@pytest.mark.parametrize(
    "text",
    [
        product([16, -1, 0, 0, 0, 0, 0, 0]),  # five bits
        product([1, 2, 3]),  # no whole word
        "graph(%x: i32[1, 8]) { %w = constant i32[8, 1] [[1], [1], [1], [1], [1], [1], [1], [1]] %y = matmul %x, %w  return %y }",
        "graph(%x: f32[1, 8]) { %w = constant i8[8] [1, 1, 1, 1, 1, 1, 1, 1] %c = cast %w {dtype=f32} %y = add %x, %c  return %y }",
    ],
)
def test_other_constants_stay(text: str) -> None:
    check_pass(PASS, unchanged=text)


def test_nibbles_of_bytes_become_nibbles_of_words() -> None:
    """Two weights in a byte, as models pack them."""
    before = parse_ir("""graph(%x: f32[1, 8]) {
      %b = constant u8[1, 4] [[33, 67, 101, 135]]
      %low = and %b, 15  %high = shift_right %b, 4
      %l = reshape %low {shape=[1, 4, 1]}  %h = reshape %high {shape=[1, 4, 1]}
      %both = cat %l, %h {dim=2}  %r = reshape %both {shape=[1, 8]}  %w = permute %r {dims=[1, 0]}
      %c = cast %w {dtype=f32}  %y = matmul %x, %c
      return %y }""")
    result = run_pipeline(before, "dce,narrow-constants{min-bytes=0}")
    assert isinstance(result, Graph)
    assert not any(n.op.name == "cat" for n in result.nodes)
    check_equivalent(before, result, exact=True)


def test_small_constants_stay() -> None:
    check_pass("narrow-constants", unchanged=product([1, 2, 3, 4, 5, 6, 7, -8]))


@given(st.lists(st.integers(-8, 15), min_size=32, max_size=64).filter(lambda v: len(v) % 32 == 0))
@settings(deadline=None)
def test_words_unpack_to_their_values(values: list[int]) -> None:
    array = np.array([values], np.int8)
    bits, signed = fewest_bits(array)
    assert all(-(1 << bits - 1) * signed <= v < 1 << bits - signed for v in values)
    (result,) = interpret(Graph((), (unpacked_words(constant_node(array), array, bits, signed),)), ())
    np.testing.assert_array_equal(result.numpy(), array)
