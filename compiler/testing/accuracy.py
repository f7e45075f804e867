"""Errors of a compiled model and of PyTorch's, against float64: that of the model, and that of a model it was quantized from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch.export import ExportedProgram
from torch.utils._pytree import tree_map

from compiler.frontend.model_source import Model, as_exported_program
from compiler.ir.torch_types import from_torch
from compiler.report.measure import NumericalError, float64_reference, numerical_error

OWN, UNQUANTIZED = "error", "to reference"
"""Headings of errors against the program itself in float64, and against the one that it was quantized from."""

References: TypeAlias = Mapping[str, Sequence[torch.Tensor]]
"""Results in float64 by the heading of the errors against them."""


def float64_references(
    program: ExportedProgram, args: Sequence[Any], kwargs: Mapping[str, Any], reference: Model | None = None
) -> References:
    """Return the results of `program` in float64, with exact integers, and those of `reference`, the unquantized model, if given.

    A module takes arguments of 16-bit floats as f32 if its parameters are not of their dtype.
    """
    truth: dict[str, Sequence[torch.Tensor]] = {OWN: float64_reference(program, args, kwargs)}
    if reference is not None:
        if isinstance(reference, torch.nn.Module):
            args, kwargs = _widened(reference, (tuple(args), dict(kwargs)))
        truth[UNQUANTIZED] = float64_reference(*as_exported_program(reference, args, kwargs))
    return truth


def _widened(module: torch.nn.Module, arguments: tuple[Any, Any]) -> Any:
    """Return arguments with floats of 16 bits as f32, unless parameters of `module` have their dtype."""
    dtypes = {p.dtype for p in module.parameters()}

    def widen(x: torch.Tensor) -> torch.Tensor:
        return (
            x.float() if x.is_floating_point() and from_torch(x.dtype).is_reduced_float and x.dtype not in dtypes else x
        )

    return tree_map(lambda x: widen(x) if isinstance(x, torch.Tensor) else x, arguments)


def numerical_errors(results: Sequence[torch.Tensor], references: References) -> dict[str, NumericalError]:
    """Return the error of results against each reference."""
    return {heading: numerical_error(results, truth) for heading, truth in references.items()}
