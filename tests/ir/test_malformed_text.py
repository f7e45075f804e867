"""Text with mistakes in it gives a ParseError at a place inside the text, and no other exception."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler.errors import ParseError
from compiler.ir.parser import parse_graph
from compiler.ir.printer import print_graph
from compiler.ir.tile_parser import parse_program
from compiler.ir.tile_printer import print_program

GRAPH = """
graph @all(%x: f32[4, s0*4], %"odd name": f32[4, s0*4], %m: f32[4, 1]) {
  %s = silu %x   %y: f32[4, s0*4] = add(%s, 0.5) loc("model.py":12, "y = f(x) + \\"1\\"")   # a note
  %c = constant bf16[2, 2] [[1, 2.5], [-0.0, -inf]]  %d = add 1, %c
  %w = constant i64[3] @some.weight   %v = constant i64[0, 3]{1, 0} [] @empty
  %r = reshape %y {shape=[s0*2, 8]}   %t = topk %r {k=2, dim=1, largest=false}   %i = item %t {index=1}
  %f = fused %x, %m {body=graph(%a: f32[4, s0*4], %b: f32[4, 1]) { %d = sub %a, %b  %e = exp %d  return %e }}
  return %y, %d, %v, %w, %i, %f, %x -> %x
}
resources { @some.weight = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA" }"""

PROGRAM = """
program {
  input %x: f32[n, 768]  output %y: f32[n, 3072]{0/16, 1, 0%16}
  constant %w: f32[2] [1.5, -0.0]  constant %b: f32[3] @b  buffer %t0: f32[4]
  kernel @linear(in %x: f32[n, 768], in %w: f32[3072, 768], in %p: i64[n*2], out %y: f32[n, 3072]) {
    parallel %i in 0..n tile 8 {
      %q = %p[%i//2*2 + %i%2] - 1   check %q in -1..n   local %tmp: i32[4]
      for %j in 0..3072 tile 32 lanes 16 {
        %acc = reduce add %k in 0..768 unroll 4 { yield %x[%i, %k] * %w[%j, %k] }
        %m = (%q < 3) & not(index(%i*4 + 1) >= %q)
        store where(%m, load(%x[%q, 0], %m, -inf), 0.5 * -%acc) + cast<f32>(7:i64), %y[%i, %j] stream
      }
    }
  }
  launch @linear(%x, %w, %t0, %y) for "layers.0"
  opaque @sort(%t0) -> %y {dim=0, descending=true} for "sort_1"
  copy %t0 -> %y
}
resources { @b = "AAAAAAAAAAAAAAAA" }"""

MARKS = [*'%{}[](),=:-1\\"<\n \0é', "->", "..", "//", "9" * 400, "1.5", "inf", "nan", '"a"', "%x", "%i", "@w"]
WORDS = [
    "graph",
    "return",
    "constant",
    "f32",
    "resources",
    "loc",
    "for",
    "reduce",
    "yield",
    "store",
    "add",
    "cast",
    "index",
    "tile",
]


@st.composite
def mutations(draw: st.DrawFn, text: str) -> str:
    """`text` with a few spans deleted, doubled or replaced."""
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 8)))
        text = text[:start] + draw(st.sampled_from([*MARKS, *WORDS, "", text[start:end] * 2])) + text[end:]
    return text


def check(parse: Callable[[str], Any], write: Callable[[Any], str], text: str) -> None:
    """What parses prints and parses again; what does not says where."""
    try:
        ir = parse(text)
    except ParseError as error:
        place = (error.line, error.column)
    else:
        again = write(ir)
        assert write(parse(again)) == again
        return
    lines = text.split("\n")
    assert 1 <= place[0] <= len(lines)
    assert 1 <= place[1] <= len(lines[place[0] - 1]) + 1


@pytest.mark.parametrize("text", [GRAPH, PROGRAM], ids=["graph", "program"])
def test_the_text_is_right_before_it_is_spoiled(text: str) -> None:
    (parse_graph if text is GRAPH else parse_program)(text)


@given(text=mutations(GRAPH))
@settings(max_examples=300, deadline=None)
def test_graphs(text: str) -> None:
    check(parse_graph, lambda g: print_graph(g, full=True, locations=True), text)


@given(text=mutations(PROGRAM))
@settings(max_examples=300, deadline=None)
def test_programs(text: str) -> None:
    check(parse_program, lambda p: print_program(p, full=True), text)
