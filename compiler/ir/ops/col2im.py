"""Sums of overlapping windows: what a transposed convolution does after its products."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import gcd
from typing import Any

import torch

from compiler.ir.graph.node import REQUIRED, Node, Signature
from compiler.ir.graph.op import declare_op, sample_input
from compiler.ir.graph.structure import Guard, Position, Reduction, ReductionDomain
from compiler.ir.ops.rules import check_lengths, check_positive_attrs
from compiler.ir.symbolic.index_expr import Dim, ceildiv, floordiv, mod
from compiler.ir.types import TensorType


def _type(s: Signature) -> TensorType:
    check_positive_attrs(s)
    x, spatial = s.types[0], len(s.attrs["stride"])
    if not spatial or x.rank != 2 + 2 * spatial:
        raise s.error("takes [batch, channels, *window, *image] with a stride per image dimension")
    check_lengths(s, spatial, ["dilation", "start", "size"])
    if None in map(common_divisor, s.attrs["stride"], s.attrs["dilation"]):
        raise s.error("stride and dilation must be known, or one of them 1")
    return TensorType(x.dtype, (*x.shape[:2], *s.attrs["size"]))


def common_divisor(stride: Dim, dilation: Dim) -> int | None:
    """Return the greatest common divisor, or None if dynamic sizes do not tell it."""
    if 1 in (stride, dilation):
        return 1
    return gcd(stride, dilation) if isinstance(stride, int) and isinstance(dilation, int) else None


def window_tap(position: Dim, step: Dim, window: Dim, stride: Dim, dilation: Dim = 1) -> tuple[Dim, Dim]:
    """Return the tap and the window, in numbers from 0, of term `step` of the sum for a result at `position`.

    Tap `k` of window `l` lies at `l * stride + k * dilation`.  Solutions of `position` are `stride / gcd(stride, dilation)`
    taps apart; there are at most `ceil(window / that)`.  Windows ascend with `step`.
    """
    common = common_divisor(stride, dilation)
    assert common is not None
    period, first, start = stride // common, floordiv(position, common), position
    if common not in (stride, dilation):
        assert isinstance(dilation, int)
        assert isinstance(period, int)
        first *= pow(dilation // common, -1, period)
        start -= mod(first, period) * dilation  # a multiple of the stride
    missing = ceildiv(window, period) - 1 - step
    return mod(first, period) + missing * period, floordiv(start, stride) - missing * (dilation // common)


def _domain(n: Node) -> ReductionDomain:
    a, spatial = n.attrs, len(n.attrs["stride"])
    window, image = n.operands[0].shape[2 : 2 + spatial], n.operands[0].shape[2 + spatial :]
    commons = [c for c in map(common_divisor, a["stride"], a["dilation"]) if c]

    def terms(i: Position, r: Position) -> list[tuple[Dim, Dim]]:
        dims = zip(i[2:], a["start"], r, window, a["stride"], a["dilation"], strict=True)
        return [window_tap(d + b, t, k, s, e) for d, b, t, k, s, e in dims]

    def positions(i: Position, r: Position) -> tuple[Position, ...]:
        taps, windows = zip(*terms(i, r), strict=True)
        return ((*i[:2], *taps, *windows),)

    def guards(i: Position, r: Position) -> Iterator[Guard]:
        dims = zip(terms(i, r), i[2:], a["start"], window, image, a["stride"], commons, strict=True)
        for (tap, number), d, b, k, count, s, common in dims:
            if common > 1:
                yield Guard(mod(d + b, common), 0, 1)
            if not isinstance(k, int) or k % (s // common):
                yield Guard(tap, 0, k)
            yield Guard(number, 0, count)

    extents = tuple(ceildiv(k, s // g) for k, s, g in zip(window, a["stride"], commons, strict=True))
    return ReductionDomain(extents, positions, lambda i, r: tuple(guards(i, r)))


def _reference(x: torch.Tensor, stride: Any, dilation: Any, start: Any, size: Any) -> torch.Tensor:
    spatial = len(stride)
    ends = [b + n for b, n in zip(start, size, strict=True)]
    reach = zip(x.shape[2:], x.shape[2 + spatial :], stride, dilation, strict=False)
    full = [max(e, (count - 1) * s + (k - 1) * d + 1) for e, (k, count, s, d) in zip(ends, reach, strict=True)]
    y = x.new_zeros((*x.shape[:2], *full))
    for tap in product(*map(range, x.shape[2 : 2 + spatial])):
        dims = zip(tap, x.shape[2 + spatial :], stride, dilation, strict=True)
        places: Any = (..., *(slice(t * d, t * d + (n - 1) * s + 1 if n else t * d, s) for t, n, s, d in dims))
        of_tap: Any = (slice(None), slice(None), *tap)
        y[places] += x[of_tap]
    kept: Any = (..., *(slice(b, e) for b, e in zip(start, ends, strict=True)))
    return y[kept]


col2im = declare_op(
    "col2im", "x: number", Reduction("add", _domain), type_rule=_type,
    attrs={"stride": REQUIRED, "dilation": REQUIRED, "start": REQUIRED, "size": REQUIRED}, reference=_reference,
    samples=[
        sample_input("f32[2, 3, 4, 6]", stride=[2], dilation=[1], start=[1], size=[11]),
        sample_input("f32[1, 2, 3, 3, 4, 5]", stride=[2, 1], dilation=[1, 1], start=[1, 0], size=[8, 9]),
        sample_input("f32[1, 2, 2, 3, 4, 3]", stride=[3, 2], dilation=[1, 3], start=[0, 2], size=[13, 8]),
        sample_input("f32[1, 1, 3, 2, 4, 3]", stride=[4, 2], dilation=[2, 2], start=[0, 1], size=[18, 5]),
        sample_input("f32[1, 2, 2, 1, 3, 2, 2, 3]", stride=[1, 2, 2], dilation=[2, 1, 1], start=[0, 0, 1], size=[4, 4, 6]),
        sample_input("i32[1, 2, 3, 4]", stride=[2], dilation=[1], start=[0], size=[9]),
        sample_input("f32[0, 2, 3, 4]", stride=[1], dilation=[1], start=[0], size=[6]),
    ],
)  # fmt: skip
"""Overlapping windows [batch, channels, *window, *image] added into images (`torch.nn.functional.fold`).

Tap `k` of window `l` is added to element `l * stride + k * dilation - start`; what lies outside `size` is left out."""
