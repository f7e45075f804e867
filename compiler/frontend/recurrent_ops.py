"""Recurrent layers as custom operators: one for each direction of each layer, and one for its gradient.

Export and AOTAutograd would unroll PyTorch's own operators step by step, or lose the dropout between layers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey
from torch._subclasses import FakeTensor

import compiler.frontend.conversions.recurrent as forward
import compiler.frontend.conversions.recurrent_backward as backward
from compiler.frontend.unbacked_symbols import tensor_type
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import Node, input_node
from compiler.ir.interpret.graph import interpret

LAYER_KINDS = {getattr(torch, kind): kind for kind in ("lstm", "gru", "rnn_tanh", "rnn_relu")}
"""Kind of layer by the function that Dynamo puts into its graphs."""

SAVED_PER_UNIT = {"lstm": (4, 1), "gru": (4,), "rnn_tanh": (), "rnn_relu": ()}
"""Features per unit of the sequences saved for the gradient: the gates, and the LSTM's cell state."""


@torch.library.custom_op("tilewright::recurrent", mutates_args=())
def recurrent(
    kind: str, input: Tensor, hx: Sequence[Tensor], params: Sequence[Tensor], has_biases: bool, reverse: bool
) -> list[Tensor]:
    """Run one direction of one layer on `input`, f[steps, batch, features], with initial states `hx`, f[batch, size].

    Returns the outputs f[steps, batch, size], the states after the last step, and the sequences that the gradient needs
    (`SAVED_PER_UNIT`).
    """
    return _interpret_conversion(forward.recurrent, kind, input, hx, params, has_biases, reverse)


@recurrent.register_fake
def _recurrent_fake(
    kind: str, input: Tensor, hx: Sequence[Tensor], params: Sequence[Tensor], has_biases: bool, reverse: bool
) -> list[Tensor]:
    steps, units = input.shape[:2], hx[-1].shape[-1]
    sizes = [hx[0].shape[-1], *(count * units for count in SAVED_PER_UNIT[kind])]
    outputs, *saved = (input.new_empty(*steps, size) for size in sizes)
    return [outputs, *(h.new_empty(h.shape) for h in hx), *saved]


@torch.library.custom_op("tilewright::recurrent_backward", mutates_args=())
def recurrent_backward(
    kind: str, grads: Sequence[Tensor], input: Tensor, hx: Sequence[Tensor], params: Sequence[Tensor], output: Tensor,
    saved: Sequence[Tensor], has_biases: bool, reverse: bool,
) -> list[Tensor]:  # fmt: skip
    """Return the gradients of `input`, `hx` and `params`, given those of the outputs and of the last states."""
    return _interpret_conversion(
        backward.recurrent_backward, kind, grads, input, hx, params, output, saved, has_biases, reverse
    )


@recurrent_backward.register_fake
def _recurrent_backward_fake(
    kind: str, grads: Sequence[Tensor], input: Tensor, hx: Sequence[Tensor], params: Sequence[Tensor], *args: Any
) -> list[Tensor]:
    return [t.new_empty(t.shape) for t in (input, *hx, *params)]


def _interpret_conversion(conversion: Callable[..., tuple[Node, ...]], *arguments: Any) -> list[Tensor]:
    """Run an operator outside compiled programs: interpret the graph that its conversion builds."""
    tensors: list[Tensor] = []

    def to_input(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [to_input(v) for v in value]
        if not isinstance(value, Tensor):
            return value
        tensors.append(value)
        return input_node(f"x{len(tensors)}", tensor_type(value))

    nodes = [to_input(a) for a in arguments]
    flat = tuple(n for value in nodes for n in (value if isinstance(value, list) else (value,)) if isinstance(n, Node))
    return interpret(Graph(flat, conversion(*nodes)), tensors)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    ctx.kind, x, hx, params, *ctx.flags = inputs
    ctx.counts = len(hx), len(params)
    ctx.save_for_backward(x, *hx, *params, output[0], *output[1 + len(hx) :])


def _backward(ctx: Any, grads: list[Tensor]) -> tuple[Any, ...]:
    states, weights = ctx.counts
    x, *tensors = ctx.saved_tensors
    hx, params, (output, *saved) = tensors[:states], tensors[states : states + weights], tensors[states + weights :]
    backward_op = torch.ops.tilewright.recurrent_backward
    dx, *others = backward_op(ctx.kind, grads[: 1 + states], x, hx, params, output, saved, *ctx.flags)
    return None, dx, others[:states], others[states:], *(None for _ in ctx.flags)


recurrent.register_autograd(_backward, setup_context=_setup_context)


def recurrent_layers(
    kind: str, input: Tensor, hx: Tensor | Sequence[Tensor], params: Sequence[Tensor], has_biases: bool, num_layers: int,
    dropout: float, train: bool, bidirectional: bool, batch_first: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Compute `aten::{kind}.input` from `tilewright::recurrent`, with PyTorch's dropout between layers."""
    states = [hx] if isinstance(hx, Tensor) else list(hx)
    steps = input.transpose(0, 1) if batch_first else input
    directions = 1 + bidirectional
    weights = len(params) // (num_layers * directions)
    final = []
    for layer in range(num_layers):
        if layer > 0:
            steps, _ = torch.native_dropout(steps, dropout, train)
        outputs = []
        for k in range(layer * directions, (layer + 1) * directions):
            own, initial = params[k * weights : (k + 1) * weights], [h[k] for h in states]
            output, *others = torch.ops.tilewright.recurrent(kind, steps, initial, own, has_biases, k % directions == 1)
            outputs.append(output)
            final.append(others[: len(states)])
        steps = torch.cat(outputs, 2) if bidirectional else outputs[0]
    return steps.transpose(0, 1) if batch_first else steps, *map(torch.stack, zip(*final, strict=True))


def _keep_lengths_dynamic(kind: str) -> None:
    """Keep the number of steps dynamic: on fake tensors PyTorch would unroll the layer, which specializes on it."""
    op = getattr(torch.ops.aten, kind).input
    for key in (DispatchKey.Autograd, DispatchKey.CompositeImplicitAutograd):
        op.py_kernels[key] = partial(_fake_or_composite, kind, op.py_kernels[key])
    op._dispatch_cache.clear()


def _fake_or_composite(kind: str, composite_kernel: Callable[..., Any], input: Tensor, *args: Any) -> Any:
    return recurrent_layers(kind, input, *args) if isinstance(input, FakeTensor) else composite_kernel(input, *args)


for kind in LAYER_KINDS.values():
    _keep_lengths_dynamic(kind)


def decompose_recurrent_layers(module: torch.fx.GraphModule) -> None:
    """Replace the recurrent layers of a Dynamo graph by calls of `recurrent_layers`."""
    for node in list(module.graph.nodes):
        kind = LAYER_KINDS.get(node.target) if node.op == "call_function" else None
        if kind is not None and isinstance(node.args[2], (list, tuple)):  # in a packed sequence, argument 2 is a tensor
            node.target, node.args = recurrent_layers, (kind, *node.args)
    module.recompile()
