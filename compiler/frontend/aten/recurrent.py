"""Recurrent networks: each direction of each layer becomes one recurrence.

What a step's gates take from the input does not depend on the state, so it is one product for all steps, in front of the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from compiler.frontend.aten.views import split_sizes, stack
from compiler.frontend.registry import Refusal, converts
from compiler.ir import ops
from compiler.ir.graph import Graph, Node, input_node
from compiler.ir.index import Dim, evaluate, floordiv


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
    """`step` makes the next states, the output first, of what the gates take from the input, the states and the weights.

    `adds`: the biases only meet in a sum, so that the one of the state can be added outside the loop.
    """

    step: Callable[[Node, Sequence[Node], Weights], tuple[Node, ...]]
    adds: bool = True


def lstm_step(x: Node, states: Sequence[Node], w: Weights) -> tuple[Node, ...]:
    h, c = states
    i, f, g, o = (ops.add(a, b) for a, b in zip(gates_of(x, 4), products(h, w.state), strict=True))
    new_c = ops.add(ops.mul(ops.sigmoid(f), c), ops.mul(ops.sigmoid(i), ops.tanh(g)))
    new_h = ops.mul(ops.sigmoid(o), ops.tanh(new_c))
    return new_h if w.projection is None else ops.matmul(new_h, w.projection), new_c


def gru_step(x: Node, states: Sequence[Node], w: Weights) -> tuple[Node, ...]:
    (h,) = states
    reset_x, update_x, new_x = gates_of(x, 3)
    reset_h, update_h, new_h = products(h, w.state)
    if w.state_bias is not None:
        biases = split_sizes(w.state_bias, [h.shape[1]] * 3)
        reset_h, update_h, new_h = (ops.add(a, b) for a, b in zip((reset_h, update_h, new_h), biases, strict=True))
    reset, update = ops.sigmoid(ops.add(reset_x, reset_h)), ops.sigmoid(ops.add(update_x, update_h))
    new = ops.tanh(ops.add(new_x, ops.mul(reset, new_h)))
    return (ops.add(ops.mul(ops.sub(h, new), update), new),)


def plain_step(activation: Callable[[Node], Node], x: Node, states: Sequence[Node], w: Weights) -> tuple[Node, ...]:
    return (activation(ops.add(*products(states[0], w.state), x)),)


CELLS = {
    "lstm": Cell(lstm_step),
    "gru": Cell(gru_step, adds=False),
    "rnn_tanh": Cell(partial(plain_step, ops.tanh)),
    "rnn_relu": Cell(partial(plain_step, ops.relu)),
}
"""By the name of PyTorch's operator."""


def gates_of(x: Node, count: int) -> tuple[Node, ...]:
    """What each of `count` gates takes from f[batch, count * size]."""
    return split_sizes(x, [floordiv(x.shape[1], count)] * count, 1)


def products(h: Node, weight: Node) -> list[Node]:
    """What each gate takes from the state: its product with f[gates, state, size]."""
    together = ops.matmul(ops.unsqueeze(h, 0), weight)
    return [ops.select(together, dim=0, index=k) for k in range(evaluate(weight.shape[0], {}))]


def by_gate(weight: Node, count: Dim) -> Node:
    """PyTorch's f[gates * size, state] as the loop reads it: f[gates, state, size], each row of one gate."""
    rows, size = weight.shape
    return ops.permute(ops.reshape(weight, shape=(floordiv(rows, count), count, size)), dims=(0, 2, 1))


def run_layers(
    cell: Cell, x: Node, hidden: Sequence[Node], params: Sequence[Node], has_biases: bool, num_layers: int, dropout: float,
    train: bool, bidirectional: bool, batch_first: bool,
) -> tuple[Node, ...]:  # fmt: skip
    """The last layer's outputs, and for each of `hidden` (f32[layers * directions, batch, size]) the states at the end."""
    if train and dropout and num_layers > 1:
        raise Refusal("draws random numbers between layers")
    if x.type.rank != 3:
        raise Refusal("a packed sequence")
    x = ops.transpose(x, 0, 1) if batch_first else x
    directions = 1 + bidirectional
    count = len(params) // (num_layers * directions)
    final: list[tuple[Node, ...]] = []
    for layer in range(num_layers):
        outputs = []
        for direction in range(directions):
            k = layer * directions + direction
            weights = weights_of(cell, params[k * count : (k + 1) * count], has_biases)
            states = [ops.select(h, dim=0, index=k) for h in hidden]
            *last, output = run_cell(cell, x, states, weights, reverse=direction == 1)
            final.append(tuple(last))
            outputs.append(output)
        x = outputs[0] if directions == 1 else ops.cat(*outputs, dim=2)
    return ops.transpose(x, 0, 1) if batch_first else x, *(stack(states) for states in zip(*final, strict=True))


def weights_of(cell: Cell, params: Sequence[Node], has_biases: bool) -> Weights:
    """From PyTorch's flat order: input, state, their biases, projection."""
    if not has_biases:
        return Weights(params[0], params[1], projection=params[2] if len(params) > 2 else None)
    weights = Weights(*params)
    if not cell.adds:
        return weights
    return replace(weights, input_bias=ops.add(params[2], params[3]), state_bias=None)


def run_cell(cell: Cell, x: Node, states: Sequence[Node], w: Weights, reverse: bool) -> tuple[Node, ...]:
    """The states after the last step, and the first state of every step."""
    gates = ops.linear(x, w.input, *(() if w.input_bias is None else (w.input_bias,)))
    entry = input_node("x", gates.type.with_shape(gates.shape[1:]))
    carried = [input_node(f"state{k}", s.type) for k, s in enumerate(states)]
    size = states[-1].shape[1]
    fixed = {"state": by_gate(w.state, size)}
    if w.state_bias is not None:
        fixed["state_bias"] = w.state_bias
    if w.projection is not None:
        fixed["projection"] = ops.permute(w.projection, dims=(1, 0))
    formal = {k: input_node(k, v.type) for k, v in fixed.items()}
    made = cell.step(entry, carried, Weights(w.input, **formal))
    body = Graph((entry, *carried, *formal.values()), (*made, made[0]), "step")
    loop = ops.recurrence(gates, *states, *fixed.values(), body=body, states=len(states), reverse=reverse)
    return ops.results(loop)


@converts("tilewright.recurrent.default")
def recurrent(kind: str, x: Node, hx: Sequence[Node], *rest: Any) -> tuple[Node, ...]:
    return run_layers(CELLS[kind], x, hx, *rest)


@converts("aten.lstm.input")
def lstm(x: Node, hx: Sequence[Node], *rest: Any) -> tuple[Node, ...]:
    return run_layers(CELLS["lstm"], x, hx, *rest)


@converts("aten.gru.input")
def gru(x: Node, hx: Node, *rest: Any) -> tuple[Node, ...]:
    return run_layers(CELLS["gru"], x, (hx,), *rest)


@converts("aten.rnn_tanh.input")
def rnn_tanh(x: Node, hx: Node, *rest: Any) -> tuple[Node, ...]:
    return run_layers(CELLS["rnn_tanh"], x, (hx,), *rest)


@converts("aten.rnn_relu.input")
def rnn_relu(x: Node, hx: Node, *rest: Any) -> tuple[Node, ...]:
    return run_layers(CELLS["rnn_relu"], x, (hx,), *rest)
