"""Random valid graphs, each determined by an integer seed.

A call is a sample of an op whose sizes, dtypes and attributes were mutated at random, if the type rule and the reference still
accept it.  Nothing depends on the names of ops, so that ops declared later are drawn too.  Some steps add an idiom: several ops
that occur together in models.
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
from compiler.testing.fuzz.op_calls import BUILD_ERRORS, substitute_in_list

IDIOM_PROBABILITY = 0.15
"""Probability that a step adds an idiom instead of one op; chosen empirically."""


def random_graph(seed: int, steps: int | None = None) -> Graph:
    """Return the random graph of `seed`: `steps` calls or idioms (None: 1 to 12 at random) and ops that make their operands.

    It may have a symbolic dimension and write outputs back to inputs.
    """
    rng = random.Random(seed)
    builder = GraphBuilder(rng, np.random.default_rng(seed))
    for _ in range(steps or rng.choice((1, 1, 2, 2, 3, 3, 4, 5, 6, 8, 10, 12))):
        if rng.random() < IDIOM_PROBABILITY:
            builder.add(rng.choice(IDIOMS)(builder))
        else:
            builder.add_random_call()
    graph = builder.build_graph(f"fuzz{seed}")
    return with_symbolic_size(graph, rng) if rng.random() < 0.12 else graph


def with_symbolic_size(graph: Graph, rng: random.Random) -> Graph:
    """Replace one size of the inputs by a symbol; return `graph` itself if it is not valid for every size.

    An output whose type then differs from the input that it is written back to becomes a returned output.
    """
    sizes = sorted({d for n in graph.inputs for d in n.shape if d > 1})
    if not sizes:
        return graph
    size = rng.choice(sizes)
    try:
        symbolic = substitute_size(graph, size, var("s0"))
        static = symbolic.specialize({"s0": size})
        for other in range(2, 9):
            symbolic.specialize({"s0": other})
    except BUILD_ERRORS:
        return graph
    if [n.result_type for n in graph.nodes] != [n.result_type for n in static.nodes] or not symbolic.symbols:
        return graph
    outputs, inputs = symbolic.outputs, symbolic.inputs
    aliases = {k: i for k, i in symbolic.output_aliases.items() if outputs[k].result_type == inputs[i].result_type}
    return replace(symbolic, output_aliases=aliases)


def substitute_size(graph: Graph, old: int, new: Any) -> Graph:
    """Replace the size `old` by `new` in the inputs and in list attributes.  Raises TypeRuleError if a node is then invalid."""

    def rule(n: Node, operands: tuple[Node, ...]) -> Node:
        if n in graph.inputs:
            return replace(n, result_type=n.type.with_shape(substitute_in_list(n.shape, old, new)))
        if isinstance(n.structure, Leaf):
            return n
        attrs = {k: substitute_in_list(v, old, new) for k, v in n.attrs.items()}
        return replace(n.op(*operands, **attrs), name=n.name)

    return graph.map_nodes(rule)
