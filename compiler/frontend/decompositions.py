"""Decomposition tables: PyTorch decomposes every operator that has a decomposition and no conversion.

Calls of `recurrent_decompositions` are decomposed one by one, which takes 10 ms; a pass over a whole program takes 200 ms.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from functools import cache, partial
from typing import Any

import torch
from torch._decomp import core_aten_decompositions, decomposition_table
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_flatten, tree_unflatten

from compiler.frontend.conversions.table import conversions
from compiler.frontend.foreach import foreach_decompositions
from compiler.frontend.recurrent_ops import LAYER_KINDS, recurrent_layers

EXTRA_DECOMPOSITIONS = frozenset({
    "aten._batch_norm_no_update.default", "aten._batch_norm_with_update_functional.default", "aten._native_batch_norm_legit.default",
    "aten.batch_norm_backward.default",
    "aten._addmm_activation.default", "aten.rrelu_with_noise_backward.default",
    "aten.bitwise_and.Scalar_Tensor", "aten.bitwise_or.Scalar_Tensor", "aten.bitwise_xor.Scalar_Tensor", "aten.copysign.Scalar",
    "aten.dist.default", "aten.grid_sampler_2d.default", "aten.ldexp.Tensor", "aten.native_batch_norm.default",
    "aten.tril_indices.default", "aten.triu_indices.default", "aten.upsample_bicubic2d.default",
})  # fmt: skip
"""Operators that core ATen does not decompose although PyTorch has a decomposition for them."""


def export_decompositions(training_operators: Set[Any] = frozenset()) -> Any:
    """Return the table for `ExportedProgram.run_decompositions`; it includes `training_operators`."""
    table: Any = torch.export.default_decompositions()
    for op in [o for o in table if str(o) in conversions() and o not in training_operators]:
        del table[op]
    table.update(recurrent_decompositions() | _extra_decompositions())
    return table


@cache
def recurrent_decompositions() -> dict[Any, Callable[..., Any]]:
    """Return the decomposition of each recurrent operator into layers."""
    return {getattr(torch.ops.aten, kind).input: partial(recurrent_layers, kind) for kind in LAYER_KINDS.values()}


def trace_decomposition(node: torch.fx.Node, rule: Callable[..., Any]) -> tuple[torch.fx.GraphModule, list[Any]]:
    """Trace `rule` on the fake arguments of a call; return the graph, and the call's argument for each of its placeholders."""
    leaves, spec = tree_flatten((node.args, node.kwargs))

    def run(*values: Any) -> Any:
        args, kwargs = tree_unflatten(values, spec)
        return rule(*args, **kwargs)

    fakes = [leaf.meta["val"] if isinstance(leaf, torch.fx.Node) else leaf for leaf in leaves]
    with torch.no_grad():
        module = make_fx(run, decomposition_table={_DROPOUT: _dropout})(*fakes)
    for inner in module.graph.nodes:
        inner.meta.update({k: node.meta[k] for k in ("stack_trace", "nn_module_stack") if k in node.meta})
    return module, leaves


@cache
def autograd_decompositions() -> dict[Any, Callable[..., Any]]:
    """Return the decomposition table for AOTAutograd, which does not change it; cached, as a graph would else wait 3 ms for it."""
    core = {op: rule for op, rule in _core_decompositions().items() if str(op) not in conversions()}
    attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    return core | _extra_decompositions() | {attention: _guard_equal_kv_lengths}


def _guard_equal_kv_lengths(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """Keep attention as one operator, but guard that keys and values have the same length.

    PyTorch gives the lengths of two growing caches different symbols.
    """
    torch._check(k.size(-2) == v.size(-2))  # type: ignore[no-untyped-call]  # PyTorch gives it no types
    return NotImplemented


@cache
def _core_decompositions() -> dict[Any, Callable[..., Any]]:
    """PyTorch's core table, cached because building it takes a third of a second."""
    table: dict[Any, Callable[..., Any]] = core_aten_decompositions()
    return dict(table.items())


def _extra_decompositions() -> dict[Any, Callable[..., Any]]:
    names = EXTRA_DECOMPOSITIONS - conversions().keys()
    extra = {op: rule for op, rule in decomposition_table.items() if str(op) in names}
    return extra | foreach_decompositions() | {_DROPOUT: _dropout}


_DROPOUT = torch.ops.aten.native_dropout.default


def _dropout(x: torch.Tensor, p: float, train: bool | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw the dropout mask in memory order, as PyTorch's kernels do, so that a seed gives the same numbers.

    PyTorch's decomposition compares `rand_like` instead, which draws different ones.
    """
    if train is False or p in (0, 1):
        without_mask: tuple[torch.Tensor, torch.Tensor] = decomposition_table[_DROPOUT](x, p, train)
        return without_mask
    template = torch.empty_like(x, dtype=torch.bool)
    strides, order = template.stride(), list(range(x.ndim))
    if not template.is_contiguous():
        order.sort(key=lambda d: -strides[d])
    mask = torch.bernoulli(template.permute(order), 1 - p).permute([order.index(d) for d in range(x.ndim)])
    return x * mask * (1 / (1 - p)), mask
