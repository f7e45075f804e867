"""Every op through the graph passes and the bridge, interpreted after each step and measured against float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from compiler.codegen.backend import GRAPH_PASSES
from compiler.ir import ops
from compiler.ir.float_format import Array
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import OPS, Op, input_node
from compiler.ir.graph.structure import Leaf
from compiler.ir.interpret.graph import interpret
from compiler.ir.interpret.random_inputs import random_inputs
from compiler.ir.interpret.tile import run_program
from compiler.ir.text.graph_printer import print_graph
from compiler.ir.text.type_parser import parse_type
from compiler.ir.torch_types import as_array
from compiler.ir.verify.program import verify_program
from compiler.lowering.program import lower
from compiler.passes.instrument import Verify
from compiler.passes.manager import run_pipeline
from compiler.passes.semantic_check import SemanticCheck, describe_difference, run_with_valid_range, tolerance

DECLARED = [o for o in OPS.values() if not isinstance(o.structure, Leaf)]


@pytest.mark.parametrize("declared", DECLARED, ids=lambda o: o.name)
def test_samples_keep_their_meaning(declared: Op) -> None:
    for sample in declared.samples:
        inputs = tuple(input_node(f"x{k}", parse_type(t)) for k, t in enumerate(sample.types))
        node = declared(*inputs, **sample.attrs)
        several = isinstance(node.result_type, tuple)
        outputs = tuple(ops.tuple_get(node, index=k) for k in range(len(node.result_type))) if several else (node,)  # type: ignore[arg-type]
        check_lowering(Graph(inputs, outputs))


def check_lowering(graph: Graph) -> None:
    fused = run_pipeline(graph, GRAPH_PASSES, instruments=[Verify(), SemanticCheck()])
    program = lower(fused)
    verify_program(program)

    def both(low: int, high: int) -> list[list[Array]]:
        given = random_inputs([n.type for n in graph.inputs], 0, low, high)
        truth = [as_array(r) for r in interpret(graph, given, dtype=torch.float64)]
        return [truth, run_program(program, given)]

    for truth, got in zip(*run_with_valid_range(both), strict=True):
        problem = describe_difference(truth.astype(got.dtype), np.asarray(got), tolerance(graph))
        assert not problem, f"{print_graph(graph)}\n{problem}"
