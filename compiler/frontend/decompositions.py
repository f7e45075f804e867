"""What PyTorch spells out before the importer sees it: every operator that has no conversion and a decomposition."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch._decomp import core_aten_decompositions, decomposition_table

from compiler.frontend.registry import conversions

BEYOND_CORE = frozenset({
    "aten._batch_norm_no_update.default", "aten._batch_norm_with_update_functional.default", "aten._native_batch_norm_legit.default",
    "aten.batch_norm_backward.default",
    "aten.bitwise_and.Scalar_Tensor", "aten.bitwise_or.Scalar_Tensor", "aten.bitwise_xor.Scalar_Tensor", "aten.copysign.Scalar",
    "aten.dist.default", "aten.grid_sampler_2d.default", "aten.ldexp.Tensor", "aten.native_dropout.default",
    "aten.native_batch_norm.default", "aten.tril_indices.default", "aten.triu_indices.default", "aten.upsample_bicubic2d.default",
})  # fmt: skip
"""Operators that core ATen keeps whole, or leaves to backends, although PyTorch knows how to spell them out."""


def for_export() -> Any:
    """The table that `ExportedProgram.run_decompositions` takes."""
    table: Any = torch.export.default_decompositions()
    for op in [o for o in table if str(o) in conversions()]:
        del table[op]
    table.update(_beyond_core())
    return table


def for_autograd() -> dict[Any, Callable[..., Any]]:
    """The table that AOTAutograd takes."""
    kept: dict[Any, Callable[..., Any]] = {
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default: _one_value_for_each_key
    }
    return {op: rule for op, rule in _core().items() if str(op) not in conversions()} | _beyond_core() | kept


def _one_value_for_each_key(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: Any, **more: Any) -> Any:
    """Attention stays whole; but caches that grow apart in name are guarded to be of one size, which PyTorch leaves open."""
    torch._check(k.size(-2) == v.size(-2))  # type: ignore[no-untyped-call]  # PyTorch gives it no types
    return NotImplemented


@cache
def _core() -> dict[Any, Callable[..., Any]]:
    """PyTorch's own table, which takes it a third of a second to make."""
    table: dict[Any, Callable[..., Any]] = core_aten_decompositions()
    return dict(table.items())


def _beyond_core() -> dict[Any, Callable[..., Any]]:
    return {
        op: rule for op, rule in decomposition_table.items() if str(op) in BEYOND_CORE and str(op) not in conversions()
    }
