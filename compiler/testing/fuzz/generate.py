"""Random valid graphs, each the image of one integer.

An op's samples are its examples of how it is called.  A call is a sample whose sizes, element types and attributes have been
changed at random, and which the type rule and the reference still accept: nothing there knows an op by its name, so that ops
declared later are drawn too.  Now and then several ops come together, as they do in models.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np

from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import Node
from compiler.ir.graph.structure import Leaf
from compiler.ir.symbolic.index_expr import var
from compiler.testing.fuzz.graph_builder import GraphBuilder
from compiler.testing.fuzz.idioms import IDIOMS
from compiler.testing.fuzz.op_calls import BUILD_ERRORS

IDIOM_PROBABILITY = 0.15
"""How often a step adds several ops that belong together."""


def random_graph(seed: int, steps: int | None = None) -> Graph:
    """The random graph that `seed` stands for: `steps` drawn ops or groups of them (1 to 12) and whatever brings their operands about.

    It may have symbolic dimensions and write outputs back to inputs.
    """
    rng = random.Random(seed)
    grown = GraphBuilder(rng, np.random.default_rng(seed))
    for _ in range(steps or rng.choice((1, 1, 2, 2, 3, 3, 4, 5, 6, 8, 10, 12))):
        if rng.random() < IDIOM_PROBABILITY:
            grown.add(rng.choice(IDIOMS)(grown))
        else:
            grown.add_random_call()
    graph = grown.build_graph(f"fuzz{seed}")
    return with_symbolic_size(graph, rng) if rng.random() < 0.12 else graph


def with_symbolic_size(graph: Graph, rng: random.Random) -> Graph:
    """`graph` with one size of its inputs, wherever it stands, a symbol; `graph` itself where not every size would do.

    What is then of another type than the input that it was written back to is a result.
    """
    sizes = sorted({d for n in graph.inputs for d in n.shape if d > 1})
    if not sizes:
        return graph
    size = rng.choice(sizes)
    try:
        made = substitute_size(graph, size, var("s0"))
        fixed = made.specialize({"s0": size})
        for other in range(2, 9):
            made.specialize({"s0": other})
    except BUILD_ERRORS:
        return graph
    same = all(a.result_type == b.result_type for a, b in zip(graph.nodes, fixed.nodes, strict=False)) and len(
        graph.nodes
    ) == len(fixed.nodes)
    written = {
        k: i for k, i in made.output_aliases.items() if made.outputs[k].result_type == made.inputs[i].result_type
    }
    return replace(made, output_aliases=written) if same and made.symbols else graph


def substitute_size(graph: Graph, old: int, new: Any) -> Graph:
    """`graph` with the size `old` of inputs and in lists among the attributes replaced by `new`; TypeRuleError where that does not fit."""

    def rule(n: Node, operands: tuple[Node, ...]) -> Node:
        if n in graph.inputs:
            return replace(n, result_type=n.type.with_shape([new if d == old else d for d in n.shape]))
        if isinstance(n.structure, Leaf):
            return n
        attrs: dict[str, Any] = {
            k: tuple(new if d == old else d for d in v) if isinstance(v, tuple) else v for k, v in n.attrs.items()
        }
        return replace(n.op(*operands, **attrs), name=n.name)

    return graph.map_nodes(rule)
