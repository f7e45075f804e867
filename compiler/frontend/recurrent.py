"""Recurrent layers under `torch.compile`: one operator each, because AOTAutograd writes PyTorch's own out step by step.

Their gradient runs the layer again in PyTorch and asks it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

LAYERS = {getattr(torch, kind): kind for kind in ("lstm", "gru", "rnn_tanh", "rnn_relu")}
"""What Dynamo puts into its graphs."""


def call(kind: str, x: Tensor, hx: Sequence[Tensor], params: Sequence[Tensor], rest: Sequence[Any]) -> list[Tensor]:
    """PyTorch's own operator; its first result dense."""
    states = list(hx) if kind == "lstm" else hx[0]
    output, *last = getattr(torch.ops.aten, kind).input(x, states, list(params), *rest)
    return [output.contiguous(), *last]


@torch.library.custom_op("tilewright::recurrent", mutates_args=())
def recurrent(
    kind: str, input: Tensor, hx: Sequence[Tensor], params: Sequence[Tensor], has_biases: bool, num_layers: int, dropout: float,
    train: bool, bidirectional: bool, batch_first: bool,
) -> list[Tensor]:  # fmt: skip
    """`aten::{kind}.input`, with its one or two states in a list; the output, then the last states."""
    return call(kind, input, hx, params, (has_biases, num_layers, dropout, train, bidirectional, batch_first))


@recurrent.register_fake
def _recurrent_types(
    kind: str, input: Tensor, hx: Sequence[Tensor], params: Sequence[Tensor], has_biases: bool, num_layers: int, dropout: float,
    train: bool, bidirectional: bool, batch_first: bool,
) -> list[Tensor]:  # fmt: skip
    size = hx[0].shape[-1] * (1 + bidirectional)
    return [input.new_empty(*input.shape[:2], size), *(h.new_empty(h.shape) for h in hx)]


@torch.library.custom_op("tilewright::recurrent_backward", mutates_args=())
def recurrent_backward(
    kind: str, grads: Sequence[Tensor], input: Tensor, hx: Sequence[Tensor], params: Sequence[Tensor], has_biases: bool,
    num_layers: int, dropout: float, train: bool, bidirectional: bool, batch_first: bool,
) -> list[Tensor]:  # fmt: skip
    """The gradients of `input`, `hx` and `params`, given those of the results."""
    rest = (has_biases, num_layers, dropout, train, bidirectional, batch_first)
    leaves = [t.detach().requires_grad_() for t in (input, *hx, *params)]
    recorded = torch._C._SetExcludeDispatchKeyGuard(torch._C.DispatchKey.AutogradFunctionality, False)
    with recorded, torch.enable_grad():  # inside an operator, autograd is switched off in two ways
        results = call(kind, leaves[0], leaves[1 : 1 + len(hx)], leaves[1 + len(hx) :], rest)
    found = torch.autograd.grad(results, leaves, list(grads), allow_unused=True)
    return [torch.zeros_like(t) if g is None else g.contiguous() for g, t in zip(found, leaves, strict=True)]


@recurrent_backward.register_fake
def _gradient_types(
    kind: str, grads: Sequence[Tensor], input: Tensor, hx: Sequence[Tensor], params: Sequence[Tensor], *rest: Any
) -> list[Tensor]:
    return [t.new_empty(t.shape) for t in (input, *hx, *params)]


def _remember(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    ctx.kind, x, hx, params, *ctx.rest = inputs
    ctx.states = len(hx)
    ctx.save_for_backward(x, *hx, *params)


def _gradient(ctx: Any, grads: list[Tensor]) -> tuple[Any, ...]:
    x, *others = ctx.saved_tensors
    hx, params = others[: ctx.states], others[ctx.states :]
    found = torch.ops.tilewright.recurrent_backward(ctx.kind, grads, x, hx, params, *ctx.rest)
    split = 1 + ctx.states
    return None, found[0], found[1:split], found[split:], *(None for _ in ctx.rest)


recurrent.register_autograd(_gradient, setup_context=_remember)


def layer_by_layer(
    kind: str, input: Tensor, hx: Tensor | Sequence[Tensor], params: Sequence[Tensor], has_biases: bool, num_layers: int,
    dropout: float, train: bool, bidirectional: bool, batch_first: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    """The results of `aten::{kind}.input`, an operator for each layer, so that what is dropped between them is drawn outside."""
    states = [hx] if isinstance(hx, Tensor) else list(hx)
    steps = input.transpose(0, 1) if batch_first else input
    directions, weights = 1 + bidirectional, len(params) // num_layers
    final = []
    for k in range(num_layers):
        if k > 0:
            steps, _ = torch.native_dropout(steps, dropout, train)
        first = [h[k * directions : (k + 1) * directions] for h in states]
        own = params[k * weights : (k + 1) * weights]
        steps, *last = torch.ops.tilewright.recurrent(
            kind, steps, first, own, has_biases, 1, 0.0, train, bidirectional, False
        )
        final.append(last)
    output = steps.transpose(0, 1) if batch_first else steps
    return output, *(torch.cat(of_layers) for of_layers in zip(*final, strict=True))


def keep_layers_whole(module: torch.fx.GraphModule) -> None:
    """Let the recurrent layers of a Dynamo graph be operators of ours: all of a network one, or each where numbers are dropped between."""
    for node in list(module.graph.nodes):
        kind = LAYERS.get(node.target) if node.op == "call_function" else None
        if kind is None or not isinstance(node.args[2], (list, tuple)):  # a packed sequence has its sizes second
            continue
        x, states, params, has_biases, num_layers, dropout, train, *order = node.args
        hx = list(states) if kind == "lstm" else [states]
        dropped = train and dropout and num_layers > 1
        node.target = layer_by_layer if dropped else torch.ops.tilewright.recurrent.default
        node.args = (kind, x, hx, list(params), has_biases, num_layers, dropout, train, *order)
    module.recompile()
