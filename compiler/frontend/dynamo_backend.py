"""The backend object behind a compiled function: Dynamo makes one for each `torch.compile`, and all of its graphs share it."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch._dynamo.eval_frame import OptimizedModule, innermost_backend
from torch._dynamo.symbolic_convert import InstructionTranslator
from torch._guards import CompileContext

from compiler.errors import ArgumentError


def current_backend() -> Any:
    """Return the backend that Dynamo compiles a graph with; None outside of Dynamo, as in a backward pass."""
    try:
        backend: Any = InstructionTranslator.current_tx().output.compiler_fn
    except AttributeError:
        return None
    return innermost_backend(backend)


def current_compile_id() -> str:
    """Return the id that PyTorch's logs give to the compilation under way, as in `0/1`; "" if there is none."""
    return str(CompileContext.current_compile_id() or "")


def backend_of(function: Any) -> Any:
    """Return the backend of what `torch.compile` returned, or of a module after `module.compile()`; ArgumentError for others."""
    if isinstance(function, OptimizedModule):
        callback: Any = function.dynamo_ctx.callback
        return innermost_backend(callback)
    if isinstance(function, torch.nn.Module) and function._compiled_call_impl is not None:
        function = function._compiled_call_impl
    function = getattr(function, "__func__", function)
    cells = inspect.getclosurevars(function).nonlocals if inspect.isfunction(function) else {}
    if "callback" not in cells:
        raise ArgumentError(f"{function!r} is not compiled: pass what torch.compile returned")
    return innermost_backend(cells["callback"])
