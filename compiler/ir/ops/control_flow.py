"""Graphs that run, or do not, or run again, as data decides."""

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
    then, otherwise = _output_types(s.attrs["then"]), _output_types(s.attrs["otherwise"])
    if then != otherwise:
        raise s.error(f"one graph gives ({', '.join(map(str, then))}), the other ({', '.join(map(str, otherwise))})")
    return single_or_tuple(then)


def _cond_reference(
    given: torch.Tensor, *operands: torch.Tensor, then: SubgraphFunction, otherwise: SubgraphFunction
) -> tuple[torch.Tensor, ...]:
    return tuple((then if bool(given) else otherwise)(operands))


cond = declare_op(
    "choose", "given!: any, operands*!: any", ControlFlow(leading_operands=1), type_rule=_cond_type, attrs={"then": REQUIRED, "otherwise": REQUIRED},
    reference=_cond_reference,
)  # fmt: skip
"""The graph `then` on the operands where the one element of `given` holds, else the graph `otherwise`."""


def _while_loop_type(s: Signature) -> TensorType | tuple[TensorType, ...]:
    made, states = _output_types(s.attrs["body"]), s.types[: s.attrs["states"]]
    if _output_types(s.attrs["test"]) != (TensorType(boolean, ()),):
        raise s.error("the test does not give one bool")
    if made != states or not states:
        raise s.error(f"the body makes ({', '.join(map(str, made))}) of states ({', '.join(map(str, states))})")
    return single_or_tuple(made)


def _while_loop_reference(
    *operands: torch.Tensor, test: SubgraphFunction, body: SubgraphFunction, states: int
) -> tuple[torch.Tensor, ...]:
    carried, fixed = tuple(operands[:states]), operands[states:]
    while bool(test((*carried, *fixed))[0]):
        carried = tuple(body((*carried, *fixed)))
    return carried


while_loop = declare_op(
    "repeat_while", "operands*!: any", ControlFlow(), type_rule=_while_loop_type, attrs={"test": REQUIRED, "body": REQUIRED, "states": REQUIRED},
    reference=_while_loop_reference,
)  # fmt: skip
"""The graph `body` again and again, as long as the graph `test` holds: it makes the first `states` operands anew, the others stay."""
