"""Memory formats: the order in which the dimensions of PyTorch's dense tensors lie in memory, such as channels-last.

A graph takes and returns row-major tensors.  An argument in another format becomes an input in the order of its memory, under a
transpose; a result in another format becomes an output under the inverse one.  The call permutes views and copies nothing, and
transposes fuse into the kernels beside them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch

from compiler.frontend.registry import ConversionError
from compiler.frontend.sympy_conversion import to_dim
from compiler.ir import ops
from compiler.ir.graph.node import Node
from compiler.ir.symbolic.index_expr import Dim
from compiler.ir.torch_types import is_opaque_dtype

Permutation: TypeAlias = tuple[int, ...]
"""Dimensions of a tensor in the order of its permuted view; () leaves it as it is."""


def memory_order(t: torch.Tensor) -> Permutation | None:
    """Return the dimensions of a dense (fake) tensor from the outermost in memory to the innermost; None for other tensors.

    Symbolic strides are compared as expressions, which adds no guard; without hints only row-major ones are recognized.
    """
    try:
        shape, strides = ([to_dim(d) for d in dims] for dims in (t.shape, t.stride()))
    except ConversionError:
        return None
    row_major = tuple(range(t.ndim))
    if strides == _dense_strides(shape, row_major):
        return row_major
    hints, order = _hints(t.stride()), row_major
    if hints is not None:
        order = tuple(sorted(row_major, key=lambda d: (-hints[d], shape[d] == 1)))
    return order if _is_dense(shape, strides, order) else None


def storage_order(t: torch.Tensor) -> Permutation:
    """Return `memory_order`; ConversionError if the tensor does not fill its storage without gaps."""
    order = memory_order(t)
    if order is None or t.storage_offset() != 0:
        raise ConversionError("as_strided on a tensor that is not dense; use reshape, permute, expand or slicing")
    return order


def visiting_order(t: torch.Tensor) -> Permutation:
    """Return the order, outermost dimension first, in which eager PyTorch visits a (fake) tensor and those made like it.

    Dynamic sizes count as those of the example; with data-dependent ones, the order is that of the indices.
    """
    rows, shape, strides = tuple(range(t.ndim)), _hints(t.shape), _hints(t.stride())
    if t.layout != torch.strided or shape is None or strides is None:
        return rows
    like = torch.empty_like(torch.empty_strided(shape, strides, device="meta"))
    dense = like.stride()
    return rows if like.is_contiguous() else tuple(sorted(rows, key=lambda d: -dense[d]))


def argument_permutation(t: torch.Tensor) -> Permutation:
    """Return the permutation that makes a row-major graph input of an argument; () where it is one, or must be copied."""
    order = _native_order(t)
    moved = [d for d in order if to_dim(t.shape[d]) != 1]
    return order if moved != sorted(moved) else ()


def result_permutation(t: Any) -> Permutation:
    """Return the permutation that makes a result with the strides of (fake) tensor `t` of a row-major graph output."""
    order = _native_order(t) if isinstance(t, torch.Tensor) else ()
    return inverse(order) if order != tuple(range(len(order))) else ()


def inverse(permutation: Permutation) -> Permutation:
    """Return the permutation that undoes `permutation`."""
    return tuple(permutation.index(d) for d in range(len(permutation)))


def permuted_node(n: Node, permutation: Permutation) -> Node:
    """Return the transpose of `n`, or `n` itself for no permutation."""
    return ops.permute(n, dims=permutation) if permutation else n


def permuted_view(x: Any, permutation: Permutation) -> Any:
    """Return a permuted view of a tensor; what has another rank stays as it is, for checks to reject."""
    if not permutation or not isinstance(x, torch.Tensor) or x.ndim != len(permutation):
        return x
    return x.permute(permutation)


def _native_order(t: torch.Tensor) -> Permutation:
    """Return the memory order of a tensor that kernels can transpose, () for others."""
    return memory_order(t) or () if t.layout == torch.strided and not is_opaque_dtype(t.dtype) else ()


def _dense_strides(shape: Sequence[Dim], order: Permutation) -> list[Dim]:
    strides: list[Dim] = [1] * len(shape)
    elements: Dim = 1
    for d in reversed(order):
        strides[d] = elements
        elements = elements * (shape[d] or 1)
    return strides


def _is_dense(shape: Sequence[Dim], strides: Sequence[Dim], order: Permutation) -> bool:
    """Return True if `strides` are those of a tensor stored in `order` without gaps; a size of 1 may have any."""
    dense = _dense_strides(shape, order)
    return all(n == 1 or a == b for n, a, b in zip(shape, strides, dense, strict=True))


def _hints(sizes: Sequence[int | torch.SymInt]) -> list[int] | None:
    """Return the sizes of the example; None where one is data-dependent."""
    known = [s.node.hint if isinstance(s, torch.SymInt) else s for s in sizes]
    return None if None in known else known
