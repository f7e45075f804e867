"""Recurrences: their type rule, their text, what they mean, and the programs whose steps repeat."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from compiler.errors import ParseError, TypeRuleError, VerifyError
from compiler.ir.interpret.graph import interpret
from compiler.ir.interpret.tile import run_program
from compiler.ir.text.graph_parser import parse_graph
from compiler.ir.text.graph_printer import print_graph
from compiler.ir.text.tile_parser import parse_program
from compiler.ir.text.tile_printer import print_program
from compiler.ir.tile.program import Repeat, View, execution_counts
from compiler.ir.verify.graph import verify_graph
from compiler.ir.verify.program import verify_program

DECAY = """graph @decay(%x: f32[n, 3], %h: f32[3], %a: f32[3]) {{
  %r: (f32[3], f32[n, 3]) = recurrence %x, %h, %a {{body=graph @step(%x: f32[3], %h: f32[3], %a: f32[3]) {{
    %m: f32[3] = mul %h, %a
    %s: f32[3] = add %m, %x
    return %s, %m
  }}{more}}}
  %last: f32[3] = tuple_get %r {{index=0}}
  %all: f32[n, 3] = tuple_get %r {{index=1}}
  return %last, %all
}}"""


@pytest.mark.parametrize("reverse", [False, True])
def test_a_body_runs_for_every_entry(reverse: bool) -> None:
    graph = parse_graph(DECAY.format(more=", reverse=true" if reverse else ""))
    verify_graph(graph)
    assert parse_graph(print_graph(graph)).outputs[1].type == graph.outputs[1].type
    x, h, a = (torch.randn(*shape, dtype=torch.float64) for shape in ((5, 3), (3,), (3,)))
    last, entries = interpret(graph, [x, h, a], dtype=torch.float64)
    state, seen = h, dict[int, torch.Tensor]()
    for t in reversed(range(5)) if reverse else range(5):
        seen[t] = state * a
        state = seen[t] + x[t]
    assert torch.equal(last, state)
    assert torch.equal(entries, torch.stack([seen[t] for t in range(5)]))


BODY = "graph @step(%x: f32[3], %h: f32[3]) { %s = add %x, %h  return %s, %s }"


@pytest.mark.parametrize(
    ("types", "body", "attrs", "message"),
    [
        ("%x: f32[4, 2], %h: f32[3]", BODY, "", r"body expects \(f32\[3\], f32\[3\]\), got \(f32\[2\], f32\[3\]\)"),
        ("%x: f32[0, 3], %h: f32[3]", BODY, "", "must have the same length, 1 or more"),
        ("%x: f32[4, 3], %h: f32[3]", BODY, ", num_scanned=3", "num_scanned=3"),
        ("%x: f32[4, 3], %h: f32[3]", BODY.replace("%s, %s", "%q").replace("%s =", "%q = cast %h {dtype=f64} %s ="), "", "does not begin with the carried types"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(types: str, body: str, attrs: str, message: str) -> None:
    with pytest.raises((TypeRuleError, ParseError), match=message):
        parse_graph(
            f"graph({types}) {{ %r = recurrence %x, %h {{body={body}{attrs}}}  %y = tuple_get %r {{index=0}}  return %y }}"
        )


SUMS = """program {
  input %x: f32[4, 2]
  output %y: f32[4, 2]
  constant %zero: f32[2] [0.0, 0.0]
  kernel @add(in %a: f32[2], in %b: f32[2], out %c: f32[2]) {
    for %i in 0..2 {
      store %a[%i] + %b[%i], %c[%i]
    }
  }
  view %first = %y[3]
  copy %zero -> %first
  repeat %t in 0..4 {
    view %x.t = %x[%t]
    view %old = %y[(%t + 3)%4]
    view %new = %y[%t]
    launch @add(%x.t, %old, %new) for "sum"
  }
}"""


def test_repeated_steps_round_trip_and_run() -> None:
    program = parse_program(SUMS)
    assert print_program(program) == SUMS
    verify_program(program)
    assert isinstance(program.steps[2], Repeat)
    assert program.views["old"].buffer == program.root_buffer("old") == "y"
    assert [(type(s).__name__, times) for s, times in execution_counts(program.steps)] == [("Copy", 1), ("Launch", 4)]
    x = np.arange(8, dtype=np.float32).reshape(4, 2)
    assert np.array_equal(run_program(program, [x])[0], np.cumsum(x, 0))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("%x[%t]", "%x[%t + 1]", r"view %x.t: index t \+ 1 is not in 0..4"),
        ("%x[%t]", "%x[%u]", "uses %u, which is not a loop variable here"),
        ("(%t + 3)%4", "%t", "%new and %old may alias"),
        ("(%t + 3)%4", "(%t + 4)//2 % 4", "%new and %old may alias"),
        ("copy %zero -> %first", "", "%old is read before it is written"),
        ("view %first = %y[3]", "view %first = %zero[0]", "copies"),
        (
            'launch @add(%x.t, %old, %new) for "sum"',
            "opaque @relu(%x.t) -> %new",
            "opaque calls are not allowed inside repeat",
        ),
        ("%y[%t]", "%zero[%t]", r"%new is f32\[\]"),
        ("0..4 {\n    view", "0..0 {\n    view", "the trip count may be 0"),
    ],
)
def test_broken_repeats_are_refused(old: str, new: str, message: str) -> None:
    with pytest.raises(VerifyError, match=message):
        verify_program(parse_program(SUMS.replace(old, new)))


def test_a_slice_needs_a_name_of_its_own() -> None:
    with pytest.raises(ParseError, match=r"`%x\.t` is declared twice"):
        parse_program(SUMS.replace("%new", "%x.t"))
    with pytest.raises(ParseError, match="repeat must run from 0"):
        parse_program(SUMS.replace("in 0..4 {\n    view", "in 1..4 {\n    view"))
    assert isinstance(parse_program(SUMS).steps[0], View)
