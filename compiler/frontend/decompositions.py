"""What PyTorch spells out before the importer sees it: every operator that has no conversion and a decomposition."""

from __future__ import annotations

from collections.abc import Callable, Set
from functools import cache, partial
from typing import Any

import torch
from torch._decomp import core_aten_decompositions, decomposition_table

from compiler.frontend.conversions.table import conversions
from compiler.frontend.recurrent_ops import LAYER_KINDS, recurrent_layers

EXTRA_DECOMPOSITIONS = frozenset({
    "aten._batch_norm_no_update.default", "aten._batch_norm_with_update_functional.default", "aten._native_batch_norm_legit.default",
    "aten.batch_norm_backward.default",
    "aten.bitwise_and.Scalar_Tensor", "aten.bitwise_or.Scalar_Tensor", "aten.bitwise_xor.Scalar_Tensor", "aten.copysign.Scalar",
    "aten.dist.default", "aten.grid_sampler_2d.default", "aten.ldexp.Tensor", "aten.native_batch_norm.default",
    "aten.tril_indices.default", "aten.triu_indices.default", "aten.upsample_bicubic2d.default",
})  # fmt: skip
"""Operators that core ATen keeps whole, or leaves to backends, although PyTorch knows how to spell them out."""


def export_decompositions(training_operators: Set[Any] = frozenset()) -> Any:
    """The table that `ExportedProgram.run_decompositions` takes; operators `in_training` are spelled out although they have a conversion."""
    table: Any = torch.export.default_decompositions()
    for op in [o for o in table if str(o) in conversions() and o not in training_operators]:
        del table[op]
    networks = {getattr(torch.ops.aten, kind).input: partial(recurrent_layers, kind) for kind in LAYER_KINDS.values()}
    table.update(networks | _extra_decompositions())
    return table


def autograd_decompositions() -> dict[Any, Callable[..., Any]]:
    """The table that AOTAutograd takes."""
    kept: dict[Any, Callable[..., Any]] = {
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default: _guard_equal_kv_lengths
    }
    return (
        {op: rule for op, rule in _core_decompositions().items() if str(op) not in conversions()}
        | _extra_decompositions()
        | kept
    )


def _guard_equal_kv_lengths(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: Any, **more: Any) -> Any:
    """Attention stays whole; but caches that grow apart in name are guarded to be of one size, which PyTorch leaves open."""
    torch._check(k.size(-2) == v.size(-2))  # type: ignore[no-untyped-call]  # PyTorch gives it no types
    return NotImplemented


@cache
def _core_decompositions() -> dict[Any, Callable[..., Any]]:
    """PyTorch's own table, which takes it a third of a second to make."""
    table: dict[Any, Callable[..., Any]] = core_aten_decompositions()
    return dict(table.items())


def _extra_decompositions() -> dict[Any, Callable[..., Any]]:
    names = EXTRA_DECOMPOSITIONS - conversions().keys()
    return {op: rule for op, rule in decomposition_table.items() if str(op) in names} | {_DROPOUT: _dropout}


_DROPOUT = torch.ops.aten.native_dropout.default


def _dropout(x: torch.Tensor, p: float, train: bool | None) -> tuple[torch.Tensor, torch.Tensor]:
    """PyTorch's own rule compares `rand_like`; this one draws the mask as its kernels do, in the order of memory, so that a seed gives the
    same numbers.
    """
    if train is False or p in (0, 1):
        spelled_out: tuple[torch.Tensor, torch.Tensor] = decomposition_table[_DROPOUT](x, p, train)
        return spelled_out
    places = torch.empty_like(x, dtype=torch.bool)
    steps, order = places.stride(), list(range(x.ndim))
    if not places.is_contiguous():
        order.sort(key=lambda d: -steps[d])
    mask = torch.bernoulli(places.permute(order), 1 - p).permute([order.index(d) for d in range(x.ndim)])
    return x * mask * (1 / (1 - p)), mask
