"""Loops over a sequence that carry state from step to step: recurrent networks."""

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
    count, states = s.attrs["sequences"], s.attrs["states"]
    if not 0 < count <= count + states <= len(s.types):
        raise s.error(f"there are no {count} sequences and {states} states among the operands, one sequence at least")
    lengths = {t.shape[0] if t.rank else None for t in s.types[:count]}
    steps = lengths.pop()
    if lengths or steps is None or steps == 0:
        raise s.error("the sequences must have one length, of a step or more")
    given = body_input_types(s.types, count)
    formal = tuple(n.type for n in body.inputs)
    if given != formal:
        raise s.error(
            f"the body takes ({', '.join(map(str, formal))}) at each step, not ({', '.join(map(str, given))})"
        )
    made = tuple(n.type for n in body.outputs)
    if made[:states] != s.types[count : count + states]:
        raise s.error(f"the body makes ({', '.join(map(str, made))}), which does not begin with the states' types")
    return single_or_tuple((*made[:states], *(stacked_type(t, steps) for t in made[states:])))


def body_input_types(types: Sequence[TensorType], sequences: int) -> tuple[TensorType, ...]:
    """What a recurrence's body takes, given its operands' types: an entry of each sequence, and the others as they are."""
    return (*(t.with_shape(t.shape[1:]) for t in types[:sequences]), *types[sequences:])


def stacked_type(entry: TensorType, steps: Dim) -> TensorType:
    """The type of `steps` entries."""
    return entry.with_shape((steps, *entry.shape))


def run_steps(
    node: Node, operands: Sequence[Any], body: Callable[[list[Any]], Sequence[T]], stack: Callable[[Sequence[T]], T]
) -> tuple[T, ...]:
    """The results of a recurrence, step by step: `body` evaluates its graph, `stack` joins entries along a new first dimension."""
    count, states = node.attrs["sequences"], node.attrs["states"]
    sequences, carried, fixed = operands[:count], operands[count : count + states], operands[count + states :]
    order = range(len(sequences[0]))
    rows: list[Sequence[T]] = []
    for t in reversed(order) if node.attrs["reverse"] else order:
        made = body([*(x[t] for x in sequences), *carried, *fixed])
        carried = made[:states]
        rows.append(made[states:])
    if node.attrs["reverse"]:
        rows.reverse()
    return (*carried, *map(stack, zip(*rows, strict=True)))


recurrence = declare_op(
    "recurrence", "operands*!: any", Recurrence(), type_rule=_recurrence_type,
    attrs={"body": REQUIRED, "sequences": 1, "states": 1, "reverse": False},
)  # fmt: skip
"""`body` for every entry of the first `sequences` operands, from the last one with `reverse`.

It takes their entries, the `states` (the next operands, to begin with) and the operands that stay, and gives the next states
and an entry of each result.  The results are the last states and the sequences of entries, each at the place of its step.
"""
