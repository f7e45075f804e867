"""Gradient of a recurrent layer: a second recurrence from the last step to the first, then products for all steps.

Each step multiplies the gates' gradient of the previously computed step by the weights, which gives the gradient of the
state.  So the product and the operations on it are one kernel, as in the forward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from compiler.frontend.conversions.backward import sigmoid_backward, tanh_backward
from compiler.frontend.conversions.recurrent import named_weights, split_gates
from compiler.frontend.registry import converts
from compiler.ir import ops
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import Node, input_node
from compiler.ir.ops.creation import full


class StepGradient(NamedTuple):
    """Gradients of a step with respect to the state's and the input's contributions to its gates.

    `carried` are the gradients of the states before the step, without the part that comes through the gates.
    """

    gates: Node
    input_gates: Node
    carried: tuple[Node, ...] = ()


@dataclass(frozen=True)
class CellDerivative:
    """Derivative of a cell.

    `step` takes the gradient of the step's output, the `carried` gradients of the following step, and the entries of the
    saved sequences.  `saved_sequences` selects these from the outputs, the values saved by the forward loop, and the
    states before each step.  With `carries_output`, `carried` is a gradient of the output; else of the other states.
    """

    step: Callable[[Node, Sequence[Node], Sequence[Node]], StepGradient]
    saved_sequences: Callable[[Node, Sequence[Node], Sequence[Node]], tuple[Node, ...]]
    carries_output: bool = False


def lstm_step(dh: Node, carried: Sequence[Node], saved: Sequence[Node]) -> StepGradient:
    gates, c, old_c = saved
    i, f, g, o = split_gates(gates, 4)
    tanh_c = ops.tanh(c)
    dc = ops.add(carried[0], tanh_backward(ops.mul(dh, o), tanh_c))
    di, df = sigmoid_backward(ops.mul(dc, g), i), sigmoid_backward(ops.mul(dc, old_c), f)
    dg, do = tanh_backward(ops.mul(dc, i), g), sigmoid_backward(ops.mul(dh, tanh_c), o)
    d_gates = ops.cat(di, df, dg, do, dim=1)
    return StepGradient(d_gates, d_gates, (ops.mul(dc, f),))


def gru_step(dh: Node, carried: Sequence[Node], saved: Sequence[Node]) -> StepGradient:
    gates, old_h = saved
    reset, update, new, from_h = split_gates(gates, 4)
    dn = tanh_backward(ops.mul(dh, ops.sub(1.0, update)), new)
    dr, du = sigmoid_backward(ops.mul(dn, from_h), reset), sigmoid_backward(ops.mul(dh, ops.sub(old_h, new)), update)
    return StepGradient(ops.cat(dr, du, ops.mul(dn, reset), dim=1), ops.cat(dr, du, dn, dim=1), (ops.mul(dh, update),))


def rnn_step(
    activation_gradient: Callable[[Node, Node], Node], dh: Node, carried: Sequence[Node], saved: Sequence[Node]
) -> StepGradient:
    gates = activation_gradient(dh, saved[0])
    return StepGradient(gates, gates)


def relu_gradient(gradient: Node, y: Node) -> Node:
    return ops.where(ops.gt(y, 0.0), gradient, 0.0)


DERIVATIVES = {
    "lstm": CellDerivative(lstm_step, lambda outputs, saved, previous: (*saved, previous[1])),
    "gru": CellDerivative(gru_step, lambda outputs, saved, previous: (*saved, previous[0]), carries_output=True),
    "rnn_tanh": CellDerivative(partial(rnn_step, tanh_backward), lambda outputs, saved, previous: (outputs,)),
    "rnn_relu": CellDerivative(partial(rnn_step, relu_gradient), lambda outputs, saved, previous: (outputs,)),
}
"""Derivatives by the name of PyTorch's operator."""


@converts("tilewright.recurrent_backward.default")
def recurrent_backward(
    kind: str, grads: Sequence[Node], x: Node, hx: Sequence[Node], params: Sequence[Node], outputs: Node, saved: Sequence[Node],
    has_biases: bool, reverse: bool,
) -> tuple[Node, ...]:  # fmt: skip
    """Return the gradients of `x`, `hx` and `params`, given those of the outputs and of the last states."""
    cell, w = DERIVATIVES[kind], named_weights(params, has_biases)
    d_outputs, d_last, *d_others = grads
    previous = [previous_states(k, h, reverse) for k, h in zip((outputs, *saved[1:]), hx, strict=True)]
    sequences = (add_last_step(d_outputs, d_last, reverse), *cell.saved_sequences(outputs, saved, previous))
    first = full((hx[0].shape[0], w.state.shape[0]), 0.0, x.dtype)
    d_carried = [full(hx[0].shape, 0.0, x.dtype)] if cell.carries_output else d_others
    weights = [w.state] if w.projection is None else [w.state, w.projection]

    entries = [input_node(f"x{k}", s.type.with_shape(s.shape[1:])) for k, s in enumerate(sequences)]
    gates, *carried_in = carried = [input_node(f"state{k}", s.type) for k, s in enumerate((first, *d_carried))]
    body_w = [input_node(f"w{k}", f.type) for k, f in enumerate(weights)]
    dh = ops.add(entries[0], ops.matmul(gates, body_w[0]))
    dh = ops.add(dh, carried_in[0]) if cell.carries_output else dh
    step = cell.step(dh if w.projection is None else ops.matmul(dh, body_w[1]), carried_in, entries[1:])
    per_step = list(dict.fromkeys((step.gates, step.input_gates, dh)))
    body = Graph((*entries, *carried, *body_w), (step.gates, *step.carried, *per_step), "step")
    operands = (*sequences, first, *d_carried, *weights)
    attrs: dict[str, Any] = {"num_scanned": len(sequences), "num_carried": len(carried), "reverse": not reverse}
    loop = ops.result_nodes(ops.recurrence(*operands, body=body, **attrs))
    last, *d_carried = loop[: len(carried)]
    stacked = dict(zip(per_step, loop[len(carried) :], strict=True))
    d_input_gates = stacked[step.input_gates]
    d_gates, d_rows = flatten_steps(stacked[step.gates]), flatten_steps(d_input_gates)

    dh0 = ops.matmul(last, w.state)
    d_states = [ops.add(dh0, d_carried[0])] if cell.carries_output else [dh0, *d_carried]
    d_params = [weight_gradient(d_rows, flatten_steps(x)), weight_gradient(d_gates, flatten_steps(previous[0]))]
    if has_biases:
        d_params += [ops.sum_(d_rows, dims=(0,)), ops.sum_(d_gates, dims=(0,))]
    if w.projection is not None:
        d_params.append(weight_gradient(flatten_steps(stacked[dh]), flatten_steps(unprojected_outputs(saved))))
    return ops.matmul(d_input_gates, w.input), *d_states, *d_params


def previous_states(sequence: Node, first: Node, reverse: bool) -> Node:
    """Return the state before each step, given those after each step and the `first`."""
    steps, first = sequence.shape[0], ops.unsqueeze(first, 0)
    if reverse:
        return ops.cat(ops.slice_(sequence, dim=0, start=1, size=steps - 1), first, dim=0)
    return ops.cat(first, ops.slice_(sequence, dim=0, start=0, size=steps - 1), dim=0)


def add_last_step(gradient: Node, last_gradient: Node, reverse: bool) -> Node:
    """Add `last_gradient` to the entry of the last computed step."""
    before = (0 if reverse else gradient.shape[0] - 1, 0, 0)
    after = (gradient.shape[0] - 1 if reverse else 0, 0, 0)
    return ops.add(gradient, ops.pad(ops.unsqueeze(last_gradient, 0), before=before, after=after))


def flatten_steps(sequence: Node) -> Node:
    """Reshape f[steps, batch, size] to f[steps * batch, size]."""
    steps, batch, size = sequence.shape
    return ops.reshape(sequence, shape=(steps * batch, size))


def weight_gradient(gradient: Node, x: Node) -> Node:
    """Return the gradient of a weight f[m, n], from that of its product, f[rows, m], and its operand, f[rows, n]."""
    return ops.matmul(ops.transpose(gradient, 0, 1), x)


def unprojected_outputs(saved: Sequence[Node]) -> Node:
    """Return the outputs of an LSTM before its projection."""
    gates, c = saved
    return ops.mul(ops.slice_(gates, dim=2, start=3 * c.shape[2], size=c.shape[2]), ops.tanh(c))
