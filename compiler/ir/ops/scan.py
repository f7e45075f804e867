"""Scans: each result combines an element with all elements before it along a dimension.

Sums and products are carried in the next wider float type, as in PyTorch on CPUs: f32 for reduced floats, f64 for f32.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import torch

from compiler.ir import scalar
from compiler.ir.graph.node import REQUIRED, Node, Op, Signature
from compiler.ir.graph.op import declare_op, sample_input
from compiler.ir.graph.structure import IDENTITIES, BlockwiseScan, Composite, Scan, ScanAxis
from compiler.ir.ops.arithmetic import abs_, add, maximum, neg, sub
from compiler.ir.ops.creation import iota_along
from compiler.ir.ops.logic import eq, isnan, or_, where
from compiler.ir.ops.reductions import shifted_logsumexp
from compiler.ir.ops.rules import check_dims, same_type
from compiler.ir.ops.transcendental import exp, log1p
from compiler.ir.ops.views import expand
from compiler.ir.scalar import Const, Expr, call_primitive, const
from compiler.ir.types import DType, TensorType, f32, f64, i64

ATTRS = {"dim": REQUIRED, "reverse": False, "exclusive": False}


def scan_axis(node: Node) -> ScanAxis:
    """Return the dimension and direction of a scan from the node's attributes."""
    return ScanAxis(**{name: node.attrs[name] for name in ATTRS})


def scan_sum_dtype(dtype: DType) -> DType:
    """Return the dtype in which sums and products of `dtype` are carried."""
    return f64 if dtype == f32 else dtype.compute


def reduction_scan(combine: str, carried_dtype: Callable[[DType], DType] = attrgetter("compute")) -> Scan:
    """Return the scan of a reduction's operation `combine`, with a state of `carried_dtype(dtype of the node)`."""

    def initial(node: Node) -> tuple[Const, ...]:
        dtype = carried_dtype(node.dtype)
        return (const(IDENTITIES[combine](dtype), dtype),)

    return Scan(
        scan_axis, initial, lambda total, x: (call_primitive(combine, total, x.to(total.dtype)),), combine=combine
    )


def _scan_type(s: Signature) -> TensorType:
    check_dims(s, [s.attrs["dim"]])
    return same_type(s)


def _reference(inclusive: Callable[..., torch.Tensor], identity: float) -> Callable[..., torch.Tensor]:
    """Extend reference `inclusive(x, dim)` by the attributes `reverse` and `exclusive`."""

    def reference(x: torch.Tensor, dim: int, reverse: bool, exclusive: bool) -> torch.Tensor:
        y = inclusive(x.flip(dim) if reverse else x, dim)
        if exclusive and y.shape[dim]:
            first = torch.full_like(y.narrow(dim, 0, 1), identity)
            y = torch.cat([first, y.narrow(dim, 0, y.shape[dim] - 1)], dim)
        return y.flip(dim) if reverse else y

    return reference


SAMPLES = (
    sample_input("f32[4, 5]", dim=1), sample_input("f32[4, 5]", dim=0), sample_input("i64[2, 4, 3]", dim=1), sample_input("f32[0]", dim=0), sample_input("bf16[3, 9]", dim=1),
    sample_input("f32[3, 1]", dim=1), sample_input("f32[5, 6]", dim=1, reverse=True), sample_input("f32[5, 6]", dim=0, exclusive=True), sample_input("i32[7]", dim=0, reverse=True, exclusive=True),
)  # fmt: skip

cumsum = declare_op("cumsum", "x: number", reduction_scan("add", scan_sum_dtype), type_rule=_scan_type, attrs=ATTRS,
            reference=_reference(lambda x, dim: torch.cumsum(x, dim, dtype=x.dtype), 0), samples=SAMPLES)  # fmt: skip
cumprod = declare_op("cumprod", "x: number", reduction_scan("mul", scan_sum_dtype), type_rule=_scan_type, attrs=ATTRS,
             reference=_reference(lambda x, dim: torch.cumprod(x, dim, dtype=x.dtype), 1), samples=SAMPLES)  # fmt: skip


def _minmax_scan(name: str, combine: str, inclusive: Any) -> Op:
    def reference(x: torch.Tensor, dim: int, reverse: bool, exclusive: bool) -> torch.Tensor:
        limits = torch.iinfo(x.dtype) if not x.is_floating_point() else None
        lowest, highest = (limits.min, limits.max) if limits else (float("-inf"), float("inf"))
        scan = _reference(lambda x, dim: inclusive(x, dim)[0], highest if combine == "min" else lowest)
        return scan(x, dim, reverse, exclusive)

    return declare_op(name, "x: number", reduction_scan(combine), type_rule=_scan_type, attrs=ATTRS,
                      reference=reference, samples=SAMPLES)  # fmt: skip


cummax = _minmax_scan("cummax", "max", torch.cummax)
cummin = _minmax_scan("cummin", "min", torch.cummin)


def _index_type(s: Signature) -> TensorType:
    check_dims(s, [s.attrs["dim"]])
    return TensorType(i64, s.types[0].shape)


def _forward_fill_type(s: Signature) -> TensorType:
    here, x = s.types
    check_dims(s, [s.attrs["dim"]])
    if here.shape != x.shape:
        raise s.error("both operands need the same shape")
    return TensorType(x.dtype, x.shape)


def _zero_initial(node: Node) -> tuple[Const, ...]:
    return (const(0, node.dtype.compute),)


def _forward_fill_reference(here: torch.Tensor, x: torch.Tensor, dim: int) -> torch.Tensor:
    indices = torch.arange(x.shape[dim]).reshape([-1 if k == dim else 1 for k in range(x.ndim)])
    last = torch.cummax(torch.where(here, indices, -1), dim)[0]
    return torch.where(last < 0, torch.zeros_like(x), x.gather(dim, last.clamp(min=0)))


forward_fill = declare_op(
    "forward_fill", "here: bool, x: any",
    Scan(lambda n: ScanAxis(n.attrs["dim"]), _zero_initial, lambda last, here, x: (scalar.where(here, x, last),)),
    type_rule=_forward_fill_type, attrs={"dim": REQUIRED}, reference=_forward_fill_reference,
    samples=[sample_input("bool[4, 9]", "f32[4, 9]", dim=1), sample_input("bool[7, 2]", "i64[7, 2]", dim=0), sample_input("bool[9]", "bf16[9]", dim=0)],
)  # fmt: skip
"""Last element of `x` up to each position where `here` is true; 0 if there is none (`ffill` of pandas)."""


def _last_minmax_index(extreme: Op) -> Callable[..., Node]:
    """Expansion to the last index of the extreme value so far; NaN is more extreme than any number."""

    def expansion(node: Node, x: Node) -> Node:
        dim = node.attrs["dim"]
        here = eq(x, extreme(x, dim=dim))
        if x.dtype.is_float:
            here = or_(here, isnan(x))
        return forward_fill(here, expand(iota_along(x.shape, dim), shape=x.shape), dim=dim)

    return expansion


INDEX_SAMPLES = (
    sample_input("f32[4, 5]", dim=1), sample_input("i64[9, 3]", dim=0, low=0, high=3), sample_input("bf16[2, 40]", dim=1), sample_input("f32[0, 2]", dim=0),
)  # fmt: skip
cummax_index = declare_op("cummax_index", "x: number", Composite(_last_minmax_index(cummax)), type_rule=_index_type, attrs={"dim": REQUIRED},
                  reference=lambda x, dim: torch.cummax(x, dim)[1], samples=INDEX_SAMPLES)  # fmt: skip
"""Indices of the values of `cummax`: the last of equal ones, and the last NaN."""
cummin_index = declare_op("cummin_index", "x: number", Composite(_last_minmax_index(cummin)), type_rule=_index_type, attrs={"dim": REQUIRED},
                  reference=lambda x, dim: torch.cummin(x, dim)[1], samples=INDEX_SAMPLES)  # fmt: skip
"""Indices of the values of `cummin`: the last of equal ones, and the last NaN."""


def _logcumsumexp_initial(node: Node) -> tuple[Const, ...]:
    wide = node.dtype.compute
    return const(float("-inf"), wide), const(-1.0, f64)


def _logcumsumexp_step(top: Expr, others: Expr, x: Expr) -> tuple[Expr, Expr]:
    """Return the maximum so far, and the sum of exp(x - maximum) over all other elements.

    The sum is rescaled when the maximum grows.  It leaves out the maximum's own 1, which would round away tiny terms.
    Equal infinities count as distance 0.
    """
    scale = scalar.exp(scalar.where(top.eq(x), const(0.0, top.dtype), -scalar.absolute(top - x))).to(f64)
    return scalar.maximum(top, x), scalar.where(x > top, (others + 1) * scale, others + scale)


def _log_add_exp(x: Node, y: Node) -> Node:
    """Return log(exp(x) + exp(y)); equal infinities count as distance 0."""
    distance = where(eq(x, y), 0.0, abs_(sub(x, y)))
    return add(maximum(x, y), log1p(exp(neg(distance))))


logcumsumexp = declare_op(
    "logcumsumexp", "x: float",
    Scan(
        scan_axis, _logcumsumexp_initial, _logcumsumexp_step, lambda top, others: scalar.log1p(others.to(top.dtype)) + top,
        blockwise=BlockwiseScan(lambda x, d: shifted_logsumexp(x, [d]), _log_add_exp),
    ),
    type_rule=_scan_type, attrs=ATTRS, reference=_reference(torch.logcumsumexp, float("-inf")),
    samples=[s for s in SAMPLES if s.types[0].startswith(("f", "b"))],
)  # fmt: skip
