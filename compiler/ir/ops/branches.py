"""Graphs that run, or do not, or run again, as data decides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch

from compiler.ir.graph import Graph
from compiler.ir.op import REQUIRED, Signature, op
from compiler.ir.ops.rules import one_or_all
from compiler.ir.structure import Control
from compiler.ir.types import TensorType, boolean

Body: TypeAlias = Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]


def _results(graph: Graph) -> tuple[TensorType, ...]:
    return tuple(n.type for n in graph.outputs)


def _choose_type(s: Signature) -> TensorType | tuple[TensorType, ...]:
    then, otherwise = _results(s.attrs["then"]), _results(s.attrs["otherwise"])
    if then != otherwise:
        raise s.fail(f"one graph gives ({', '.join(map(str, then))}), the other ({', '.join(map(str, otherwise))})")
    return one_or_all(then)


def _choose(given: torch.Tensor, *operands: torch.Tensor, then: Body, otherwise: Body) -> tuple[torch.Tensor, ...]:
    return tuple((then if bool(given) else otherwise)(operands))


choose = op(
    "choose", "given!: any, operands*!: any", Control(leading=1), type=_choose_type, attrs={"then": REQUIRED, "otherwise": REQUIRED},
    reference=_choose,
)  # fmt: skip
"""The graph `then` on the operands where the one element of `given` holds, else the graph `otherwise`."""


def _repeat_type(s: Signature) -> TensorType | tuple[TensorType, ...]:
    made, states = _results(s.attrs["body"]), s.types[: s.attrs["states"]]
    if _results(s.attrs["test"]) != (TensorType(boolean, ()),):
        raise s.fail("the test does not give one bool")
    if made != states or not states:
        raise s.fail(f"the body makes ({', '.join(map(str, made))}) of states ({', '.join(map(str, states))})")
    return one_or_all(made)


def _repeat(*operands: torch.Tensor, test: Body, body: Body, states: int) -> tuple[torch.Tensor, ...]:
    carried, fixed = tuple(operands[:states]), operands[states:]
    while bool(test((*carried, *fixed))[0]):
        carried = tuple(body((*carried, *fixed)))
    return carried


repeat_while = op(
    "repeat_while", "operands*!: any", Control(), type=_repeat_type, attrs={"test": REQUIRED, "body": REQUIRED, "states": REQUIRED},
    reference=_repeat,
)  # fmt: skip
"""The graph `body` again and again, as long as the graph `test` holds: it makes the first `states` operands anew, the others stay."""
