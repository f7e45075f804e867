"""Interpreter of Graph IR: runs every op's reference in PyTorch.

With `dtype=torch.float64` all floating-point operations and casts use float64, which gives the reference result for
error measurements.  Without it, reduced floats are computed in f32 and each result is rounded, as in compiled code, while
PyTorch's kernels for them also round intermediate values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch

from compiler.errors import ArgumentError, VerifyError
from compiler.ir import types
from compiler.ir.float_format import Array
from compiler.ir.graph.constant import ConstantData
from compiler.ir.graph.graph import Graph, expand_composite
from compiler.ir.graph.node import CONSTANT, OPS, Node
from compiler.ir.graph.partition import needs_partitioning, partition
from compiler.ir.graph.structure import (
    Composite,
    Elementwise,
    Gather,
    IndexMap,
    Opaque,
    Recurrence,
    elementwise_expr,
    primitive_of,
)
from compiler.ir.interpret.partition_executor import EagerFunction, PartitionExecutor, SubgraphFunction
from compiler.ir.ops.recurrence import run_steps
from compiler.ir.scalar import APPROXIMATED
from compiler.ir.symbolic.binding import bind_symbols
from compiler.ir.torch_types import TORCH_DTYPES, as_array, as_tensor
from compiler.ir.types import DType

Value: TypeAlias = "torch.Tensor | tuple[torch.Tensor, ...]"
NodeEvaluator: TypeAlias = Callable[[Node, Sequence[Value]], Value]


def interpret(
    graph: Graph, inputs: Sequence[torch.Tensor | Array], *, dtype: torch.dtype | None = None
) -> list[torch.Tensor]:
    """Return the graph's outputs for `inputs`, arrays or tensors (an array holds values or `dtype.storage`).

    `dtype` replaces every floating-point type.  ArgumentError if an input does not match its type.
    """
    if len(inputs) != len(graph.inputs):
        raise ArgumentError(f"@{graph.name} takes {len(graph.inputs)} inputs, got {len(inputs)}")
    if graph.symbols:
        pairs = zip(graph.inputs, inputs, strict=True)
        graph = graph.specialize(bind_symbols(p for n, x in pairs for p in zip(n.shape, x.shape, strict=True)))
    arguments = []
    for node, given in zip(graph.inputs, inputs, strict=True):
        value = given if isinstance(given, torch.Tensor) else as_tensor(given, node.dtype)
        if tuple(value.shape) != node.shape or value.dtype not in (dtype, TORCH_DTYPES[node.dtype]):
            actual = f"{value.dtype}{list(value.shape)}"
            raise ArgumentError(f"@{graph.name}: input %{node.name} must be {node.type}, got {actual}")
        arguments.append(_to_float_dtype(value, dtype))
    if needs_partitioning(graph):
        subgraphs, evaluate_graph = partition(graph), partial(partial, interpret, dtype=dtype)
        functions = tuple(evaluate_graph(s.graph) for s in subgraphs)
        bind_call = partial(bind_reference, evaluate_graph)
        return PartitionExecutor(graph, subgraphs, functions, bind_call)(arguments)[0]  # type: ignore[arg-type]  # inputs are tensors
    return _evaluate(graph, arguments, partial(evaluate_node, dtype=dtype))  # type: ignore[return-value]  # verified: outputs are tensors


def bind_reference(
    evaluate_graph: Callable[[Graph], SubgraphFunction], node: Node, attrs: Mapping[str, Any]
) -> EagerFunction:
    """Return the reference of a node's op as a function of its operands; `evaluate_graph` makes functions of graphs in `attrs`."""
    bound = {k: evaluate_graph(v) if isinstance(v, Graph) else v for k, v in attrs.items()}

    def call(*operands: torch.Tensor) -> tuple[torch.Tensor, ...]:
        result = _run_reference(node.op.reference, operands, bound, repr(node))
        return result if isinstance(result, tuple) else (result,)

    return call


def interpret_in_float64(graph: Graph) -> list[torch.Tensor]:
    """Return the outputs of a graph without inputs; each node is computed in float64 and rounded to its types."""
    return _evaluate(graph, (), _evaluate_in_float64)  # type: ignore[return-value]  # verified: outputs are tensors


def run_opaque_op(name: str, attrs: Mapping[str, Any], arguments: Sequence[tuple[Array, DType]]) -> list[Array]:
    """Run the reference of op `name` on arrays."""
    result = _run_reference(OPS[name].reference, [as_tensor(a, d) for a, d in arguments], attrs, f"op {name}")
    return [as_array(r) for r in (result if isinstance(result, tuple) else (result,))]


def _evaluate(graph: Graph, arguments: Sequence[Value], evaluate: NodeEvaluator) -> list[Value]:
    """Return the outputs of a graph of static shapes."""
    values = dict(zip(graph.inputs, arguments, strict=True))
    for node in graph.nodes:
        if node not in values:
            values[node] = evaluate(node, [values[o] for o in node.operands])
    return [values[n] for n in graph.outputs]


def _evaluate_body(node: Node, operands: Sequence[Any], evaluate: NodeEvaluator) -> Value | None:
    """Evaluate a node with a nested graph, or a composite without a reference; return None for other nodes."""
    results: Any
    if isinstance(node.structure, Recurrence):
        results = run_steps(node, operands, lambda given: _evaluate(node.attrs["body"], given, evaluate), _stack)
    else:
        needs_expansion = node.op.reference is None and isinstance(node.structure, Composite)
        body = node.attrs.get("body") or (expand_composite(node) if needs_expansion else None)
        if body is None:
            return None
        results = _evaluate(body, operands, evaluate)
    return tuple(results) if isinstance(node.result_type, tuple) else results[0]


def _stack(values: Sequence[Any]) -> Value:
    return torch.stack(list(values))


def evaluate_node(node: Node, operands: Sequence[Value], dtype: torch.dtype | None) -> Value:
    """Evaluate `node` on its operands' values; `dtype` replaces every floating-point type."""
    value = _evaluate_body(node, operands, partial(evaluate_node, dtype=dtype))
    if value is not None:
        return value
    if node.op is CONSTANT:
        data: ConstantData = node.attrs["value"]
        return _to_float_dtype(as_tensor(data.array, data.dtype), dtype)
    if isinstance(node.structure, Opaque):
        # the order of equal elements (sort, topk) depends on strides; compiled programs pass contiguous tensors
        operands = [o if isinstance(o, tuple) else o.contiguous() for o in operands]
    if primitive_of(node) == "bitcast":  # keep the dtypes
        operands = [_to_float_dtype(o, TORCH_DTYPES[n.dtype]) for o, n in zip(operands, node.operands, strict=True)]
        return _to_float_dtype(_run_reference(node.op.reference, operands, node.attrs, repr(node)), dtype)
    wide = dtype or _compute_dtype(node)
    if wide is None:
        return _run_reference(node.op.reference, operands, node.attrs, repr(node))
    attrs = {k: _promote_attr(v, wide) for k, v in node.attrs.items()}
    result = _run_reference(node.op.reference, [_to_float_dtype(o, wide) for o in operands], attrs, repr(node))
    return _to_float_dtype(result, dtype) if dtype else _round_to_result_type(result, node)


def _evaluate_in_float64(node: Node, operands: Sequence[Value]) -> Value:
    """Evaluate `node` with float64 intermediate values and round the result once to the node's types."""
    value = _evaluate_body(node, operands, _evaluate_in_float64)
    if value is not None:
        return value
    dtype = None if _is_correctly_rounded(node) else torch.float64
    return _round_to_result_type(evaluate_node(node, operands, dtype), node)


def _is_correctly_rounded(node: Node) -> bool:
    """Return True if each element is copied, or computed by at most one correctly rounded operation."""
    if isinstance(node.structure, Elementwise):
        primitives = [e.primitive for e in elementwise_expr(node).calls]
        return len(primitives) <= 1 and not APPROXIMATED.intersection(primitives)
    return node.op is CONSTANT or isinstance(node.structure, IndexMap | Gather)


def _compute_dtype(node: Node) -> torch.dtype | None:
    """Return the compute type of a node with reduced float operands or results, as in compiled code; None for others."""
    dtypes = {t.dtype for n in (node, *node.operands) for t in n.result_types}
    if not any(d.is_reduced_float for d in dtypes):
        return None
    return torch.float64 if types.f64 in dtypes else torch.float32


def _round_to_result_type(value: Value, node: Node) -> Value:
    """Convert `value` to the result types of `node`."""
    if isinstance(node.result_type, tuple):
        return tuple(v.to(TORCH_DTYPES[t.dtype]) for v, t in zip(value, node.result_type, strict=True))
    return value.to(TORCH_DTYPES[node.dtype])  # type: ignore[union-attr]  # one result


def _run_reference(
    reference: Callable[..., Any] | None, operands: Sequence[Value], attrs: Mapping[str, Any], what: str
) -> Value:
    if reference is None:
        raise VerifyError(f"{what} has no reference implementation")
    result = reference(*operands, **attrs)
    return tuple(result) if isinstance(result, (tuple, list)) else result


def _to_float_dtype(value: Value, dtype: torch.dtype | None) -> Value:
    """Convert the floating-point tensors in `value` to `dtype`, if given."""
    if isinstance(value, tuple):
        return tuple(_to_float_dtype(v, dtype) for v in value)  # type: ignore[misc]
    return value.to(dtype) if dtype is not None and value.is_floating_point() else value


def _promote_attr(value: Any, dtype: torch.dtype) -> Any:
    """Replace a float type in an attribute, as the target of a cast, by the type that corresponds to `dtype`."""
    if isinstance(value, DType) and value.is_float:
        return next(d for d, t in TORCH_DTYPES.items() if t == dtype)
    return value
