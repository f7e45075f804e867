"""Graphs that run, or run again, as data decides: text, rules and meaning."""

from __future__ import annotations

import pytest
import torch

from compiler.errors import ParseError, TypeRuleError, VerifyError
from compiler.ir.graph.partition import needs_partitioning, partition
from compiler.ir.interpret.graph import interpret
from compiler.ir.text.graph_parser import parse_graph
from compiler.ir.text.graph_printer import print_graph
from compiler.ir.verify.graph import verify_graph

CHOICE = """graph @g(%x: f32[n]) {
  %s: f32[] = sum %x {dims=[0]}
  %p: bool[] = isinf %s
  %e: f32[n] = exp %x
  %y: f32[n] = cond %p, %x, %e {true_graph=graph @a(%a: f32[n], %b: f32[n]) {
    %c: f32[n] = neg %b
    return %c
  }, false_graph=graph @b(%a: f32[n], %b: f32[n]) {
    %c: f32[n] = add %a, %b
    return %c
  }}
  %z: f32[n] = neg %y
  return %z
}"""

LOOP = """graph @g(%n: i64[], %x: f32[3]) {
  %r: (i64[], f32[3]) = while_loop %n, %x, %x {condition=graph @test(%k: i64[], %y: f32[3], %z: f32[3]) {
    %c: bool[] = cast %k {dtype=bool}
    return %c
  }, body=graph @body(%k: i64[], %y: f32[3], %z: f32[3]) {
    %one: i64[] = dim_value {value=-1}
    %l: i64[] = add %k, %one
    %w: f32[3] = add %y, %z
    return %l, %w
  }, carried=2}
  %k = tuple_get %r {index=0}
  %w = tuple_get %r {index=1}
  return %k, %w
}"""


def test_a_choice_is_made_between_parts() -> None:
    graph = parse_graph(CHOICE)
    verify_graph(graph)
    assert print_graph(graph) == CHOICE
    assert needs_partitioning(graph)
    first, second = partition(graph)
    assert "return %p, %e" in print_graph(first.graph)
    assert [c.name for c in first.eager_calls] == ["y"]
    assert [n.op.name for n in second.graph.nodes] == ["input", "neg"]


def test_a_choice_means_the_graph_that_is_chosen() -> None:
    graph = parse_graph(CHOICE)
    for x, y in ((torch.tensor([1.0, 2.0]), lambda x: -(x + x.exp())), (torch.tensor([float("inf")]), torch.exp)):
        (found,) = interpret(graph, [x], dtype=torch.float64)
        torch.testing.assert_close(found, y(x.double()))


@pytest.mark.parametrize("times", [0, 1, 4])
def test_a_loop_runs_while_its_test_holds(times: int) -> None:
    x = torch.tensor([1.0, 2.0, 3.0])
    left, sums = interpret(parse_graph(LOOP), [torch.tensor(times), x])
    assert left == 0
    assert torch.equal(sums, x * (times + 1))


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("return %l, %w", "return %w, %l", "body maps"),
        ("return %c\n  }, body", "return %k\n  }, body", "must return one bool"),
        ("carried=2", "carried=0", "body maps"),
    ],
)
def test_rules_of_loops(old: str, new: str, problem: str) -> None:
    with pytest.raises((TypeRuleError, ParseError), match=problem):
        parse_graph(LOOP.replace(old, new))


def test_rules_of_choices() -> None:
    with pytest.raises((TypeRuleError, ParseError), match="true_graph returns"):
        parse_graph(CHOICE.replace("%c: f32[n] = add %a, %b", "%c: bool[n] = isinf %a"))
    with pytest.raises(VerifyError, match="the body expects"):
        verify_graph(parse_graph(CHOICE.replace("cond %p, %x, %e", "cond %p, %e")))
