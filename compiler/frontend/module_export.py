"""Export of modules by `torch.export`, and what it cannot export."""

from __future__ import annotations

import inspect
import os
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any

import torch
from torch._dynamo.convert_frame import compile_lock
from torch.export import ExportedProgram
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_leaves, tree_map_only

from compiler.errors import USE_TORCH_COMPILE, ArgumentError, ExportError, Loc, TilewrightError
from compiler.frontend.assigned_attributes import assignments_reported
from compiler.frontend.source_location import calling_frame, innermost_line
from compiler.ir.torch_types import USE_DENSE, unsupported_storage

_REMEDY = f"or {USE_TORCH_COMPILE}"


def export_module(
    module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], dynamic_shapes: Any = None
) -> ExportedProgram:
    """Export `module` on example arguments.

    ArgumentError for tensors or sequences that `torch.export` does not take, ExportError for what it cannot trace.  Waits for
    other threads: tracing changes global state of PyTorch.
    """
    _check_arguments(module, args, kwargs)
    with compile_lock, torch.no_grad(), _packed_sequences_refused(module), _autocast_recorded(module):
        examples = _as_distinct_tensors(module, (tuple(args), dict(kwargs)))
        try:
            with assignments_reported(module):
                return torch.export.export(module, *examples, dynamic_shapes=dynamic_shapes)
        except TilewrightError:
            raise
        except Exception as error:
            raise export_error(type(module).__name__, error) from error


def _as_distinct_tensors(module: torch.nn.Module, arguments: Any) -> Any:
    """Replace tensors that occurred before, in the module or as arguments: `torch.export` takes one object for one value."""
    seen = {id(t) for t in (*module.parameters(), *module.buffers())}

    def distinct(tensor: torch.Tensor) -> torch.Tensor:
        is_first = id(tensor) not in seen
        seen.add(id(tensor))
        return tensor if is_first else tensor.detach()

    return tree_map_only(torch.Tensor, distinct, arguments)


def export_error(name: str, error: Exception) -> ExportError:
    """Return an error with the user's line, the first paragraph of PyTorch's message, the line of a library that raised it, and a remedy.

    The line is the innermost one of the traceback, or that of the operator which the message quotes.
    """
    trace = "".join(traceback.format_tb(error.__traceback__)[1:])
    loc = innermost_line(trace) or innermost_line(str(error))
    raised_at = innermost_line(trace, in_libraries=True)
    library_line = f"\n  in {raised_at}: {raised_at.code}" if raised_at and raised_at != loc else ""
    message = str(error).strip().partition("\n\n")[0]
    place = f" at {loc}: {loc.code}" if loc else ""
    return ExportError(
        f"torch.export cannot trace {name}{place}\n  {type(error).__name__}: {message}{library_line}\n"
        f"If the model runs in PyTorch, {USE_TORCH_COMPILE}."
    )


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
        named = inspect.signature(module.forward).bind(*args, **kwargs).arguments
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
    frame, _ = calling_frame(os.path.dirname(torch.__file__) + os.sep, "<", __file__)
    return Loc(frame.f_code.co_filename, frame.f_lineno) if frame else None
