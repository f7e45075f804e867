"""Loops over a sequence that carry state from step to step, as in recurrent networks (ONNX Scan, `jax.lax.scan`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import REQUIRED, Node, Signature
from compiler.ir.graph.op import declare_op
from compiler.ir.graph.structure import Recurrence
from compiler.ir.ops.rules import single_or_tuple
from compiler.ir.symbolic.index_expr import Dim
from compiler.ir.types import TensorType

T = TypeVar("T")


def _recurrence_type(s: Signature) -> TensorType | tuple[TensorType, ...]:
    body: Graph = s.attrs["body"]
    scanned, carried = s.attrs["num_scanned"], s.attrs["num_carried"]
    if not 0 < scanned <= scanned + carried <= len(s.types):
        raise s.error(
            f"num_scanned={scanned} (at least 1) and num_carried={carried} do not fit {len(s.types)} operands"
        )
    lengths = {t.shape[0] if t.rank else None for t in s.types[:scanned]}
    steps = lengths.pop()
    if lengths or steps is None or steps == 0:
        raise s.error("scanned operands must have the same length, 1 or more")
    actual = body_input_types(s.types, scanned)
    formal = tuple(n.type for n in body.inputs)
    if actual != formal:
        raise s.error(f"body expects ({', '.join(map(str, formal))}), got ({', '.join(map(str, actual))})")
    results = tuple(n.type for n in body.outputs)
    if results[:carried] != s.types[scanned : scanned + carried]:
        raise s.error(f"body returns ({', '.join(map(str, results))}), which does not begin with the carried types")
    return single_or_tuple((*results[:carried], *(stacked_type(t, steps) for t in results[carried:])))


def body_input_types(types: Sequence[TensorType], num_scanned: int) -> tuple[TensorType, ...]:
    """Input types of a recurrence's body for operand types `types`: scanned operands lose their first dimension."""
    return (*(t.with_shape(t.shape[1:]) for t in types[:num_scanned]), *types[num_scanned:])


def stacked_type(entry: TensorType, steps: Dim) -> TensorType:
    """Type of `steps` entries stacked along a new first dimension."""
    return entry.with_shape((steps, *entry.shape))


def run_steps(
    node: Node, operands: Sequence[Any], body: Callable[[list[Any]], Sequence[T]], stack: Callable[[Sequence[T]], T]
) -> tuple[T, ...]:
    """Run a recurrence: `body` evaluates its graph at each step, `stack` joins entries along a new first dimension."""
    num_scanned, num_carried = node.attrs["num_scanned"], node.attrs["num_carried"]
    scanned, others = operands[:num_scanned], operands[num_scanned:]
    carried, fixed = others[:num_carried], others[num_carried:]
    order = range(len(scanned[0]))
    entries: list[Sequence[T]] = []
    for t in reversed(order) if node.attrs["reverse"] else order:
        results = body([*(x[t] for x in scanned), *carried, *fixed])
        carried = results[:num_carried]
        entries.append(results[num_carried:])
    if node.attrs["reverse"]:
        entries.reverse()
    return (*carried, *map(stack, zip(*entries, strict=True)))


recurrence = declare_op(
    "recurrence", "operands*!: any", Recurrence(), type_rule=_recurrence_type,
    attrs={"body": REQUIRED, "num_scanned": 1, "num_carried": 1, "reverse": False},
)  # fmt: skip
"""Run `body` for every entry of the first `num_scanned` operands, from the last one if `reverse`.

Operands: scanned sequences, initial values of `num_carried` states, operands that are the same at every step.
body: (entries of the sequences, states, fixed operands) -> (next states, entries of results).
Results: the last states, then each result's entries stacked in the order of the sequences.
"""
