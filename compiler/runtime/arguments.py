"""Checks of the tensors that a program is called with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._C._functorch import is_functorch_wrapped_tensor

from compiler.errors import USE_TORCH_COMPILE, ArgumentError
from compiler.ir.torch_types import TORCH_DTYPES, unsupported_storage
from compiler.ir.types import TensorType

_INFERENCE_ONLY = f"for inference, call it with plain tensors under torch.no_grad(), else {USE_TORCH_COMPILE}"


def argument_device(inputs: Sequence[Any], device_type: str) -> torch.device:
    """Return the device of a call: that of the first input on a device of this type, without one the current device."""
    for x in inputs:
        if isinstance(x, torch.Tensor) and x.device.type == device_type:
            return x.device
    return torch.device(device_type)


def is_host_scalar(x: torch.Tensor, device: torch.device) -> bool:
    """Return True for a tensor of rank 0 on the CPU beside tensors on another device, which PyTorch allows."""
    return x.dim() == 0 and x.device.type == "cpu" and device.type != "cpu"


def check_argument(k: int, name: str, x: Any, expected: TensorType, device: torch.device) -> None:
    """Raise ArgumentError unless code on `device` can take `x` as input `k`, of type `expected`, with any strides."""
    if kind := unsupported_storage(x) if isinstance(x, torch.Tensor) else type(x).__name__:
        raise ArgumentError(f"input {k} (%{name}) must be a dense tensor of type {expected}, not a {kind}")
    if x.requires_grad and torch.is_grad_enabled():
        problem = "requires gradients, which compiled code does not compute"
        raise ArgumentError(f"input {k} (%{name}) {problem}; {_INFERENCE_ONLY}")
    if is_functorch_wrapped_tensor(x):
        problem = "has no memory: compiled code cannot be transformed by torch.func"
        raise ArgumentError(f"input {k} (%{name}) {problem}; {_INFERENCE_ONLY}")
    is_elsewhere = x.device != device and not is_host_scalar(x, device)
    if x.dtype is not TORCH_DTYPES[expected.dtype] or not expected.fits(x.shape) or is_elsewhere:
        actual = f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)} on {x.device}"
        raise ArgumentError(f"input {k} (%{name}) must be {expected} on {device}, but is {actual}")
