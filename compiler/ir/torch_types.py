"""Conversion of element types and arrays to and from PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import torch

from compiler.ir import types
from compiler.ir.types import DType

Array: TypeAlias = np.ndarray[Any, Any]

TORCH_DTYPES: Mapping[DType, torch.dtype] = {
    types.f64: torch.float64,
    types.f32: torch.float32,
    types.f16: torch.float16,
    types.bf16: torch.bfloat16,
    types.i64: torch.int64,
    types.i32: torch.int32,
    types.i16: torch.int16,
    types.i8: torch.int8,
    types.u8: torch.uint8,
    types.boolean: torch.bool,
    types.c64: torch.complex64,
    types.c128: torch.complex128,
}

_FROM_TORCH: Mapping[torch.dtype, DType] = {t: d for d, t in TORCH_DTYPES.items()}


def to_torch(dtype: DType) -> torch.dtype:
    """Return the `torch.dtype` that corresponds to `dtype`."""
    return TORCH_DTYPES[dtype]


def from_torch(dtype: torch.dtype) -> DType:
    """Return the element type of a `torch.dtype`; KeyError if unsupported (quantised, float8)."""
    return _FROM_TORCH[dtype]


def as_tensor(array: Array, dtype: DType) -> torch.Tensor:
    """Return `array` as a tensor of `dtype`; a bf16 array is float32 or bits in uint16."""
    array = np.asarray(array)
    if dtype is types.bf16 and array.dtype == np.uint16:
        return torch.from_numpy(np.array(array.view(np.int16))).view(torch.bfloat16)
    if not array.flags.writeable or any(stride < 0 for stride in array.strides):
        array = array.copy()
    return torch.from_numpy(array).to(TORCH_DTYPES[dtype])


def as_array(tensor: torch.Tensor) -> Array:
    """Return `tensor` as a contiguous NumPy array; bf16 becomes float32."""
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).detach().contiguous().numpy()
