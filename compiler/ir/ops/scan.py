"""Scans: every element is combined with all that come before it along a dimension.

Sums and products carry the next wider float type, as PyTorch does on a CPU: f32 for half types, f64 for f32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from compiler.ir import scalar
from compiler.ir.graph import Node
from compiler.ir.op import REQUIRED, Op, Signature, op, sample
from compiler.ir.ops.creation import iota
from compiler.ir.ops.logic import eq, isnan, or_
from compiler.ir.ops.rules import check_dims, same_type
from compiler.ir.ops.views import expand, reshape
from compiler.ir.scalar import Const, Expr, call, const
from compiler.ir.structure import IDENTITIES, Along, Composite, Scan
from compiler.ir.tile import accumulator_dtype
from compiler.ir.types import DType, TensorType, f32, f64, i64

ATTRS = {"dim": REQUIRED, "reverse": False, "exclusive": False}


def along(node: Node) -> Along:
    """The walk that the attributes ask for."""
    return Along(**{name: node.attrs[name] for name in ATTRS})


def running_total(dtype: DType) -> DType:
    """The type in which sums and products of `dtype` are carried."""
    return f64 if dtype == f32 else accumulator_dtype(dtype)


def combining(combine: str, carried: Callable[[DType], DType] = accumulator_dtype) -> Scan:
    """A scan with one of the reductions' operations."""

    def initial(node: Node) -> tuple[Const, ...]:
        dtype = carried(node.dtype)
        return (const(IDENTITIES[combine](dtype), dtype),)

    return Scan(along, initial, lambda total, x: (call(combine, total, x.to(total.dtype)),), combine=combine)


def _scan_type(s: Signature) -> TensorType:
    check_dims(s, [s.attrs["dim"]])
    return same_type(s)


def _reference(inclusive: Callable[..., torch.Tensor], identity: float) -> Callable[..., torch.Tensor]:
    """`inclusive(x, dim)` for every choice of attributes."""

    def reference(x: torch.Tensor, dim: int, reverse: bool, exclusive: bool) -> torch.Tensor:
        y = inclusive(x.flip(dim) if reverse else x, dim)
        if exclusive and y.shape[dim]:
            first = torch.full_like(y.narrow(dim, 0, 1), identity)
            y = torch.cat([first, y.narrow(dim, 0, y.shape[dim] - 1)], dim)
        return y.flip(dim) if reverse else y

    return reference


SAMPLES = (
    sample("f32[4, 5]", dim=1), sample("f32[4, 5]", dim=0), sample("i64[2, 4, 3]", dim=1), sample("f32[0]", dim=0), sample("bf16[3, 9]", dim=1),
    sample("f32[3, 1]", dim=1), sample("f32[5, 6]", dim=1, reverse=True), sample("f32[5, 6]", dim=0, exclusive=True), sample("i32[7]", dim=0, reverse=True, exclusive=True),
)  # fmt: skip

cumsum = op("cumsum", "x: number", combining("add", running_total), type=_scan_type, attrs=ATTRS,
            reference=_reference(lambda x, dim: torch.cumsum(x, dim, dtype=x.dtype), 0), samples=SAMPLES)  # fmt: skip
cumprod = op("cumprod", "x: number", combining("mul", running_total), type=_scan_type, attrs=ATTRS,
             reference=_reference(lambda x, dim: torch.cumprod(x, dim, dtype=x.dtype), 1), samples=SAMPLES)  # fmt: skip


def _extreme(name: str, combine: str, inclusive: Any) -> Op:
    def reference(x: torch.Tensor, dim: int, reverse: bool, exclusive: bool) -> torch.Tensor:
        ends = (
            (float("-inf"), float("inf"))
            if x.is_floating_point()
            else (torch.iinfo(x.dtype).min, torch.iinfo(x.dtype).max)
        )
        scan = _reference(lambda x, dim: inclusive(x, dim)[0], ends[combine == "min"])
        return scan(x, dim, reverse, exclusive)

    return op(name, "x: number", combining(combine), type=_scan_type, attrs=ATTRS, reference=reference, samples=SAMPLES)


cummax = _extreme("cummax", "max", torch.cummax)
cummin = _extreme("cummin", "min", torch.cummin)


def _place_type(s: Signature) -> TensorType:
    check_dims(s, [s.attrs["dim"]])
    return TensorType(i64, s.types[0].shape)


def _latest_type(s: Signature) -> TensorType:
    here, x = s.types
    check_dims(s, [s.attrs["dim"]])
    if here.shape != x.shape:
        raise s.fail("both operands need the same shape")
    return TensorType(x.dtype, x.shape)


def _nothing(node: Node) -> tuple[Const, ...]:
    return (const(0, accumulator_dtype(node.dtype)),)


def _latest_reference(here: torch.Tensor, x: torch.Tensor, dim: int) -> torch.Tensor:
    places = torch.arange(x.shape[dim]).reshape([-1 if k == dim else 1 for k in range(x.ndim)])
    last = torch.cummax(torch.where(here, places, -1), dim)[0]
    return torch.where(last < 0, torch.zeros_like(x), x.gather(dim, last.clamp(min=0)))


latest = op(
    "latest", "here: bool, x: any",
    Scan(lambda n: Along(n.attrs["dim"]), _nothing, lambda last, here, x: (scalar.where(here, x, last),)),
    type=_latest_type, attrs={"dim": REQUIRED}, reference=_latest_reference,
    samples=[sample("bool[4, 9]", "f32[4, 9]", dim=1), sample("bool[7, 2]", "i64[7, 2]", dim=0), sample("bool[9]", "bf16[9]", dim=0)],
)  # fmt: skip
"""The element of `x` where `here` held last; 0 before it first does."""


def _last_extreme(extreme: Op) -> Callable[..., Node]:
    """Where the extreme so far was met last: an element equal to it, or a NaN, is there itself."""

    def expansion(node: Node, x: Node) -> Node:
        dim = node.attrs["dim"]
        here = eq(x, extreme(x, dim=dim))
        if x.dtype.is_float:
            here = or_(here, isnan(x))
        extent = x.shape[dim]
        place = reshape(iota(size=extent), shape=tuple(extent if k == dim else 1 for k in range(x.type.rank)))
        return latest(here, expand(place, shape=x.shape), dim=dim)

    return expansion


PLACES = (
    sample("f32[4, 5]", dim=1), sample("i64[9, 3]", dim=0, low=0, high=3), sample("bf16[2, 40]", dim=1), sample("f32[0, 2]", dim=0),
)  # fmt: skip
cummax_index = op("cummax_index", "x: number", Composite(_last_extreme(cummax)), type=_place_type, attrs={"dim": REQUIRED},
                  reference=lambda x, dim: torch.cummax(x, dim)[1], samples=PLACES)  # fmt: skip
"""Where `cummax` found its values: the last of equals, and the last NaN."""
cummin_index = op("cummin_index", "x: number", Composite(_last_extreme(cummin)), type=_place_type, attrs={"dim": REQUIRED},
                  reference=lambda x, dim: torch.cummin(x, dim)[1], samples=PLACES)  # fmt: skip
"""Where `cummin` found its values."""


def _exponents(node: Node) -> tuple[Const, ...]:
    wide = accumulator_dtype(node.dtype)
    return const(float("-inf"), wide), const(-1.0, f64)


def _add_exponential(top: Expr, rest: Expr, x: Expr) -> tuple[Expr, Expr]:
    """The maximum so far, and the sum of exp(x - maximum) over all elements but that one, scaled down where the maximum has grown.

    Without the maximum's own 1, a tiny rest beside it is not rounded away.  Equal infinities are no distance apart.
    """
    down = scalar.exp(scalar.where(top.eq(x), const(0.0, top.dtype), -scalar.absolute(top - x))).to(f64)
    return scalar.maximum(top, x), scalar.where(x > top, (rest + 1) * down, rest + down)


logcumsumexp = op(
    "logcumsumexp", "x: float",
    Scan(along, _exponents, _add_exponential, lambda top, rest: scalar.log1p(rest.to(top.dtype)) + top),
    type=_scan_type, attrs=ATTRS, reference=_reference(torch.logcumsumexp, float("-inf")),
    samples=[s for s in SAMPLES if s.types[0].startswith(("f", "b"))],
)  # fmt: skip
