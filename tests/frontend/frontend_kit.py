"""What the tests of the frontend share: import a module, interpret its graph, compare with eager in float64."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_unflatten

from compiler.frontend.export import (
    ConstantOutput,
    GraphOutput,
    ImportedProgram,
    ScalarOutput,
    UserInput,
    import_module,
)
from compiler.ir.interpret.graph import interpret
from compiler.ir.symbolic.binding import bind_symbols
from compiler.ir.symbolic.index_expr import evaluate


def require(package: str) -> None:
    """Import `package`; where it is not installed, skip the module that calls this, and warn of it."""
    if importlib.util.find_spec(package) is None:
        notice = f"NOT RUN: tests that need {package}, which is not installed"
        warnings.warn(notice, stacklevel=2)
        pytest.skip(notice, allow_module_level=True)
    importlib.import_module(package)


class FunctionModule(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def as_module(program: Callable[..., Any]) -> torch.nn.Module:
    return program if isinstance(program, torch.nn.Module) else FunctionModule(program)


def interpret_imported(
    imported: ImportedProgram,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    dtype: torch.dtype | None = None,
) -> Any:
    """The result of the imported program, interpreted."""
    leaves = tree_leaves((tuple(args), dict(kwargs or {})))
    feeds = [s.feed(leaves) if isinstance(s, UserInput) else s.feed(leaves).clone() for s in imported.input_sources]
    sizes = [
        (d, n)
        for node, x in zip(imported.graph.inputs, feeds, strict=True)
        for d, n in zip(node.shape, x.shape, strict=True)
    ]
    outputs = interpret(imported.graph, [f.detach() for f in feeds], dtype=dtype)
    found = []
    for leaf in imported.results:
        if isinstance(leaf, GraphOutput):
            found.append(leaf.view(outputs[leaf.index]))
        elif isinstance(leaf, ScalarOutput):
            found.append(outputs[leaf.index].item())
        else:
            told = [
                p
                for n, x in zip(imported.graph.outputs, outputs, strict=True)
                for p in zip(n.shape, x.shape, strict=True)
            ]
            found.append(
                leaf.value if isinstance(leaf, ConstantOutput) else evaluate(leaf.dim, bind_symbols(sizes + told))
            )
    return tree_unflatten(found, imported.out_spec)


def to_float64(value: Any) -> Any:
    """Floating-point tensors in float64."""
    return torch.utils._pytree.tree_map(
        lambda v: v.double() if isinstance(v, torch.Tensor) and v.is_floating_point() else v, value
    )


def check_import(program: Callable[..., Any], *args: Any, tolerance: float = 1e-9, **options: Any) -> ImportedProgram:
    """Import `program` and compare its meaning with eager, both in float64; returns what was imported."""
    module = as_module(program).eval()
    imported = import_module(module, args, **options)
    check_against_eager(imported, module, args, tolerance)
    return imported


def check_against_eager(
    imported: ImportedProgram, module: torch.nn.Module, args: Sequence[Any], tolerance: float = 1e-9
) -> None:
    """The imported program and eager agree on `args`."""
    got = interpret_imported(imported, args, dtype=torch.float64)
    with torch.no_grad():
        truth = copy.deepcopy(module).double()(*to_float64(tuple(args)))
    torch.testing.assert_close(to_float64(got), to_float64(truth), rtol=tolerance, atol=tolerance, equal_nan=True)
