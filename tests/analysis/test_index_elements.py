"""Elements of integer tensors as functions of indices."""

from __future__ import annotations

import pytest

from compiler.analysis.index_elements import index_element
from compiler.ir.symbolic.index_expr import var
from compiler.ir.text.graph_parser import parse_graph

FIRST, SECOND = var("i0"), var("i1")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("%a = iota {size=6}  %b = mul %a, 4  %y = add %b, 3", FIRST * 4 + 3),
        ("%a = iota {size=6}  %b = slice %a {dim=0, start=1, size=5}  %y = mul %b, %b", (FIRST + 1) * (FIRST + 1)),
        ("%a = iota {size=6}  %b = reshape %a {shape=[6, 1]}  %c = iota {size=5}  %y = add %b, %c", FIRST + SECOND),
        ("%a = iota {size=6}  %y = maximum %a, 2", None),
        ("%a = iota {size=6}  %y = add %a, %x", None),
        ("%a = iota {size=6}  %y = cast %a {dtype=f32}", None),
    ],
)
def test_elements(text: str, expected: object) -> None:
    graph = parse_graph(f"graph(%x: i64[6]) {{ {text}  return %y }}")
    (y,) = graph.outputs
    assert index_element(y, (FIRST, SECOND)[: y.type.rank]) == expected
