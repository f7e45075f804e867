"""Recurrent networks: a direction of a layer becomes one recurrence.

What a step's gates take from the input does not depend on the state, so it is one product for all steps, in front of the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from compiler.frontend.conversions.views import split_sizes
from compiler.frontend.registry import converts
from compiler.ir import ops
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import Node, input_node
from compiler.ir.symbolic.index_expr import Dim, evaluate, floordiv


@dataclass(frozen=True)
class Weights:
    """The parameters of one direction of one layer, those that PyTorch leaves out being None."""

    input: Node
    state: Node
    input_bias: Node | None = None
    state_bias: Node | None = None
    projection: Node | None = None


@dataclass(frozen=True)
class Cell:
    """`step` makes the next states, the output first, of what the gates take from the input, the states and the weights; and what
    else the gradient needs of each step.

    `adds`: the biases only meet in a sum, so that the one of the state can be added outside the loop.
    """

    step: Callable[[Node, Sequence[Node], Weights], tuple[tuple[Node, ...], tuple[Node, ...]]]
    has_additive_biases: bool = True


def lstm_step(x: Node, states: Sequence[Node], w: Weights) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
    h, c = states
    i, f, g, o = (ops.add(a, b) for a, b in zip(split_gates(x, 4), gate_products(h, w.state), strict=True))
    i, f, g, o = ops.sigmoid(i), ops.sigmoid(f), ops.tanh(g), ops.sigmoid(o)
    new_c = ops.add(ops.mul(f, c), ops.mul(i, g))
    new_h = ops.mul(o, ops.tanh(new_c))
    new_h = new_h if w.projection is None else ops.matmul(new_h, w.projection)
    return (new_h, new_c), (ops.cat(i, f, g, o, dim=1), new_c)


def gru_step(x: Node, states: Sequence[Node], w: Weights) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
    (h,) = states
    reset_x, update_x, new_x = split_gates(x, 3)
    reset_h, update_h, new_h = gate_products(h, w.state)
    if w.state_bias is not None:
        biases = split_sizes(w.state_bias, [h.shape[1]] * 3)
        reset_h, update_h, new_h = (ops.add(a, b) for a, b in zip((reset_h, update_h, new_h), biases, strict=True))
    reset, update = ops.sigmoid(ops.add(reset_x, reset_h)), ops.sigmoid(ops.add(update_x, update_h))
    new = ops.tanh(ops.add(new_x, ops.mul(reset, new_h)))
    return (ops.add(ops.mul(ops.sub(h, new), update), new),), (ops.cat(reset, update, new, new_h, dim=1),)


def rnn_step(
    activation: Callable[[Node], Node], x: Node, states: Sequence[Node], w: Weights
) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
    return (activation(ops.add(*gate_products(states[0], w.state), x)),), ()


CELLS = {
    "lstm": Cell(lstm_step),
    "gru": Cell(gru_step, has_additive_biases=False),
    "rnn_tanh": Cell(partial(rnn_step, ops.tanh)),
    "rnn_relu": Cell(partial(rnn_step, ops.relu)),
}
"""By the name of PyTorch's operator."""


def split_gates(x: Node, count: int) -> tuple[Node, ...]:
    """What each of `count` gates takes from f[batch, count * size]."""
    return split_sizes(x, [floordiv(x.shape[1], count)] * count, 1)


def gate_products(h: Node, weight: Node) -> list[Node]:
    """What each gate takes from the state: its product with f[gates, state, size]."""
    together = ops.matmul(ops.unsqueeze(h, 0), weight)
    return [ops.select(together, dim=0, index=k) for k in range(evaluate(weight.shape[0], {}))]


def gate_major_weight(weight: Node, count: Dim) -> Node:
    """PyTorch's f[gates * size, state] as the loop reads it: f[gates, state, size], each row of one gate."""
    rows, size = weight.shape
    return ops.permute(ops.reshape(weight, shape=(floordiv(rows, count), count, size)), dims=(0, 2, 1))


def named_weights(params: Sequence[Node], has_biases: bool) -> Weights:
    """From PyTorch's flat order: input, state, their biases, projection."""
    input, state, *more = params
    return Weights(input, state, *more) if has_biases else Weights(input, state, None, None, *more)


@converts("tilewright.recurrent.default")
def recurrent(
    kind: str, x: Node, hx: Sequence[Node], params: Sequence[Node], has_biases: bool, reverse: bool
) -> tuple[Node, ...]:
    """The first state of every step, the states after the last step, and what the gradient needs of every step."""
    cell = CELLS[kind]
    w = named_weights(params, has_biases)
    if cell.has_additive_biases and w.input_bias is not None and w.state_bias is not None:
        w = replace(w, input_bias=ops.add(w.input_bias, w.state_bias), state_bias=None)
    gates = ops.linear(x, w.input, *(() if w.input_bias is None else (w.input_bias,)))
    entry = input_node("x", gates.type.with_shape(gates.shape[1:]))
    carried = [input_node(f"state{k}", h.type) for k, h in enumerate(hx)]
    fixed = {"state": gate_major_weight(w.state, hx[-1].shape[1])}
    if w.state_bias is not None:
        fixed["state_bias"] = w.state_bias
    if w.projection is not None:
        fixed["projection"] = ops.permute(w.projection, dims=(1, 0))
    formal = {k: input_node(k, v.type) for k, v in fixed.items()}
    made, saved = cell.step(entry, carried, Weights(w.input, **formal))
    body = Graph((entry, *carried, *formal.values()), (*made, made[0], *saved), "step")
    loop = ops.result_nodes(ops.recurrence(gates, *hx, *fixed.values(), body=body, states=len(hx), reverse=reverse))
    return loop[len(hx)], *loop[: len(hx)], *loop[len(hx) + 1 :]
