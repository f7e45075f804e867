"""Control flow that depends on data: conditionals and loops over subgraphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch

from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import REQUIRED, Signature
from compiler.ir.graph.op import declare_op
from compiler.ir.graph.structure import ControlFlow
from compiler.ir.ops.rules import single_or_tuple
from compiler.ir.types import TensorType, boolean

SubgraphFunction: TypeAlias = Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]


def _output_types(graph: Graph) -> tuple[TensorType, ...]:
    return tuple(n.type for n in graph.outputs)


def _cond_type(s: Signature) -> TensorType | tuple[TensorType, ...]:
    true_types, false_types = _output_types(s.attrs["true_graph"]), _output_types(s.attrs["false_graph"])
    if true_types != false_types:
        true_text, false_text = (", ".join(map(str, types)) for types in (true_types, false_types))
        raise s.error(f"true_graph returns ({true_text}), but false_graph returns ({false_text})")
    return single_or_tuple(true_types)


def _cond_reference(
    predicate: torch.Tensor, *operands: torch.Tensor, true_graph: SubgraphFunction, false_graph: SubgraphFunction
) -> torch.Tensor | tuple[torch.Tensor, ...]:
    return single_or_tuple(tuple((true_graph if bool(predicate) else false_graph)(operands)))


cond = declare_op(
    "cond", "predicate!: any, operands*!: any", ControlFlow(leading_operands=1), type_rule=_cond_type, attrs={"true_graph": REQUIRED, "false_graph": REQUIRED},
    reference=_cond_reference,
)  # fmt: skip
"""`true_graph` applied to the operands if `predicate`, a tensor of one element, is true, else `false_graph`."""


def _while_loop_type(s: Signature) -> TensorType | tuple[TensorType, ...]:
    results, carried = _output_types(s.attrs["body"]), s.types[: s.attrs["carried"]]
    if _output_types(s.attrs["condition"]) != (TensorType(boolean, ()),):
        raise s.error("condition must return one bool of rank 0")
    if results != carried or not carried:
        raise s.error(
            f"body maps ({', '.join(map(str, carried))}) to ({', '.join(map(str, results))}); the types must match"
        )
    return single_or_tuple(results)


def _while_loop_reference(
    *operands: torch.Tensor, condition: SubgraphFunction, body: SubgraphFunction, carried: int
) -> torch.Tensor | tuple[torch.Tensor, ...]:
    state, fixed = tuple(operands[:carried]), operands[carried:]
    while bool(condition((*state, *fixed))[0]):
        state = tuple(body((*state, *fixed)))
    return single_or_tuple(state)


while_loop = declare_op(
    "while_loop", "operands*!: any", ControlFlow(), type_rule=_while_loop_type, attrs={"condition": REQUIRED, "body": REQUIRED, "carried": REQUIRED},
    reference=_while_loop_reference,
)  # fmt: skip
"""Repeated application of `body` while `condition` returns true; both take all operands.

`body` returns new values of the first `carried` operands; the others stay the same.  The results are the last carried values."""
