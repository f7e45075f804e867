"""Reductions over dimensions `dims`, which count from 0; an empty `dims` reduces nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from compiler.ir.graph.node import REQUIRED, Node, Op, SampleInput, Signature, scalar_constant
from compiler.ir.graph.op import declare_op, sample_input
from compiler.ir.graph.structure import Composite, Position, Reduction, ReductionDomain
from compiler.ir.ops.arithmetic import abs_, add, div, mul, sqrt, sub
from compiler.ir.ops.cast import as_dtype
from compiler.ir.ops.creation import dim_value, iota_along
from compiler.ir.ops.logic import eq, isnan, or_, where
from compiler.ir.ops.rules import check_dims, in_f32, reduced_shape, reduction_type
from compiler.ir.ops.transcendental import exp, log
from compiler.ir.ops.views import reshape
from compiler.ir.symbolic.index_expr import Dim, product
from compiler.ir.types import TensorType, i64

SAMPLES = (
    sample_input("f32[4, 5]", dims=[1]), sample_input("f32[4, 5]", dims=[0], keepdim=True), sample_input("f32[2, 3, 4]", dims=[0, 2]),
    sample_input("f32[3, 2]", dims=[0, 1]), sample_input("f32[]", dims=[]), sample_input("bf16[4, 6]", dims=[1]), sample_input("f32[0, 3]", dims=[1]),
)  # fmt: skip
EMPTY_SAMPLES = (sample_input("f32[3, 0]", dims=[1]), sample_input("f32[0]", dims=[0], keepdim=True))
INTEGER_SAMPLES = (sample_input("i64[4, 5]", dims=[0]), sample_input("i32[7]", dims=[0]))
ATTRS = {"dims": REQUIRED, "keepdim": False}


def reduced_space(node: Node) -> ReductionDomain:
    """Reduction domain over dimensions `dims` of operand 0."""
    dims, keepdim, shape = node.attrs["dims"], node.attrs["keepdim"], node.operands[0].shape

    def positions(i: Position, r: Position) -> tuple[Position, ...]:
        outer = iter(d for k, d in enumerate(i) if not (keepdim and k in dims))
        inner = dict(zip(dims, r, strict=True))
        return (tuple(inner[k] if k in inner else next(outer) for k in range(len(shape))),)

    return ReductionDomain(tuple(shape[d] for d in dims), positions)


def _reduce_each_dim(x: torch.Tensor, reduce: Callable[..., torch.Tensor], dims: tuple[int, ...], keepdim: bool) -> Any:
    """Apply `reduce(x, dim, keepdim)` to one dimension after the other."""
    for d in sorted(dims, reverse=True):
        x = reduce(x, d, keepdim)
    return x


def _reduction(
    name: str, kind: str, combine: str, reference: Callable[..., Any], samples: tuple[SampleInput, ...]
) -> Op:
    return declare_op(name, f"x: {kind}", Reduction(combine, reduced_space), type_rule=reduction_type(), attrs=ATTRS,
              reference=reference, samples=[*samples])  # fmt: skip


sum_ = _reduction(
    "sum", "number", "add",
    lambda x, dims, keepdim: torch.sum(x, dims, keepdim, dtype=x.dtype) if dims else x, (*SAMPLES, *EMPTY_SAMPLES, *INTEGER_SAMPLES),
)  # fmt: skip
prod = _reduction(
    "prod", "number", "mul",
    lambda x, dims, keepdim: _reduce_each_dim(x, lambda x, d, k: torch.prod(x, d, k, dtype=x.dtype), dims, keepdim), (*SAMPLES, *EMPTY_SAMPLES),
)  # fmt: skip
amax = _reduction(
    "amax", "number", "max", lambda x, dims, keepdim: torch.amax(x, dims, keepdim) if dims else x, (*SAMPLES, *INTEGER_SAMPLES),
)  # fmt: skip
amin = _reduction(
    "amin", "number", "min", lambda x, dims, keepdim: torch.amin(x, dims, keepdim) if dims else x, (*SAMPLES, *INTEGER_SAMPLES),
)  # fmt: skip
BOOL_SAMPLES = (
    sample_input("bool[4, 5]", dims=[1]), sample_input("bool[2, 3, 4]", dims=[0, 2], keepdim=True), sample_input("bool[3, 0]", dims=[1]),
)  # fmt: skip
any_ = _reduction(
    "any", "bool", "max", lambda x, dims, keepdim: _reduce_each_dim(x, torch.any, dims, keepdim), BOOL_SAMPLES
)
all_ = _reduction(
    "all", "bool", "min", lambda x, dims, keepdim: _reduce_each_dim(x, torch.all, dims, keepdim), BOOL_SAMPLES
)


def element_count(x: Node, dims: tuple[int, ...]) -> Node | float:
    """Return the number of elements in `dims` of `x`: a float if static, else a scalar node of x's dtype."""
    size: Dim = product(x.shape[d] for d in dims)
    return float(size) if isinstance(size, int) else as_dtype(dim_value(value=size), x.dtype)


def _mean(node: Node, x: Node) -> Node:
    dims = node.attrs["dims"]
    return div(sum_(x, dims=dims, keepdim=node.attrs["keepdim"]), element_count(x, dims))


def _var(node: Node, x: Node) -> Node:
    """Variance in two passes: deviations from the mean, then their squares (one pass over x^2 would cancel)."""
    dims, correction = node.attrs["dims"], node.attrs["correction"]
    deviation = sub(x, mean(x, dims=dims, keepdim=True))
    total = sum_(mul(deviation, deviation), dims=dims, keepdim=node.attrs["keepdim"])
    size = element_count(x, dims)
    if isinstance(size, float):
        return div(total, max(size - correction, 0.0))
    return div(total, sub(size, correction) if correction else size)


def shifted_logsumexp(x: Node, dims: Sequence[int]) -> Node:
    """log(sum(exp(x - m))) + m with the maximum m, or m = 0 if it is infinite (inf - inf would be NaN); keeps `dims`."""
    maximum = amax(x, dims=dims, keepdim=True)
    shift = where(eq(abs_(maximum), float("inf")), 0.0, maximum)
    return add(log(sum_(exp(sub(x, shift)), dims=dims, keepdim=True)), shift)


def _logsumexp(node: Node, x: Node) -> Node:
    return reshape(shifted_logsumexp(x, node.attrs["dims"]), shape=node.shape)


mean = declare_op(
    "mean", "x: float", Composite(in_f32(_mean)), type_rule=reduction_type(), attrs=ATTRS,
    reference=lambda x, dims, keepdim: torch.mean(x, dims, keepdim) if dims else x, samples=[*SAMPLES, *EMPTY_SAMPLES],
)  # fmt: skip
var = declare_op(
    "var", "x: float", Composite(in_f32(_var)), type_rule=reduction_type(), attrs={**ATTRS, "correction": 1},
    reference=lambda x, dims, keepdim, correction: torch.var(x, dims, correction=correction, keepdim=keepdim),
    samples=[
        sample_input("f32[4, 5]", dims=[1]), sample_input("f32[4, 5]", dims=[0], keepdim=True, correction=0),
        sample_input("f32[2, 3, 4]", dims=[1, 2], low=99.0, high=101.0), sample_input("bf16[3, 8]", dims=[1]),
        sample_input("f32[3, 8]", dims=[1], correction=2.5),
    ],
)  # fmt: skip
logsumexp = declare_op(
    "logsumexp", "x: float", Composite(in_f32(_logsumexp)), type_rule=reduction_type(), attrs=ATTRS,
    reference=lambda x, dims, keepdim: torch.logsumexp(x, dims, keepdim),
    samples=[sample_input("f32[4, 5]", dims=[1]), sample_input("f32[4, 5]", dims=[0], keepdim=True), sample_input("f32[2, 3, 4]", dims=[0, 2])],
)  # fmt: skip


def _argminmax_type(s: Signature) -> TensorType:
    check_dims(s, [s.attrs["dim"]])
    return TensorType(i64, reduced_shape(s.types[0].shape, [s.attrs["dim"]], s.attrs["keepdim"]))


def first_index(x: Node, extreme: Node, dim: int, keepdim: bool) -> Node:
    """Return the first index along `dim` at which `x` is its `extreme` value; NaN is more extreme than any number."""
    is_extreme = eq(x, extreme)
    if x.dtype.is_float:
        is_extreme = or_(is_extreme, isnan(x))
    extent, index = x.shape[dim], iota_along(x.shape, dim)
    end = scalar_constant(extent, i64) if isinstance(extent, int) else dim_value(value=extent)
    return amin(where(is_extreme, index, end), dims=(dim,), keepdim=keepdim)


def _first_minmax_index(extreme: Op) -> Callable[..., Node]:
    """Expansion to the first index of the extreme value."""

    def expand(node: Node, x: Node) -> Node:
        dim = node.attrs["dim"]
        return first_index(x, extreme(x, dims=(dim,), keepdim=True), dim, node.attrs["keepdim"])

    return expand


ARGMINMAX_SAMPLES = (
    sample_input("f32[4, 5]", dim=1), sample_input("f32[4, 5]", dim=0, keepdim=True), sample_input("i64[9, 3]", dim=0, low=0, high=3),
    sample_input("bf16[2, 40]", dim=1),
)  # fmt: skip
argmax = declare_op(
    "argmax", "x: number", Composite(_first_minmax_index(amax)), type_rule=_argminmax_type, attrs={"dim": REQUIRED, "keepdim": False},
    reference=torch.argmax, samples=ARGMINMAX_SAMPLES,
)  # fmt: skip
argmin = declare_op(
    "argmin", "x: number", Composite(_first_minmax_index(amin)), type_rule=_argminmax_type, attrs={"dim": REQUIRED, "keepdim": False},
    reference=torch.argmin, samples=ARGMINMAX_SAMPLES,
)  # fmt: skip


def _norm(node: Node, x: Node) -> Node:
    """Euclidean norm."""
    return sqrt(sum_(mul(x, x), dims=node.attrs["dims"], keepdim=node.attrs["keepdim"]))


norm = declare_op(
    "norm", "x: float", Composite(in_f32(_norm)), type_rule=reduction_type(), attrs=ATTRS,
    reference=lambda x, dims, keepdim: torch.linalg.vector_norm(x, 2, dims or None, keepdim) if dims else x.abs(),
    samples=[*SAMPLES, *EMPTY_SAMPLES],
)  # fmt: skip
