"""Export of modules by `torch.export`, and what it cannot export."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any

import torch
from torch._dynamo.convert_frame import compile_lock
from torch.export import ExportedProgram
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_leaves

from compiler.errors import USE_TORCH_COMPILE, ArgumentError, Loc
from compiler.ir.torch_types import USE_DENSE, unsupported_storage

_REMEDY = f"or {USE_TORCH_COMPILE}"


def export_module(
    module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], dynamic_shapes: Any = None
) -> ExportedProgram:
    """Export `module` on example arguments; ArgumentError for tensors or sequences that `torch.export` does not take.

    Waits for other threads: tracing changes global state of PyTorch.
    """
    _check_arguments(module, args, kwargs)
    with compile_lock, torch.no_grad(), _packed_sequences_refused(module), _autocast_recorded(module):
        return torch.export.export(module, tuple(args), dict(kwargs), dynamic_shapes=dynamic_shapes)


@contextmanager
def _autocast_recorded(module: torch.nn.Module) -> Iterator[None]:
    """Move autocasting that the caller has switched on into the module: `torch.export` records only what is inside."""
    if not torch.is_autocast_enabled("cpu"):
        yield
        return
    forward, dtype = module.forward, torch.get_autocast_dtype("cpu")

    @wraps(forward)
    def autocast_forward(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast("cpu", dtype):
            return forward(*args, **kwargs)

    own = module.__dict__.get("forward")
    module.forward = autocast_forward
    try:
        with torch.autocast("cpu", enabled=False):
            yield
    finally:
        del module.forward
        if own is not None:
            module.forward = own


def _check_arguments(module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise ArgumentError if an argument, a parameter or a buffer holds a tensor that has no strides."""
    try:
        named = inspect.signature(module.forward).bind_partial(*args, **kwargs).arguments
    except TypeError as error:
        raise ArgumentError(str(error)) from None
    named = {f"argument {name}": value for name, value in named.items()}
    named |= {f"parameter {name}": p for name, p in module.named_parameters()}
    named |= {f"buffer {name}": b for name, b in module.named_buffers()}
    for name, value in named.items():
        for tensor in tree_leaves(value):
            if isinstance(tensor, torch.Tensor) and (kind := unsupported_storage(tensor)):
                raise ArgumentError(f"{name} is a {kind}, which compiler.compile does not take; {USE_DENSE}, {_REMEDY}")


@contextmanager
def _packed_sequences_refused(module: torch.nn.Module) -> Iterator[None]:
    """Raise ArgumentError, inside the context, where a recurrent layer is called with a packed sequence."""
    layers = [(n, m) for n, m in module.named_modules() if isinstance(m, torch.nn.RNNBase)]
    hooks = [m.register_forward_pre_hook(partial(_refuse_packed_sequence, n), with_kwargs=True) for n, m in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _refuse_packed_sequence(name: str, layer: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    if any(isinstance(a, PackedSequence) for a in (*args, *kwargs.values())):
        layer_name, loc = f"{type(layer).__name__} {name}".rstrip(), _calling_line()
        problem = f"argument input of {layer_name}{f' at {loc}' if loc else ''} is a packed sequence"
        raise ArgumentError(f"{problem}, whose batch sizes torch.export cannot trace; pass a padded tensor, {_REMEDY}")


def _calling_line() -> Loc | None:
    """Return the innermost line on the stack outside PyTorch and this module."""
    frame, skipped = sys._getframe(), (os.path.dirname(torch.__file__) + os.sep, "<", __file__)
    while frame and frame.f_code.co_filename.startswith(skipped):
        frame = frame.f_back  # type: ignore[assignment]  # None above the outermost
    return Loc(frame.f_code.co_filename, frame.f_lineno) if frame else None
