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
WORDS = "narrow-constants{min-bytes=0,max-terms=0}"
"""Without mantissas."""


def product(values: list[int], dtype: str = "i8") -> str:
    """A vector times one row of weights."""
    return f"""graph(%x: f32[1, {len(values)}]) {{
      %w = constant {dtype}[1, {len(values)}] [{values}]
      %c = cast %w {{dtype=f32}}  %t = permute %c {{dims=[1, 0]}}  %y = matmul %x, %t
      return %y }}"""


def test_eight_nibbles_share_a_word() -> None:
    check_pass(
        WORDS,
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
    result = run_pipeline(before, WORDS)
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
    result = run_pipeline(before, f"dce,{WORDS}")
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


def test_mantissas_of_a_short_sum() -> None:
    check_pass(
        PASS,
        before="""graph(%x: f32[2, 8]) {
          %w = constant i8[1, 8] [[1, 2, 3, 4, 5, 6, 7, -8]]  %t = permute %w {dims=[1, 0]}  %c = cast %t {dtype=f32}
          %y = matmul %x, %c {dtype=f32}
          return %y }""",
        after=f"""graph(%x: f32[2, 8]) {{
          %words = constant i32[1, 1] [[{int.from_bytes(bytes.fromhex("0fedcba9"), "big")}]] @t.bits4
          %column = reshape %words {{shape=[1, 1, 1]}}
          %i = iota {{size=8}}  %n = mul %i, 4  %start = cast %n {{dtype=i32}}
          %low = shift_right %column, %start  %top = shift_left %low, 19  %field = and %top, 7864320
          %bits = or %field, 1065353216  %f = bitcast %bits {{dtype=f32}}
          %w = reshape %f {{shape=[1, 8]}}  %t = permute %w {{dims=[1, 0]}}  %p = matmul %x, %t {{dtype=f32}}
          %s = sum %x {{dims=[1], keepdim=true}}
          %z = constant i32[] 0  %zf = cast %z {{dtype=f32}}  %o = add %zf, 24.0  %k = mul %o, 0.0625
          %m = mul %s, %k  %d = sub %p, %m  %y = mul %d, 16.0
          return %y }}""",
        remark="reads values of a few bits as mantissas",
    )


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_mantissas_with_zero_points_give_the_same_sums(data: st.DataObject) -> None:
    """Values and products are small integers, so that every sum is exact."""
    bits = data.draw(st.sampled_from((1, 2, 4)))
    signed = data.draw(st.booleans())
    low = -(1 << (bits - 1)) if signed else 0
    columns, terms = data.draw(st.integers(1, 5)), 32
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    values = random.integers(low, low + (1 << bits), (columns, terms))
    zeros = random.integers(-9, 9, (columns, 1))
    before = parse_ir(f"""graph(%x: f32[3, {terms}]) {{
      %w = constant i8[{columns}, {terms}] {values.tolist()}  %c = cast %w {{dtype=f32}}
      %z = constant i32[{columns}, 1] {zeros.tolist()}  %zf = cast %z {{dtype=f32}}  %d = sub %c, %zf
      %t = permute %d {{dims=[1, 0]}}  %y = matmul %x, %t {{dtype=f32}}
      return %y }}""")
    result = run_pipeline(before, PASS)
    assert isinstance(result, Graph)
    assert isinstance(before, Graph)
    assert any(n.op.name == "bitcast" for n in result.nodes)
    x = random.integers(-8, 8, (3, terms)).astype(np.float32)
    np.testing.assert_array_equal(interpret(result, (x,))[0], interpret(before, (x,))[0])


def test_long_sums_read_integers() -> None:
    """The correction would cancel many products."""
    result = run_pipeline(parse_ir(product([1, -8] * 128).replace("matmul %x, %t", "matmul %x, %t {dtype=f32}")), PASS)
    assert isinstance(result, Graph)
    assert {"iota", "bitcast"} & {n.op.name for n in result.nodes} == {"iota"}
