"""The gradient of a recurrence of `recurrent.py`: a second one from the last step to the first, and products for all steps behind it.

A step takes the gradient of the gates from the step that it comes after, whose product with the weights is the gradient of the
state: so the product and what follows from it are one kernel, as forwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from compiler.frontend.conversions.recurrent import named_weights, split_gates
from compiler.frontend.registry import converts
from compiler.ir import ops
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import Node, input_node
from compiler.ir.ops.creation import full


class StepGradient(NamedTuple):
    """Gradients of a step: of what its gates take from the state and from the input, and of what they do not hide.

    `past` is the gradient of the states before the step as far as it does not come through the gates.
    """

    gates: Node
    input_gates: Node
    carried: tuple[Node, ...] = ()


@dataclass(frozen=True)
class CellDerivative:
    """`step` takes the gradient of the step's output, what the step behind it has left as `past`, and entries of what is `known`.

    `known` makes these sequences of the outputs, what the forward loop has kept, and the states before each step.
    With `skips`, `past` belongs to the output; else to the other states.
    """

    step: Callable[[Node, Sequence[Node], Sequence[Node]], StepGradient]
    saved_sequences: Callable[[Node, Sequence[Node], Sequence[Node]], tuple[Node, ...]]
    carries_output: bool = False


def lstm_step(dh: Node, carried: Sequence[Node], saved: Sequence[Node]) -> StepGradient:
    gates, c, old_c = saved
    i, f, g, o = split_gates(gates, 4)
    tanh_c = ops.tanh(c)
    dc = ops.add(carried[0], tanh_gradient(ops.mul(dh, o), tanh_c))
    di, df = sigmoid_gradient(ops.mul(dc, g), i), sigmoid_gradient(ops.mul(dc, old_c), f)
    dg, do = tanh_gradient(ops.mul(dc, i), g), sigmoid_gradient(ops.mul(dh, tanh_c), o)
    together = ops.cat(di, df, dg, do, dim=1)
    return StepGradient(together, together, (ops.mul(dc, f),))


def gru_step(dh: Node, carried: Sequence[Node], saved: Sequence[Node]) -> StepGradient:
    gates, old_h = saved
    reset, update, new, from_h = split_gates(gates, 4)
    dn = tanh_gradient(ops.mul(dh, ops.sub(1.0, update)), new)
    dr, du = sigmoid_gradient(ops.mul(dn, from_h), reset), sigmoid_gradient(ops.mul(dh, ops.sub(old_h, new)), update)
    return StepGradient(ops.cat(dr, du, ops.mul(dn, reset), dim=1), ops.cat(dr, du, dn, dim=1), (ops.mul(dh, update),))


def rnn_step(
    activation_gradient: Callable[[Node, Node], Node], dh: Node, carried: Sequence[Node], saved: Sequence[Node]
) -> StepGradient:
    gates = activation_gradient(dh, saved[0])
    return StepGradient(gates, gates)


def sigmoid_gradient(gradient: Node, y: Node) -> Node:
    return ops.mul(gradient, ops.mul(y, ops.sub(1.0, y)))


def tanh_gradient(gradient: Node, y: Node) -> Node:
    return ops.mul(gradient, ops.sub(1.0, ops.mul(y, y)))


def relu_gradient(gradient: Node, y: Node) -> Node:
    return ops.where(ops.gt(y, 0.0), gradient, 0.0)


DERIVATIVES = {
    "lstm": CellDerivative(lstm_step, lambda outputs, kept, before: (*kept, before[1])),
    "gru": CellDerivative(gru_step, lambda outputs, kept, before: (*kept, before[0]), carries_output=True),
    "rnn_tanh": CellDerivative(partial(rnn_step, tanh_gradient), lambda outputs, kept, before: (outputs,)),
    "rnn_relu": CellDerivative(partial(rnn_step, relu_gradient), lambda outputs, kept, before: (outputs,)),
}
"""By the name of PyTorch's operator."""


@converts("tilewright.recurrent_backward.default")
def recurrent_backward(
    kind: str, grads: Sequence[Node], x: Node, hx: Sequence[Node], params: Sequence[Node], outputs: Node, saved: Sequence[Node],
    has_biases: bool, reverse: bool,
) -> tuple[Node, ...]:  # fmt: skip
    """The gradients of `x`, `hx` and `params`, given those of the outputs and of the last states."""
    cell, w = DERIVATIVES[kind], named_weights(params, has_biases)
    of_outputs, of_last, *of_others = grads
    before = [previous_states(k, h, reverse) for k, h in zip((outputs, *saved[1:]), hx, strict=True)]
    sequences = (add_last_step(of_outputs, of_last, reverse), *cell.saved_sequences(outputs, saved, before))
    first = full((hx[0].shape[0], w.state.shape[0]), 0.0, x.dtype)
    past = [full(hx[0].shape, 0.0, x.dtype)] if cell.carries_output else of_others
    fixed = [w.state] if w.projection is None else [w.state, w.projection]

    entries = [input_node(f"x{k}", s.type.with_shape(s.shape[1:])) for k, s in enumerate(sequences)]
    gates, *old = carried = [input_node(f"state{k}", s.type) for k, s in enumerate((first, *past))]
    formal = [input_node(f"w{k}", f.type) for k, f in enumerate(fixed)]
    dh = ops.add(entries[0], ops.matmul(gates, formal[0]))
    dh = ops.add(dh, old[0]) if cell.carries_output else dh
    of_step = cell.step(dh if w.projection is None else ops.matmul(dh, formal[1]), old, entries[1:])
    made = list(dict.fromkeys((of_step.gates, of_step.input_gates, dh)))
    body = Graph((*entries, *carried, *formal), (of_step.gates, *of_step.carried, *made), "step")
    operands = (*sequences, first, *past, *fixed)
    states = len(carried)
    loop = ops.result_nodes(
        ops.recurrence(*operands, body=body, sequences=len(sequences), states=states, reverse=not reverse)
    )
    last, *past = loop[:states]
    stacked = dict(zip(made, loop[states:], strict=True))
    d_input_gates = stacked[of_step.input_gates]
    d_gates, d_rows = flatten_steps(stacked[of_step.gates]), flatten_steps(d_input_gates)

    dh0 = ops.matmul(last, w.state)
    of_states = [ops.add(dh0, past[0])] if cell.carries_output else [dh0, *past]
    of_params = [weight_gradient(d_rows, flatten_steps(x)), weight_gradient(d_gates, flatten_steps(before[0]))]
    if has_biases:
        of_params += [ops.sum_(d_rows, dims=(0,)), ops.sum_(d_gates, dims=(0,))]
    if w.projection is not None:
        of_params.append(weight_gradient(flatten_steps(stacked[dh]), flatten_steps(unprojected_outputs(saved))))
    return ops.matmul(d_input_gates, w.input), *of_states, *of_params


def previous_states(sequence: Node, first: Node, reverse: bool) -> Node:
    """The state before each step, given those behind each and the `first`."""
    steps, first = sequence.shape[0], ops.unsqueeze(first, 0)
    if reverse:
        return ops.cat(ops.slice_(sequence, dim=0, start=1, size=steps - 1), first, dim=0)
    return ops.cat(first, ops.slice_(sequence, dim=0, start=0, size=steps - 1), dim=0)


def add_last_step(gradient: Node, of_last: Node, reverse: bool) -> Node:
    """`of_last` added to what stands at the last step."""
    before = (0 if reverse else gradient.shape[0] - 1, 0, 0)
    after = (gradient.shape[0] - 1 if reverse else 0, 0, 0)
    return ops.add(gradient, ops.pad(ops.unsqueeze(of_last, 0), before=before, after=after))


def flatten_steps(sequence: Node) -> Node:
    """f[steps, batch, size] as f[steps * batch, size]."""
    steps, batch, size = sequence.shape
    return ops.reshape(sequence, shape=(steps * batch, size))


def weight_gradient(gradient: Node, x: Node) -> Node:
    """The gradient of a matrix: of what it has given, f[rows, m], times what it was given, f[rows, n]."""
    return ops.matmul(ops.transpose(gradient, 0, 1), x)


def unprojected_outputs(saved: Sequence[Node]) -> Node:
    """The outputs of an LSTM in front of its projection."""
    gates, c = saved
    return ops.mul(ops.slice_(gates, dim=2, start=3 * c.shape[2], size=c.shape[2]), ops.tanh(c))
