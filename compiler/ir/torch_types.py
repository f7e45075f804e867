"""Conversion of element types, layouts and arrays to and from PyTorch."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from compiler.errors import TypeRuleError, VerifyError
from compiler.ir.float_format import Array
from compiler.ir.types import DTYPES, DType, TensorType

TORCH_DTYPES: Mapping[DType, torch.dtype] = {d: getattr(torch, d.torch_name or d.numpy.name) for d in DTYPES.values()}

USE_DENSE = "use a dense tensor"
"""Remedy for `unsupported_storage`."""

_FROM_TORCH: Mapping[torch.dtype, DType] = {t: d for d, t in TORCH_DTYPES.items()}


def to_torch(dtype: DType) -> torch.dtype:
    """Return the `torch.dtype` that corresponds to `dtype`."""
    return TORCH_DTYPES[dtype]


def from_torch(dtype: torch.dtype, name: str = "") -> DType:
    """Return the element type of a `torch.dtype`; TypeRuleError, for the value called `name`, if there is none."""
    if dtype not in _FROM_TORCH:
        remedy = "use a dtype of whole bytes, as in x.view(torch.uint8)"
        raise TypeRuleError(f"{f'{name}: ' if name else ''}{dtype} is not supported; {remedy}")
    return _FROM_TORCH[dtype]


def is_supported_dtype(dtype: torch.dtype) -> bool:
    """Return True for a dtype that values of a graph may have."""
    return dtype in _FROM_TORCH


def is_opaque_dtype(dtype: torch.dtype) -> bool:
    """Return True for a dtype that only PyTorch computes with, or that is not supported at all."""
    return not is_supported_dtype(dtype) or _FROM_TORCH[dtype].is_opaque


def element_type(tensor: torch.Tensor, name: str = "") -> DType:
    """Return the element type of a strided tensor; TypeRuleError, for the value called `name`, for other tensors."""
    if kind := unsupported_storage(tensor):
        raise TypeRuleError(f"{f'{name}: ' if name else ''}a {kind} is not supported; {USE_DENSE}")
    return from_torch(tensor.dtype, name)


def unsupported_storage(tensor: torch.Tensor) -> str:
    """Describe a tensor that does not lie in memory by strides, such as "sparse_coo tensor"; empty for one that does."""
    if tensor.layout is not torch.strided:
        return f"{str(tensor.layout).removeprefix('torch.').removeprefix('_')} tensor"
    return "nested tensor" if tensor.is_nested else ""


def as_tensor(array: Array, dtype: DType) -> torch.Tensor:
    """Return `array` as a tensor of `dtype`; the array holds values or, if `dtype` has any, codes."""
    array = np.asarray(array)
    if _has_codes(dtype):  # PyTorch's own conversion may change the sign of NaN
        codes = array if array.dtype == dtype.storage else dtype.encode(array)
        return torch.from_numpy(np.array(codes.view(f"i{dtype.bytes}"))).view(TORCH_DTYPES[dtype])
    if not array.flags.writeable or any(stride < 0 for stride in array.strides):
        array = array.copy()
    return torch.from_numpy(array).to(TORCH_DTYPES[dtype])


def as_array(tensor: torch.Tensor) -> Array:
    """Return the values of `tensor` as a contiguous NumPy array of `dtype.numpy`."""
    dtype = from_torch(tensor.dtype)
    return dtype.decode(as_storage(tensor))


def as_storage(tensor: torch.Tensor) -> Array:
    """Return the elements of `tensor` as an array of `dtype.storage`, which shares memory with a dense CPU tensor."""
    dense, dtype = tensor.detach().cpu().contiguous().resolve_conj().resolve_neg(), from_torch(tensor.dtype)
    if not _has_codes(dtype):
        return dense.numpy()
    return dense.view(getattr(torch, f"int{8 * dtype.bytes}")).numpy().view(dtype.storage)


def _has_codes(dtype: DType) -> bool:
    """Return True if NumPy has no such type, so that arrays hold codes."""
    return dtype.is_encoded or dtype.kind == "opaque"


def strides(type: TensorType) -> tuple[int, ...]:
    """Return the strides in elements of a PyTorch tensor of `type`; VerifyError for a blocked layout."""
    shape = type.static_shape()
    order = range(len(shape)) if type.layout is None else [d.dim for d in type.layout.physical_dims]
    if type.layout is not None and (not type.layout.is_permutation or sorted(order) != list(range(len(shape)))):
        raise VerifyError(f"{type}: PyTorch tensors cannot have a blocked layout; unpack it in a kernel first")
    result, elements = [0] * len(shape), 1
    for d in reversed(order):
        result[d] = elements
        elements *= max(1, shape[d])
    return tuple(result)
