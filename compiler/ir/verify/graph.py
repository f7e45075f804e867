"""The rules of Graph IR.  Each is a function that yields what is wrong; `RULES` lists them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from compiler.errors import TypeRuleError, VerifyError
from compiler.ir.graph.constant import ConstantData
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import CONSTANT, INPUT, OPS, Node, Signature
from compiler.ir.graph.structure import ControlFlow, Recurrence, TupleGet
from compiler.ir.ops.recurrence import body_input_types
from compiler.ir.types import TensorType


def verify_graph(graph: Graph) -> None:
    """VerifyError listing every broken rule: the node, the rule, the types and the user's line."""
    problems = [f"[{rule.__name__}] {problem}" for rule in GRAPH_RULES for problem in rule(graph)]
    if problems:
        raise VerifyError(f"@{graph.name} is not a valid graph:\n  " + "\n  ".join(problems))


def describe(node: Node) -> str:
    """The node, and the user's line it came from."""
    return f"{node!r}" + (f" at {node.loc}" if node.loc else "")


def no_cycles(graph: Graph) -> Iterator[str]:
    """A node comes after its operands; `Graph.nodes` orders them unless some node reaches itself."""
    done: set[Node] = set()
    for node in graph.nodes:
        if any(o not in done for o in node.operands):
            yield f"{describe(node)}: is computed from itself"
        done.add(node)


def known_ops(graph: Graph) -> Iterator[str]:
    """Every node's op is the one the registry has under that name."""
    for node in graph.nodes:
        if OPS.get(node.op.name) is not node.op:
            yield f"{describe(node)}: op {node.op.name} is not in the registry"


def inputs_are_leaves(graph: Graph) -> Iterator[str]:
    """Inputs are input nodes with distinct names, and no other input node is reached."""
    for name, count in Counter(n.name for n in graph.inputs).items():
        if count > 1 or not name:
            yield f"{count} inputs are called %{name}" if name else f"{count} inputs have no name"
    for node in graph.inputs:
        if node.op is not INPUT:
            yield f"{describe(node)}: is an input of the graph but no input node"
    for node in graph.nodes:
        if node.op is INPUT and node not in graph.inputs:
            yield f"{describe(node)}: is read but is no input of the graph"


def leaves_are_typed(graph: Graph) -> Iterator[str]:
    """Leaves have no operands; a constant's type is that of its data."""
    for node in graph.nodes:
        if node.op not in (INPUT, CONSTANT):
            continue
        if node.operands:
            yield f"{describe(node)}: a leaf has no operands"
        if node.op is CONSTANT:
            data = node.attrs.get("value")
            if not isinstance(data, ConstantData):
                yield f"{describe(node)}: holds no data"
            elif without_layout(node.result_type) != TensorType(data.dtype, data.shape):
                yield f"{describe(node)}: its data is {TensorType(data.dtype, data.shape)}"


def without_layout(result: TensorType | tuple[TensorType, ...]) -> TensorType | tuple[TensorType, ...]:
    """The type without its layout, which no type rule decides."""
    if isinstance(result, tuple):
        return tuple(t.with_shape(t.shape) for t in result)
    return result.with_shape(result.shape)


def types_follow_from_operands(graph: Graph) -> Iterator[str]:
    """Deriving the type again from operands and attributes gives the stored one."""
    for node in graph.nodes:
        if node.op in (INPUT, CONSTANT):
            continue
        several = [o for o in node.operands if not isinstance(o.result_type, TensorType)]
        if several and not isinstance(node.structure, TupleGet):
            yield f"{describe(node)}: operand %{several[0].name} has several results; read them with tuple_get"
            continue
        try:
            attrs = node.op.bind_attrs(node.attrs)
            signature = Signature(node.op.name, tuple(o.result_type for o in node.operands), attrs)  # type: ignore[misc]
            if not several:
                node.op.check_operands(signature)
            derived = node.op.infer_type(signature)
        except TypeRuleError as error:
            yield f"{describe(node)}: {error}"
            continue
        if without_layout(derived) != without_layout(node.result_type):
            yield f"{describe(node)}: the operands ({', '.join(str(o.result_type) for o in node.operands)}) give {derived}"


def outputs_are_single(graph: Graph) -> Iterator[str]:
    """Outputs have one result each."""
    for node in graph.outputs:
        if not isinstance(node.result_type, TensorType):
            yield f"{describe(node)}: has several results; return its items"


def aliases_fit(graph: Graph) -> Iterator[str]:
    """An output written back to an input has the input's type, and no input is written twice."""
    for output, target in graph.output_aliases.items():
        if not (0 <= output < len(graph.outputs) and 0 <= target < len(graph.inputs)):
            yield f"alias {output} -> {target}: there are {len(graph.outputs)} outputs and {len(graph.inputs)} inputs"
        elif graph.outputs[output].result_type != graph.inputs[target].result_type:
            yield f"{describe(graph.outputs[output])}: is written back to {graph.inputs[target]!r}, of another type"
    for target, count in Counter(graph.output_aliases.values()).items():
        if count > 1:
            yield f"input number {target} is written back {count} times"


def bodies_fit(graph: Graph) -> Iterator[str]:
    """A graph inside a node takes what its operands give it and obeys every rule itself."""
    for node in graph.nodes:
        for body in (v for v in node.attrs.values() if isinstance(v, Graph)):
            takes, given = [n.result_type for n in body.inputs], [o.result_type for o in node.operands]
            if isinstance(node.structure, Recurrence):
                given = list(body_input_types([o.type for o in node.operands], node.attrs["num_scanned"]))
            elif isinstance(node.structure, ControlFlow):
                given = given[node.structure.leading_operands :]
            if list(map(without_layout, takes)) != list(map(without_layout, given)):
                yield f"{describe(node)}: its body takes ({', '.join(map(str, takes))}), not ({', '.join(map(str, given))})"
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
