"""Reducer: shrink a failing graph to one that still fails alike.

Greedy search, as in delta debugging: each step takes the first simplification that still fails, largest first, until none does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from compiler.ir.graph.constant import ConstantData, to_storage
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import CONSTANT, REQUIRED, Node, constant_node, input_node
from compiler.ir.graph.structure import Leaf
from compiler.ir.interpret.random_inputs import small_symbol_values
from compiler.ir.tile.kernel import Kernel
from compiler.ir.tile.program import Program
from compiler.ir.types import DTYPES, TensorType
from compiler.ir.verify.graph import verify_graph
from compiler.testing.fuzz.case_file import FuzzCase, check_text
from compiler.testing.fuzz.check import Failure
from compiler.testing.fuzz.op_calls import BUILD_ERRORS, substitute_in_list
from compiler.testing.fuzz.workers import map_in_processes

IR = TypeVar("IR", Graph, Kernel, Program)

FailurePredicate = Callable[[FuzzCase], bool]
"""Returns True if a case still fails alike."""


def reduce(case: FuzzCase, still_fails: FailurePredicate | None = None, limit: int = 400) -> FuzzCase:
    """Return the smallest case found that fails like `case`, after at most `limit` tries; `case` itself if it passes."""
    if still_fails is None:
        failure = run_in_subprocess(case)
        if failure is None:
            return case
        case = case.with_failure(failure)
        still_fails = lambda c: failure.matches(run_in_subprocess(c))  # noqa: E731
    fails = still_fails
    return replace(case, graph=shrink(case.graph, simplifications, lambda g: fails(replace(case, graph=g)), limit))


def shrink(ir: IR, simplify: Callable[[IR], Iterator[IR]], still_fails: Callable[[IR], bool], limit: int) -> IR:
    """Return the smallest IR found that still fails, after at most `limit` tries; `simplify` yields simpler IR."""
    tries = 0
    while True:
        for simpler in simplify(ir):
            tries += 1
            if tries > limit:
                return ir
            if still_fails(simpler):
                ir = simpler
                break
        else:
            return ir


def run_in_subprocess(case: FuzzCase) -> Failure | None:
    """Run `case` in a subprocess and return its failure, or None."""
    ((_, outcome),) = map_in_processes(check_text, [str(case)])
    return outcome if isinstance(outcome, Failure) else outcome.failure


def simplifications(graph: Graph) -> Iterator[Graph]:
    """Yield valid graphs that are one step simpler than `graph`, the largest simplifications first."""
    for simplify in (
        fewer_outputs, without_symbols, without_aliases, values_as_inputs, bypassed_nodes, simpler_constants, smaller_sizes,
        smaller_inputs, simpler_attributes, floats_as_f32,
    ):  # fmt: skip
        for build in simplify(graph):
            try:
                simpler = drop_unused_inputs(build())
                verify_graph(simpler)
            except BUILD_ERRORS:
                continue
            yield simpler


def drop_unused_inputs(graph: Graph) -> Graph:
    """Remove unused inputs, except those that outputs are written back to."""
    used = {o for n in graph.nodes for o in n.operands} | set(graph.outputs)
    remaining = [k for k, n in enumerate(graph.inputs) if n in used or k in graph.output_aliases.values()]
    aliases = {k: remaining.index(i) for k, i in graph.output_aliases.items()}
    return replace(graph, inputs=tuple(graph.inputs[k] for k in remaining), output_aliases=aliases)


def fewer_outputs(graph: Graph) -> Iterator[Callable[[], Graph]]:
    """Keep a single output, remove one output, or replace an output by one of its operands."""
    count = len(graph.outputs)
    if count > 1:
        for k in range(count):
            yield lambda k=k: select_outputs(graph, [k])  # type: ignore[misc]  # binds k now
        for k in range(count):
            yield lambda k=k: select_outputs(graph, [n for n in range(count) if n != k])  # type: ignore[misc]
    for k, node in enumerate(graph.outputs):
        for operand in dict.fromkeys(node.operands):
            outputs = (*graph.outputs[:k], operand, *graph.outputs[k + 1 :])
            yield lambda outputs=outputs: replace(graph, outputs=outputs)  # type: ignore[misc]


def select_outputs(graph: Graph, positions: list[int]) -> Graph:
    aliases = {positions.index(k): i for k, i in graph.output_aliases.items() if k in positions}
    return replace(graph, outputs=tuple(graph.outputs[k] for k in positions), output_aliases=aliases)


def without_symbols(graph: Graph) -> Iterator[Callable[[], Graph]]:
    if graph.symbols:
        yield lambda: graph.specialize(small_symbol_values(graph, 3))


def without_aliases(graph: Graph) -> Iterator[Callable[[], Graph]]:
    if graph.output_aliases:
        yield lambda: replace(graph, output_aliases={})


def values_as_inputs(graph: Graph) -> Iterator[Callable[[], Graph]]:
    """Replace a computed value by an input, the last one first."""
    for k, node in reversed(list(enumerate(graph.nodes))):
        if not isinstance(node.structure, Leaf) and isinstance(node.result_type, TensorType) and graph.users[node]:
            yield lambda node=node, k=k: replace_with_input(graph, node, f"v{k}")  # type: ignore[misc]


def replace_with_input(graph: Graph, node: Node, name: str) -> Graph:
    """Replace `node` by a new input called `name`, made unique."""
    unique = next(n for n in (name, *(f"{name}_{i}" for i in range(99))) if n not in {x.name for x in graph.inputs})
    new = input_node(unique, node.type)
    return replace(graph.replace_nodes({node: new}), inputs=(*graph.inputs, new))


def bypassed_nodes(graph: Graph) -> Iterator[Callable[[], Graph]]:
    """Replace a node by one of its operands of the same type."""
    for node in reversed(graph.nodes):
        for operand in dict.fromkeys(node.operands):
            if operand.result_type == node.result_type:
                yield lambda n=node, o=operand: graph.replace_nodes({n: o})  # type: ignore[misc]


def simpler_constants(graph: Graph) -> Iterator[Callable[[], Graph]]:
    """Replace a constant by an input, or its elements by 0 or 1."""
    for k, node in enumerate(graph.nodes):
        if node.op is not CONSTANT:
            continue
        yield lambda n=node, k=k: replace_with_input(graph, n, f"c{k}")  # type: ignore[misc]
        data: ConstantData = node.attrs["value"]
        for value in (0, 1):
            array = to_storage(np.full(data.array.shape, value).astype(data.dtype.numpy), data.dtype)
            if not np.array_equal(array, data.array) and data.array.size > 1:
                yield lambda n=node, a=array: graph.replace_nodes({n: constant_node(ConstantData(n.dtype, a))})  # type: ignore[misc]


def smaller_sizes(graph: Graph) -> Iterator[Callable[[], Graph]]:
    """Replace a size by a smaller one in the whole graph."""
    sizes = {d for n in graph.nodes if isinstance(n.structure, Leaf) for d in n.shape if isinstance(d, int)}
    for old in sorted(sizes, reverse=True):
        for new in dict.fromkeys((1, 2, 3, old // 2, old - 1)):
            if 0 < new < old:
                yield lambda old=old, new=new: replace_size(graph, old, new)  # type: ignore[misc]


def smaller_inputs(graph: Graph) -> Iterator[Callable[[], Graph]]:
    """Make one dimension of one input or constant smaller."""
    for node in graph.nodes:
        if not isinstance(node.structure, Leaf):
            continue
        for d, old in enumerate(node.shape):
            for new in dict.fromkeys((1, 2, old // 2, old - 1) if isinstance(old, int) else ()):
                if 0 < new < old:
                    shape = (*node.shape[:d], new, *node.shape[d + 1 :])
                    yield lambda n=node, shape=shape: graph.map_nodes(  # type: ignore[misc]
                        lambda m, operands: crop_leaf(m, shape) if m is n else m.with_operands(operands)
                    )


def crop_leaf(leaf: Node, shape: tuple[Any, ...]) -> Node:
    """Give an input or constant a smaller shape; a constant retains its leading elements."""
    if leaf.op is not CONSTANT:
        return replace(leaf, result_type=leaf.type.with_shape(shape))
    data: ConstantData = leaf.attrs["value"]
    corner = data.array[tuple(slice(0, d) for d in shape)]
    return replace(constant_node(replace(data, array=np.ascontiguousarray(corner).reshape(shape))), name=leaf.name)


def replace_size(graph: Graph, old: int, new: int) -> Graph:
    """Replace the size `old` by `new` in inputs, constants and list attributes."""

    def rule(n: Node, operands: tuple[Node, ...]) -> Node:
        if isinstance(n.structure, Leaf):
            return crop_leaf(n, substitute_in_list(n.shape, old, new)) if old in n.shape else n
        attrs = {k: substitute_in_list(v, old, new) for k, v in n.attrs.items()}
        if n.attrs.get("size") == old:
            attrs["size"] = new
        return replace(n.op(*operands, **attrs), name=n.name)

    return graph.map_nodes(rule)


def simpler_attributes(graph: Graph) -> Iterator[Callable[[], Graph]]:
    """Set an attribute to its default, or a number in it to 0 or 1, or remove an optional operand."""
    for node in graph.nodes:
        for name, value in node.attrs.items():
            if isinstance(node.structure, Leaf):
                continue
            for simpler in _simpler_values(value, node.op.attr_defaults[name]):
                yield lambda n=node, a={**node.attrs, name: simpler}: graph.replace_nodes({n: n.op(*n.operands, **a)})  # type: ignore[misc]
        specs, count = node.op.operand_specs, len(node.operands)
        if count > 1 and specs and (specs[-1].variadic or (len(specs) >= count and specs[count - 1].optional)):
            yield lambda n=node: graph.replace_nodes({n: n.op(*n.operands[:-1], **n.attrs)})  # type: ignore[misc]


def _simpler_values(value: Any, default: Any) -> Iterator[Any]:
    if default is not REQUIRED and value != default:
        yield default
    if isinstance(value, int) and not isinstance(value, bool):
        yield from (v for v in (0, 1) if v < value)
    if isinstance(value, tuple):
        for k, v in enumerate(value):
            yield from ((*value[:k], p, *value[k + 1 :]) for p in _simpler_values(v, REQUIRED))


def floats_as_f32(graph: Graph) -> Iterator[Callable[[], Graph]]:
    """Replace one float dtype by f32 in the whole graph."""
    f32 = DTYPES["f32"]
    present = {n.dtype for n in graph.nodes if isinstance(n.result_type, TensorType) and n.dtype.is_float}
    for old in sorted(present - {f32}, key=str):

        def rule(n: Node, operands: tuple[Node, ...], old: Any = old) -> Node:
            if n.op is CONSTANT and n.dtype == old:
                data: ConstantData = n.attrs["value"]
                return replace(constant_node(ConstantData(f32, to_storage(data.numpy_values, f32))), name=n.name)
            if isinstance(n.structure, Leaf):
                return replace(n, result_type=n.type.with_dtype(f32)) if n.dtype == old else n
            attrs: dict[str, Any] = {k: f32 if v == old else v for k, v in n.attrs.items()}
            return replace(n.op(*operands, **attrs), name=n.name)

        yield lambda rule=rule: graph.map_nodes(rule)  # type: ignore[misc]
