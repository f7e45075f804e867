"""What a graph means: every op's reference, run in PyTorch.

With `dtype=torch.float64` all floating-point maths happens in float64, casts between float types included, which gives the
true answer that every rounded one is measured against.  Without it, half types are computed in f32 and each result is
rounded, as in compiled code; PyTorch's own half-precision kernels round in between.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch

from compiler.errors import ArgumentError, VerifyError
from compiler.ir import types
from compiler.ir.graph.constant import ConstantData
from compiler.ir.graph.graph import Graph, expand_composite
from compiler.ir.graph.node import CONSTANT, OPS, Node
from compiler.ir.graph.partition import needs_partitioning, partition
from compiler.ir.graph.structure import Composite, Elementwise, Gather, IndexMap, Opaque, Recurrence, elementwise_expr
from compiler.ir.interpret.partition_executor import PartitionExecutor
from compiler.ir.ops.recurrence import run_steps
from compiler.ir.scalar import APPROXIMATED
from compiler.ir.symbolic.binding import bind_symbols
from compiler.ir.torch_types import TORCH_DTYPES, as_array, as_tensor
from compiler.ir.types import DType

Array: TypeAlias = np.ndarray[Any, Any]
Value: TypeAlias = "torch.Tensor | tuple[torch.Tensor, ...]"
NodeEvaluator: TypeAlias = Callable[[Node, Sequence[Value]], Value]


def interpret(
    graph: Graph, inputs: Sequence[torch.Tensor | Array], *, dtype: torch.dtype | None = None
) -> list[torch.Tensor]:
    """The graph's outputs for `inputs` (arrays or tensors; a bf16 array holds float32 or bits in uint16).

    `dtype` replaces every floating-point type.  ArgumentError where an input does not fit its type.
    """
    if len(inputs) != len(graph.inputs):
        raise ArgumentError(f"@{graph.name} takes {len(graph.inputs)} inputs, not {len(inputs)}")
    if graph.symbols:
        pairs = zip(graph.inputs, inputs, strict=True)
        graph = graph.specialize(bind_symbols(p for n, x in pairs for p in zip(n.shape, x.shape, strict=True)))
    arguments = []
    for node, given in zip(graph.inputs, inputs, strict=True):
        value = given if isinstance(given, torch.Tensor) else as_tensor(given, node.dtype)
        if tuple(value.shape) != node.shape or value.dtype not in (dtype, TORCH_DTYPES[node.dtype]):
            found = f"{value.dtype}{list(value.shape)}"
            raise ArgumentError(f"@{graph.name}: input %{node.name} is {node.type}, but was given {found}")
        arguments.append(_to_float_dtype(value, dtype))
    if needs_partitioning(graph):
        parts = partition(graph)
        interpreted = partial(partial, interpret, dtype=dtype)
        return PartitionExecutor(graph, parts, tuple(interpreted(p.graph) for p in parts), interpreted)(arguments)[0]  # type: ignore[arg-type]  # inputs are single
    return _evaluate(graph, arguments, partial(evaluate_node, dtype=dtype))  # type: ignore[return-value]  # outputs are single results, as verified


def interpret_in_float64(graph: Graph) -> list[torch.Tensor]:
    """The outputs of a graph without inputs: float maths happens in float64, and what each node gives is rounded to its types."""
    return _evaluate(graph, (), _evaluate_in_float64)  # type: ignore[return-value]  # outputs are single results, as verified


def run_opaque_op(name: str, attrs: Mapping[str, Any], arguments: Sequence[tuple[Array, DType]]) -> list[Array]:
    """The results of op `name`'s reference on arrays."""
    result = _run_reference(OPS[name].reference, [as_tensor(a, d) for a, d in arguments], attrs, f"op {name}")
    return [as_array(r) for r in (result if isinstance(result, tuple) else (result,))]


def _evaluate(graph: Graph, arguments: Sequence[Value], compute_one: NodeEvaluator) -> list[Value]:
    """The outputs of a graph without symbolic dimensions."""
    known = dict(zip(graph.inputs, arguments, strict=True))
    for node in graph.nodes:
        if node not in known:
            known[node] = compute_one(node, [known[o] for o in node.operands])
    return [known[n] for n in graph.outputs]


def _evaluate_body(node: Node, operands: Sequence[Any], compute_one: NodeEvaluator) -> Value | None:
    """The value of a node that carries a graph, or has one instead of a reference; None where it has neither."""
    results: Any
    if isinstance(node.structure, Recurrence):
        results = run_steps(node, operands, lambda given: _evaluate(node.attrs["body"], given, compute_one), _stack)
    else:
        declared = node.op.reference is None and isinstance(node.structure, Composite)
        body = node.attrs.get("body") or (expand_composite(node) if declared else None)
        if body is None:
            return None
        results = _evaluate(body, operands, compute_one)
    return tuple(results) if isinstance(node.result_type, tuple) else results[0]


def _stack(values: Sequence[Any]) -> Value:
    return torch.stack(list(values))


def evaluate_node(node: Node, operands: Sequence[Value], dtype: torch.dtype | None) -> Value:
    """The value of `node` given its operands' values."""
    found = _evaluate_body(node, operands, partial(evaluate_node, dtype=dtype))
    if found is not None:
        return found
    if node.op is CONSTANT:
        data: ConstantData = node.attrs["value"]
        return _to_float_dtype(as_tensor(data.array, data.dtype), dtype)
    if isinstance(node.structure, Opaque):
        # which of equal elements comes first depends on their places in memory, and programs keep them dense
        operands = [o if isinstance(o, tuple) else o.contiguous() for o in operands]
    if isinstance(node.structure, Elementwise) and not node.structure.promotes_half:  # bits have no wide form
        operands = [_to_float_dtype(o, TORCH_DTYPES[n.dtype]) for o, n in zip(operands, node.operands, strict=True)]
        return _to_float_dtype(_run_reference(node.op.reference, operands, node.attrs, repr(node)), dtype)
    wide = dtype or _half_compute_dtype(node)
    if wide is None:
        return _run_reference(node.op.reference, operands, node.attrs, repr(node))
    attrs = {k: _promote_attr(v, wide) for k, v in node.attrs.items()}
    result = _run_reference(node.op.reference, [_to_float_dtype(o, wide) for o in operands], attrs, repr(node))
    return _to_float_dtype(result, dtype) if dtype else _round_to_result_type(result, node)


def _evaluate_in_float64(node: Node, operands: Sequence[Value]) -> Value:
    """The value of `node`, each element as near to the truth as its type allows: float maths of several steps happens in float64."""
    found = _evaluate_body(node, operands, _evaluate_in_float64)
    if found is not None:
        return found
    return _round_to_result_type(
        evaluate_node(node, operands, None if _is_correctly_rounded(node) else torch.float64), node
    )


def _is_correctly_rounded(node: Node) -> bool:
    """Whether an element is chosen, or comes of one step that every machine rounds correctly."""
    if isinstance(node.structure, Elementwise):
        steps = [e.primitive for e in elementwise_expr(node).calls]
        return len(steps) <= 1 and not APPROXIMATED.intersection(steps)
    return node.op is CONSTANT or isinstance(node.structure, IndexMap | Gather)


def _half_compute_dtype(node: Node) -> torch.dtype | None:
    """The type in which a node that reads or makes half types is computed, as in compiled code; None where there are none."""
    found = {
        t.dtype
        for n in (node, *node.operands)
        for t in (n.result_type if isinstance(n.result_type, tuple) else (n.result_type,))
    }
    return (torch.float64 if types.f64 in found else torch.float32) if any(d.is_half for d in found) else None


def _round_to_result_type(value: Value, node: Node) -> Value:
    """`value` in the types of `node`."""
    if isinstance(node.result_type, tuple):
        return tuple(v.to(TORCH_DTYPES[t.dtype]) for v, t in zip(value, node.result_type, strict=True))
    return value.to(TORCH_DTYPES[node.dtype])  # type: ignore[union-attr]  # one result


def _run_reference(
    reference: Callable[..., Any] | None, operands: Sequence[Value], attrs: Mapping[str, Any], what: str
) -> Value:
    if reference is None:
        raise VerifyError(f"{what} has no reference to run")
    result = reference(*operands, **attrs)
    return tuple(result) if isinstance(result, (tuple, list)) else result


def _to_float_dtype(value: Value, dtype: torch.dtype | None) -> Value:
    """`value` with its floating-point tensors converted to `dtype`."""
    if isinstance(value, tuple):
        return tuple(_to_float_dtype(v, dtype) for v in value)  # type: ignore[misc]
    return value.to(dtype) if dtype is not None and value.is_floating_point() else value


def _promote_attr(value: Any, dtype: torch.dtype) -> Any:
    """A float type among the attributes (what a cast converts to) replaced by the wide one."""
    if isinstance(value, DType) and value.is_float:
        return next(d for d, t in TORCH_DTYPES.items() if t == dtype)
    return value
