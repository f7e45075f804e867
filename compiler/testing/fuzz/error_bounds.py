"""Bounds of the rounding errors that one op may make, in any order of its arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from compiler.analysis.quantized_value import is_known
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import Node
from compiler.ir.graph.structure import (
    ConstantLinear,
    Elementwise,
    Generate,
    Reduction,
    Scan,
    Scatter,
    elementwise_expr,
)
from compiler.ir.interpret.graph import evaluate_node
from compiler.ir.scalar import APPROXIMATED, FLUSHING
from compiler.ir.symbolic.index_expr import Dim, evaluate
from compiler.ir.torch_types import TORCH_DTYPES
from compiler.ir.types import DType, TensorType, f32
from compiler.passes.graph.winograd import INTERPOLATION_POINTS, is_unit_stride_3x3


def resolution(dtype: DType) -> tuple[float, float]:
    """Return the distance between 1 and the next number of `dtype`, and its smallest normal number."""
    info = torch.finfo(TORCH_DTYPES[dtype])
    return float(info.eps), float(info.smallest_normal)


@dataclass(frozen=True)
class ErrorBounds:
    """Bounds of the errors of each element: of rounding it to its dtype, and of computing it."""

    rounding: torch.Tensor
    computing: torch.Tensor

    def overflow_mask(self, node: Node, value: torch.Tensor) -> torch.Tensor:
        """Return True for elements that overflow their dtype, or whose partial results may."""
        largest, limits = torch.finfo(TORCH_DTYPES[node.dtype]).max, _partial_range(node)
        return (value.isfinite() & (value.abs() > largest)) | (self.computing > limits.max * limits.eps)


def error_bounds(
    node: Node, operands: list[torch.Tensor], value: torch.Tensor, rounded: torch.Tensor
) -> ErrorBounds | None:
    """Return bounds of the errors of each element, or None if the op is exact."""
    eps, tiny = resolution(node.dtype)
    inner = resolution(node.dtype.compute)[0]
    exact = value == (rounded if node.dtype.bits < 64 else value.float())  # rounding to f64 is invisible here
    if node.dtype.bits == 64 and isinstance(node.structure, Elementwise):  # selection is exact
        exact = exact | sum((value == o for o in operands), start=torch.zeros(()).bool())
    rounding = torch.where(~exact, eps * value.abs().clamp(min=tiny), torch.zeros(()).double())
    match node.structure:
        case Elementwise():
            return ErrorBounds(rounding, _formula_error(node, operands, value, inner))
        case Reduction(combine="add"):
            computing = _sum_error(node, operands, inner, _reduction_length(node))
            return ErrorBounds(rounding, computing + _factor_error(node, operands))
        case Reduction(combine="mul"):
            return ErrorBounds(rounding, _product_error(node, operands, value, inner, _reduction_length(node)))
        case ConstantLinear():
            _, matrix = node.structure.axis_and_matrix(node)
            absolute = replace(node, attrs={**node.attrs, "matrix": tuple(tuple(map(abs, row)) for row in matrix)})
            return ErrorBounds(rounding, _sum_error(absolute, operands, inner, len(matrix[0]) if matrix else 0))
        case Scan(combine="max" | "min"):
            return None
        case Scan(combine="add"):
            return ErrorBounds(rounding, _sum_error(node, operands, inner, node.shape[node.attrs["dim"]]))
        case Scan(combine="mul"):
            return ErrorBounds(rounding, _product_error(node, operands, value, inner, node.shape[node.attrs["dim"]]))
        case Scan():
            steps = node.shape[node.structure.axis(node).dim]
            from_operands = sum(4 * inner * x.abs() for x in operands if x.is_floating_point())
            computing = inner * (2 + steps) * value.abs() + from_operands
            return ErrorBounds(rounding, torch.where(exact, 0.0, computing))
        case Scatter():
            combine = node.structure.combine(node)
            if combine == "add":
                terms = _num_points(node.structure.writes(node).extents)
                return ErrorBounds(rounding, _sum_error(node, operands, eps, terms**2))  # equal terms round alike
            if combine == "mul":
                return ErrorBounds(rounding, _product_error(node, operands, value, eps, 6))
            return None
        case Generate():
            return ErrorBounds(rounding, torch.zeros(()).double())
    return None


def _formula_error(node: Node, operands: list[torch.Tensor], value: torch.Tensor, eps: float) -> torch.Tensor:
    """Bound the error of an elementwise formula by its result and, if it has several steps, by its operands."""
    steps = [e.primitive for e in elementwise_expr(node).calls]
    approximated = APPROXIMATED.intersection(steps)
    if not steps or (len(steps) == 1 and not approximated):
        return torch.zeros(()).double()
    error = 2 * eps * value.abs()
    if is_flushing(node):  # e^x of x > 0 is any number from 1 to its own; that of -inf is 0
        flushed = torch.where(operands[0].isinf(), 0.0, resolution(node.dtype.compute)[1])
        error = error + torch.where(value > 1, value - 1, flushed)
    if "pow" in approximated or (approximated and node.dtype.bits == 64):  # exponents are rounded first
        error = error + eps * value.abs() * value.abs().log().abs().nan_to_num(0.0, 0.0, 0.0)
    if approximated and node.dtype.bits == 64:  # the reference is no more accurate, except for infinite operands
        finite = ~sum((x.isinf() for x in operands if x.is_floating_point()), start=torch.zeros(()).bool())
        error = error + torch.where(finite, 4 * eps * value.abs().clamp(min=1.0), 0.0)
    if len(steps) > 2:
        for x in operands:
            if x.is_floating_point():
                error = error + 2 * eps * x.abs().clamp(max=16.0)
    return error


def is_flushing(node: Node) -> bool:
    """Return True if an elementwise formula has an exponential of numbers that are at most 0."""
    return not FLUSHING.isdisjoint(e.primitive for e in elementwise_expr(node).calls)


def _reduction_length(node: Node) -> int:
    assert isinstance(node.structure, Reduction)
    return _num_points(node.structure.domain(node).extents)


def _num_points(extents: Sequence[Dim]) -> int:
    return int(np.prod([evaluate(d, {}) for d in extents]))


def _sum_error(node: Node, operands: list[torch.Tensor], eps: float, count: int) -> torch.Tensor:
    """Bound the error of adding `count` terms in any order; infinite terms are ignored."""
    if node.dtype.compute == f32 and is_unit_stride_3x3(node):
        return _winograd_error(node, operands, eps)
    floats = [o for o in operands if o.is_floating_point()]
    reduces = isinstance(node.structure, Reduction)  # other integers are indices
    absolute = [o.double().abs().nan_to_num(0.0, 0.0) if reduces or o.is_floating_point() else o for o in operands]
    weighted = reduces and len(operands) == 2  # weights may be scaled first
    if weighted and node.dtype.compute == f32:  # integers may be read with an offset, also where they are 0
        absolute = [
            a.amax().expand(a.shape) if a.numel() and has_known_codes(n) else a
            for a, n in zip(absolute, node.operands, strict=True)
        ]
    magnitude: Any = evaluate_node(node, absolute, torch.float64)
    exact = not weighted and all(bool((o == o.round()).all()) for o in floats)
    error: torch.Tensor = magnitude * eps * (2 + 0.25 * count**0.5)
    error = (error * 8 if weighted else error) + torch.where(magnitude > 0, count * _smallest_increment(node) / 2, 0.0)
    return torch.where((magnitude * eps < 0.5) & exact, torch.zeros(()).double(), error)


def _factor_error(node: Node, operands: list[torch.Tensor]) -> torch.Tensor:
    """Bound the error of rounding the wider factor of products to the dtype of the other one, as matrix units of GPUs take it."""
    dtypes = [o.dtype for o in node.operands]
    narrow = [d for d in dtypes if d.is_reduced_float]
    if len(dtypes) != 2 or len(narrow) != 1 or not all(d.is_float for d in dtypes):
        return torch.zeros(()).double()
    absolute = [o.double().abs().nan_to_num(0.0, 0.0) for o in operands]
    magnitude: Any = evaluate_node(node, absolute, torch.float64)
    error: torch.Tensor = magnitude * resolution(narrow[0])[0] / 2
    return error


def has_known_codes(node: Node) -> bool:
    """Return True if `node` depends on constants only and is computed from integers or floats of 8 bits: rows may be scaled for these."""
    types = (n.result_type for n in Graph((), (node,)).nodes)
    dtypes = [t.dtype for t in types if isinstance(t, TensorType)]
    return is_known(node) and any(d.is_integer or (d.is_encoded and d.bits == 8) for d in dtypes)


def _smallest_increment(node: Node) -> float:
    """Return the smallest subnormal of the accumulator dtype, to a multiple of which terms are rounded."""
    eps, tiny = resolution(node.dtype.compute)
    return eps * tiny


def _winograd_error(node: Node, operands: list[torch.Tensor], eps: float) -> torch.Tensor:
    """Bound the error of a convolution that may use Winograd's algorithm: a large element affects all results of its tile."""
    radius = max(INTERPOLATION_POINTS) + 1
    x, w = (o.double().abs().nan_to_num(torch.inf, torch.inf).clamp(min=1e-300) for o in operands)
    images = x.flatten(0, -3)
    largest = F.max_pool2d(images, 2 * radius + 1, 1, radius).view_as(x) if x.numel() else x
    magnitude: Any = evaluate_node(node, [largest, w], torch.float64)
    error: torch.Tensor = magnitude * eps * 8 * (2 + 0.25 * _reduction_length(node) ** 0.5)
    return error


def _partial_range(node: Node) -> torch.finfo:
    """Return the limits of the dtype of partial results, which a scatter stores."""
    return torch.finfo(TORCH_DTYPES[node.dtype if isinstance(node.structure, Scatter) else node.dtype.compute])


def _product_error(
    node: Node, operands: list[torch.Tensor], value: torch.Tensor, eps: float, count: int
) -> torch.Tensor:
    """Bound the error of multiplying `count` factors in any order; infinite if a partial product may leave the range."""
    error = (2 + count) * eps * value.abs().nan_to_num(0.0, 0.0)
    if not node.dtype.is_float:
        return error

    def product_of(factor: Callable[[torch.Tensor], torch.Tensor]) -> Any:
        factors = [factor(x.abs().nan_to_num(1.0, 1.0)) if x.is_floating_point() else x for x in operands]
        return evaluate_node(node, factors, torch.float64)  # integers are indices

    growth = product_of(lambda x: x.clamp(min=1.0))
    decay = product_of(lambda x: x.where(x > 0, 1.0).clamp(max=1.0))
    info = _partial_range(node)
    overflows, underflows = growth > info.max, decay < info.smallest_normal
    leaves = (overflows & ((decay < 1) | (value == 0))) | (underflows & ((growth > 1) | value.isinf()))
    return torch.where(leaves, torch.inf, error)
