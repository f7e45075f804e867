"""Calls into PyTorch eager for opaque ops."""

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
    """Return a function that calls the op's reference and returns dense tensors of `types`, which alias nothing.

    The function raises VerifyError if PyTorch returns a shape that differs from the graph's.
    """
    reference, attrs, name = OPS[step.op].reference, dict(step.attrs), step.node or step.op
    if reference is None:
        raise VerifyError(f"{name}: op {step.op} is opaque and has no reference to call")

    def call(*arguments: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.no_grad():
            output = reference(*(a.detach() for a in arguments), **attrs)
        used_storages = {0, *(_storage_address(a) for a in arguments)}
        results = []
        for tensor, type in zip(output if isinstance(output, (tuple, list)) else (output,), types, strict=True):
            results.append(_as_owned_dense(tensor, type, used_storages, name))
            used_storages.add(_storage_address(results[-1]))
        return tuple(results)

    return call


def _as_owned_dense(tensor: torch.Tensor, type: TensorType, used_storages: set[int], name: str) -> torch.Tensor:
    """Return `tensor`, or a copy if its strides or dtype differ from `type` or its storage is in use."""
    shape, stride, dtype = type.static_shape(), strides(type), TORCH_DTYPES[type.dtype]
    if tensor.shape != shape:
        raise VerifyError(f"{name}: PyTorch returned shape {list(tensor.shape)}, but the graph has {type}")
    if tensor.dtype == dtype and tensor.stride() == stride and _storage_address(tensor) not in used_storages:
        return tensor
    return torch.empty_strided(shape, stride, dtype=dtype).copy_(tensor)


def _storage_address(tensor: torch.Tensor) -> int:
    """Return the address of a tensor's storage; 0 for a zero tensor, which has none."""
    return 0 if tensor._is_zerotensor() else tensor.untyped_storage().data_ptr()
