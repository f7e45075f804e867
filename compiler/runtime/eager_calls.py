"""Calls into PyTorch for the ops that have no structure to compile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch

import compiler.ir.ops  # noqa: F401  # fills OPS
from compiler.errors import VerifyError
from compiler.ir.graph.node import OPS
from compiler.ir.tile.program import OpaqueCall
from compiler.ir.torch_types import TORCH_DTYPES
from compiler.ir.types import TensorType
from compiler.runtime.call_stub import strides

EagerFunction: TypeAlias = Callable[..., tuple[torch.Tensor, ...]]


def make_eager_function(step: OpaqueCall, types: Sequence[TensorType]) -> EagerFunction:
    """A call of the op's reference whose results are dense tensors of `types` that share memory with nothing.

    It raises VerifyError where PyTorch returns another shape than the graph says.
    """
    reference, attrs, name = OPS[step.op].reference, dict(step.attrs), step.node or step.op
    if reference is None:
        raise VerifyError(f"{name}: op {step.op} is opaque and has no reference to call")

    def call(*arguments: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.no_grad():
            given = reference(*(a.detach() for a in arguments), **attrs)
        taken = {0, *(_storage_address(a) for a in arguments)}
        results = []
        for tensor, type in zip(given if isinstance(given, (tuple, list)) else (given,), types, strict=True):
            results.append(_as_owned_dense(tensor, type, taken, name))
            taken.add(_storage_address(results[-1]))
        return tuple(results)

    return call


def _as_owned_dense(tensor: torch.Tensor, type: TensorType, used_storages: set[int], name: str) -> torch.Tensor:
    """`tensor`, or a copy where it is stored otherwise than `type` says or in memory that is taken."""
    shape, stride, dtype = type.static_shape(), strides(type), TORCH_DTYPES[type.dtype]
    if tensor.shape != shape:
        raise VerifyError(f"{name}: PyTorch returned shape {list(tensor.shape)} where the graph says {type}")
    if tensor.dtype == dtype and tensor.stride() == stride and _storage_address(tensor) not in used_storages:
        return tensor
    return torch.empty_strided(shape, stride, dtype=dtype).copy_(tensor)


def _storage_address(tensor: torch.Tensor) -> int:
    """Where a tensor lies in memory; 0 for zeros that lie nowhere."""
    return 0 if tensor._is_zerotensor() else tensor.untyped_storage().data_ptr()
