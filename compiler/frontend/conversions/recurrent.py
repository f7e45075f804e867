"""Conversion of recurrent layers: each direction of a layer becomes one recurrence.

The input's contribution to the gates does not depend on the state, so one product before the loop computes it for all
steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from compiler.frontend.conversions.views import split_sizes
from compiler.frontend.registry import converts
from compiler.ir import ops
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import Node, input_node
from compiler.ir.symbolic.index_expr import Dim, evaluate, floordiv


@dataclass(frozen=True)
class Weights:
    """Parameters of one direction of one layer; None for those that the layer lacks."""

    input: Node
    state: Node
    input_bias: Node | None = None
    state_bias: Node | None = None
    projection: Node | None = None


@dataclass(frozen=True)
class Cell:
    """Kind of recurrent cell.

    `step` takes the input's contribution to the gates, the states and the weights.  It returns the next states, the
    output first, and further values that the gradient needs.  With `has_additive_biases`, both biases are only added, so
    that the state's bias can be added before the loop.
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
"""Cells by the name of PyTorch's operator."""


def split_gates(x: Node, count: int) -> tuple[Node, ...]:
    """Split f[batch, count * size] into `count` gates f[batch, size]."""
    return split_sizes(x, [floordiv(x.shape[1], count)] * count, 1)


def gate_products(h: Node, weight: Node) -> list[Node]:
    """Return the state's contribution to each gate: its product with `weight`, f[gates, state, size]."""
    products = ops.matmul(ops.unsqueeze(h, 0), weight)
    return [ops.select(products, dim=0, index=k) for k in range(evaluate(weight.shape[0], {}))]


def gate_major_weight(weight: Node, count: Dim) -> Node:
    """Rearrange PyTorch's weight f[gates * size, state] to f[gates, state, size], which the loop reads row by row."""
    rows, size = weight.shape
    return ops.permute(ops.reshape(weight, shape=(floordiv(rows, count), count, size)), dims=(0, 2, 1))


def named_weights(params: Sequence[Node], has_biases: bool) -> Weights:
    """Name parameters in PyTorch's flat order: input, state, their biases, projection."""
    input, state, *others = params
    return Weights(input, state, *others) if has_biases else Weights(input, state, None, None, *others)


@converts("tilewright.recurrent.default")
def recurrent(
    kind: str, x: Node, hx: Sequence[Node], params: Sequence[Node], has_biases: bool, reverse: bool
) -> tuple[Node, ...]:
    """Return the output of every step, the states after the last step, and the saved values of every step."""
    cell = CELLS[kind]
    w = named_weights(params, has_biases)
    if cell.has_additive_biases and w.input_bias is not None and w.state_bias is not None:
        w = replace(w, input_bias=ops.add(w.input_bias, w.state_bias), state_bias=None)
    gates = ops.linear(x, w.input, *(() if w.input_bias is None else (w.input_bias,)))
    entry = input_node("x", gates.type.with_shape(gates.shape[1:]))
    carried = [input_node(f"state{k}", h.type) for k, h in enumerate(hx)]
    invariant = {"state": gate_major_weight(w.state, hx[-1].shape[1])}
    if w.state_bias is not None:
        invariant["state_bias"] = w.state_bias
    if w.projection is not None:
        invariant["projection"] = ops.permute(w.projection, dims=(1, 0))
    body_weights = {k: input_node(k, v.type) for k, v in invariant.items()}
    states, saved = cell.step(entry, carried, Weights(w.input, **body_weights))
    body = Graph((entry, *carried, *body_weights.values()), (*states, states[0], *saved), "step")
    attrs: dict[str, Any] = {"body": body, "num_carried": len(hx), "reverse": reverse}
    loop = ops.result_nodes(ops.recurrence(gates, *hx, *invariant.values(), **attrs))
    return loop[len(hx)], *loop[: len(hx)], *loop[len(hx) + 1 :]
