"""Verifier of Graph IR: `GRAPH_RULES` lists the rules, functions that yield the problems in a graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from compiler.errors import TypeRuleError, VerifyError
from compiler.ir.graph.constant import ConstantData
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import CONSTANT, INPUT, OPS, Node, Signature
from compiler.ir.graph.structure import ControlFlow, Recurrence, TupleGet
from compiler.ir.ops.recurrence import body_input_types
from compiler.ir.types import ResultType, TensorType


def verify_graph(graph: Graph) -> None:
    """Raise VerifyError with all problems in `graph`: rule, node, types and source line of each."""
    problems = [f"[{rule.__name__}] {problem}" for rule in GRAPH_RULES for problem in rule(graph)]
    if problems:
        raise VerifyError(f"@{graph.name} is not a valid graph:\n  " + "\n  ".join(problems))


def describe(node: Node) -> str:
    """Return a node's text and source line."""
    return f"{node!r}" + (f" at {node.loc}" if node.loc else "")


def no_cycles(graph: Graph) -> Iterator[str]:
    """Check that every node comes after its operands in `Graph.nodes`, which fails only for cycles."""
    visited: set[Node] = set()
    for node in graph.nodes:
        if any(o not in visited for o in node.operands):
            yield f"{describe(node)}: depends on itself (cycle)"
        visited.add(node)


def known_ops(graph: Graph) -> Iterator[str]:
    """Check that every node's op is registered under its name."""
    for node in graph.nodes:
        if OPS.get(node.op.name) is not node.op:
            yield f"{describe(node)}: op {node.op.name} is not in the registry"


def inputs_are_leaves(graph: Graph) -> Iterator[str]:
    """Check that inputs are input nodes with distinct names, and that all input nodes are inputs."""
    for name, count in Counter(n.name for n in graph.inputs).items():
        if count > 1 or not name:
            yield f"{count} inputs have the name %{name}" if name else f"{count} inputs have no name"
    for node in graph.inputs:
        if node.op is not INPUT:
            yield f"{describe(node)}: is an input of the graph but not an input node"
    for node in graph.nodes:
        if node.op is INPUT and node not in graph.inputs:
            yield f"{describe(node)}: input node is used but is not an input of the graph"


def leaves_are_typed(graph: Graph) -> Iterator[str]:
    """Check that leaves have no operands and that a constant has the type of its data."""
    for node in graph.nodes:
        if node.op not in (INPUT, CONSTANT):
            continue
        if node.operands:
            yield f"{describe(node)}: inputs and constants must not have operands"
        if node.op is CONSTANT:
            data = node.attrs.get("value")
            if not isinstance(data, ConstantData):
                yield f"{describe(node)}: attribute value must be a ConstantData"
            elif without_layout(node.result_type) != TensorType(data.dtype, data.shape):
                yield f"{describe(node)}: its data has type {TensorType(data.dtype, data.shape)}"


def without_layout(result: ResultType) -> ResultType:
    """Return the type without its layout, which type rules do not determine."""
    if isinstance(result, tuple):
        return tuple(t.with_shape(t.shape) for t in result)
    return result.with_shape(result.shape)


def types_follow_from_operands(graph: Graph) -> Iterator[str]:
    """Check that the type inferred from operands and attributes is the node's type."""
    for node in graph.nodes:
        if node.op in (INPUT, CONSTANT):
            continue
        tuples = [o for o in node.operands if not isinstance(o.result_type, TensorType)]
        if tuples and not isinstance(node.structure, TupleGet):
            yield f"{describe(node)}: operand %{tuples[0].name} has several results; read one with tuple_get"
            continue
        try:
            attrs = node.op.bind_attrs(node.attrs)
            signature = Signature(node.op.name, tuple(o.result_type for o in node.operands), attrs)  # type: ignore[misc]
            if not tuples:
                node.op.check_operands(signature)
            inferred = node.op.infer_type(signature)
        except TypeRuleError as error:
            yield f"{describe(node)}: {error}"
            continue
        if without_layout(inferred) != without_layout(node.result_type):
            types = ", ".join(str(o.result_type) for o in node.operands)
            yield f"{describe(node)}: the inferred type for operands ({types}) is {inferred}"


def outputs_are_single(graph: Graph) -> Iterator[str]:
    """Check that outputs have one result each."""
    for node in graph.outputs:
        if not isinstance(node.result_type, TensorType):
            yield f"{describe(node)}: has several results; return one with tuple_get"


def aliases_fit(graph: Graph) -> Iterator[str]:
    """Check that an output written back to an input has the input's type, and that no input is written twice."""
    for output, target in graph.output_aliases.items():
        if not (0 <= output < len(graph.outputs) and 0 <= target < len(graph.inputs)):
            yield f"alias {output} -> {target}: there are {len(graph.outputs)} outputs and {len(graph.inputs)} inputs"
        elif graph.outputs[output].result_type != graph.inputs[target].result_type:
            yield f"{describe(graph.outputs[output])}: is written back to {graph.inputs[target]!r} of a different type"
    for target, count in Counter(graph.output_aliases.values()).items():
        if count > 1:
            yield f"input number {target} is written back {count} times"


def bodies_fit(graph: Graph) -> Iterator[str]:
    """Check that the inputs of a nested graph have the types of the node's operands, and verify the graph."""
    for node in graph.nodes:
        for body in (v for v in node.attrs.values() if isinstance(v, Graph)):
            expected, given = [n.result_type for n in body.inputs], [o.result_type for o in node.operands]
            if isinstance(node.structure, Recurrence):
                given = list(body_input_types([o.type for o in node.operands], node.attrs["num_scanned"]))
            elif isinstance(node.structure, ControlFlow):
                given = given[node.structure.leading_operands :]
            if list(map(without_layout, expected)) != list(map(without_layout, given)):
                expected_text, given_text = ", ".join(map(str, expected)), ", ".join(map(str, given))
                yield f"{describe(node)}: the body expects ({expected_text}), got ({given_text})"
            for rule in GRAPH_RULES:
                yield from (f"{describe(node)}: in its body: [{rule.__name__}] {problem}" for problem in rule(body))


GRAPH_RULES: tuple[Callable[[Graph], Iterator[str]], ...] = (
    no_cycles,
    known_ops,
    inputs_are_leaves,
    leaves_are_typed,
    types_follow_from_operands,
    outputs_are_single,
    aliases_fit,
    bodies_fit,
)
