"""Text with mistakes in it gives a ParseError at a place inside the text, and no other exception."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler.errors import ParseError
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import OPS, Op, input_node
from compiler.ir.text.graph_parser import parse_graph
from compiler.ir.text.graph_printer import print_graph
from compiler.ir.text.tile_parser import parse_program
from compiler.ir.text.tile_printer import print_program
from compiler.ir.text.type_parser import parse_type

GRAPH = """
graph @all(%x: f32[4, s0*4], %"odd name": f32[4, s0*4], %m: f32[4, 1]) {
  %s = silu %x   %y: f32[4, s0*4] = add(%s, 0.5) loc("model.py":12, "y = f(x) + \\"1\\"")   # a note
  %c = constant bf16[2, 2] [[1, 2.5], [-0.0, -inf]]  %d = add 1, %c
  %w = constant i64[3] @some.weight   %v = constant i64[0, 3]{1, 0} [] @empty
  %r = reshape %y {shape=[s0*2, 8]}   %t = topk %r {k=2, dim=1, largest=false}   %i = tuple_get %t {index=1}
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
        store where(%m, load(%x[%q, 0], %m, -inf), 0.5 * -%acc) + cast<f32>(7:i64), %y[%i, %j] nontemporal if n*3072 >= 5
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


def fractions(value: Any) -> Iterator[Any]:
    """`value`, a whole number or a list of them, with a half added in one place."""
    if isinstance(value, int):
        yield value + 0.5
        return
    for k, part in enumerate(value):
        yield from ([*value[:k], spoiled, *value[k + 1 :]] for spoiled in fractions(part))


@pytest.mark.parametrize("op", [o for o in OPS.values() if o.integer_attrs and o.samples], ids=lambda o: o.name)
def test_sizes_and_places_have_no_fractions(op: Op) -> None:
    for s in op.samples:
        inputs = tuple(input_node(f"x{k}", parse_type(t)) for k, t in enumerate(s.types))
        node = op(*inputs, **s.attrs).with_name("y")
        for name in op.integer_attrs:
            for spoiled in fractions(node.attrs[name]):
                wrong = replace(node, attrs={**node.attrs, name: spoiled})
                check_refusal(op, name, print_graph(Graph(inputs, (wrong,))))


def check_refusal(op: Op, name: str, text: str) -> None:
    with pytest.raises(ParseError, match=f"{op.name}: {name} must be an integer or a list of integers, got") as caught:
        parse_graph(text)
    line = text.split("\n")[caught.value.line - 1]
    assert line[caught.value.column - 1 :].startswith(op.name)


def test_what_the_samples_show_in_fractions_takes_them() -> None:
    parse_graph("graph(%x: f32[4]) { %y = pad %x {before=[1], after=[0], value=0.5}  return %y }")
    parse_graph("graph(%x: f32[4]) { %y = var %x {dims=[0], correction=0.5}  return %y }")
    assert OPS["reshape"].integer_attrs == {"shape"}
    assert OPS["conv"].integer_attrs == {"stride", "dilation", "groups", "before", "after"}


@pytest.mark.parametrize(
    "text",
    [
        "graph(%x: f32[-4]) { return %x }",
        "graph() { %y = iota {size=-3}  return %y }",
        "graph(%x: f32[1, 2]) { %y = expand %x {shape=[-3, 2]}  return %y }",
        'graph(%x: f32[4]) { %y = eager %x {overload="aten.sin.default", args=["%0"], dtypes=[f32], shapes=[[1.5]]}  return %y }',
    ],
)
def test_dimensions_have_a_whole_number_of_elements(text: str) -> None:
    with pytest.raises(ParseError, match="invalid dimension extent"):
        parse_graph(text)
