"""Structures: which elements of operands an element reads, and that each kind has its rules."""

from __future__ import annotations

from itertools import count

import pytest

from compiler.ir.graph.structure import Composite, Fused, Leaf, Structure
from compiler.ir.interpret.structure import EVALUATORS
from compiler.ir.symbolic.index_expr import var
from compiler.ir.text.graph_parser import parse_graph
from compiler.lowering.kernel import LOWERINGS, ROOT_LOWERINGS

READS = {
    "add %x, %v": "x[i, j] v[j]",
    "sum %x {dims=[1], keepdim=true}": "x[i, r0]",
    "permute %x {dims=[1, 0]}": "x[j, i]",
    "index %x, %n {dims=[0]}": "n[i] x[i, j]",
    "cumsum %x {dim=1}": "x[i, j]",
    "constant_linear %x {dim=0, matrix=[[1.0, 2.0, 0.0, 3.0]]}": "x[0, j] x[1, j] x[2, j] x[3, j]",
    "iota {size=3}": "",
}


@pytest.mark.parametrize("op", READS)
def test_elements_read(op: str) -> None:
    graph = parse_graph(f"graph(%x: f32[4, 6], %v: f32[6], %n: i64[4]) {{ %y = {op} return %y }}")
    node, numbers = graph.outputs[0], count()
    elements = node.structure.operand_elements(node, (var("i"), var("j")), lambda: var(f"r{next(numbers)}"))
    assert " ".join(f"{o.name}[{', '.join(map(str, position))}]" for o, position in elements) == READS[op]


def test_each_kind_is_lowered_and_interpreted() -> None:
    """What stores where data decides is lowered as the root of a kernel, graphs of other ops by their nodes."""
    assert set(EVALUATORS) == {*LOWERINGS, *ROOT_LOWERINGS}
    whole = {k for k in Structure.__subclasses__() if k.operand_elements is Structure.operand_elements}
    assert {Composite, Fused, Leaf} <= whole
    assert not {k for k in LOWERINGS if k in whole and k.__name__ != "Generate"}
