"""Reductions over windows of the last dimensions."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from compiler.ir.graph.node import REQUIRED, Node, Signature
from compiler.ir.graph.op import declare_op, sample_input
from compiler.ir.graph.structure import Guard, Position, Reduction, ReductionDomain
from compiler.ir.ops.rules import check_positive_attrs, implicit_padding, padded_extents, padding_guards, window_count
from compiler.ir.types import TensorType

ATTRS: dict[str, Any] = {"size": REQUIRED, "stride": REQUIRED, "dilation": REQUIRED, "before": (), "after": ()}
"""Windows, and how far they reach `before` and `after` the input (implicit padding), where elements are skipped."""


def _window_type(s: Signature) -> TensorType:
    x, attrs = s.types[0], [s.attrs[a] for a in ("size", "stride", "dilation")]
    count = len(attrs[0])
    if count > x.rank or any(len(a) != count for a in attrs):
        raise s.error("needs a stride and a dilation for every window dimension")
    check_positive_attrs(s)
    extents = padded_extents(s, x.shape[x.rank - count :])
    windows = tuple(window_count(s, *each) for each in zip(extents, *attrs, strict=True))
    return TensorType(x.dtype, (*x.shape[: x.rank - count], *windows))


def _window_domain(n: Node) -> ReductionDomain:
    size, stride, dilation = (n.attrs[a] for a in ("size", "stride", "dilation"))
    first, (before, _) = n.type.rank - len(size), implicit_padding(n, len(size))

    def inside(i: Position, r: Position) -> Position:
        terms = zip(i[first:], r, stride, dilation, before, strict=True)
        return tuple(w * s + o * d - b for w, o, s, d, b in terms)

    def guards(i: Position, r: Position) -> tuple[Guard, ...]:
        return padding_guards(n, inside(i, r), n.operands[0].shape[first:])

    return ReductionDomain(tuple(size), lambda i, r: ((*i[:first], *inside(i, r)),), guards)


def _padded(x: torch.Tensor, before: Any, after: Any, value: Any) -> torch.Tensor:
    """Return `x` with `before` and `after` elements of `value` around its last dimensions."""
    margins = [p for pair in reversed(list(zip(before, after, strict=True))) for p in pair]
    return F.pad(x, margins, value=value) if margins else x


def _windows(x: torch.Tensor, size: Any, stride: Any, dilation: Any) -> torch.Tensor:
    """View of `x` with the elements of each window as last dimensions."""
    first = x.ndim - len(size)
    for k, (n, s, d) in enumerate(zip(size, stride, dilation, strict=True)):
        x = x.unfold(first + k, d * (n - 1) + 1, s)[..., ::d]
    return x


def _sum_reference(x: torch.Tensor, size: Any, stride: Any, dilation: Any, before: Any, after: Any) -> torch.Tensor:
    x = _padded(x, before, after, 0)
    return _windows(x, size, stride, dilation).sum(tuple(range(-len(size), 0)), dtype=x.dtype)


def _max_reference(x: torch.Tensor, size: Any, stride: Any, dilation: Any, before: Any, after: Any) -> torch.Tensor:
    x = _padded(x, before, after, -torch.inf if x.is_floating_point() else torch.iinfo(x.dtype).min)
    if len(size) == 2 and x.ndim == 4 and x.is_floating_point() and x.numel():
        return F.max_pool2d(x, size, stride, 0, dilation)
    return _windows(x, size, stride, dilation).amax(tuple(range(-len(size), 0)))


SAMPLES = (
    sample_input("f32[2, 3, 8]", size=[3], stride=[2], dilation=[1]), sample_input("f32[1, 2, 7, 6]", size=[3, 2], stride=[2, 1], dilation=[1, 2]),
    sample_input("bf16[1, 2, 4, 4]", size=[2, 2], stride=[2, 2], dilation=[1, 1]), sample_input("f32[0, 5]", size=[2], stride=[1], dilation=[1]),
    sample_input("f32[2, 4, 4, 4]", size=[2, 2, 2], stride=[2, 2, 2], dilation=[1, 1, 1]),
    sample_input("f32[2, 7, 6]", size=[3, 3], stride=[2, 1], dilation=[1, 2], before=[1, 2], after=[2, 0]), sample_input("i32[2, 5]", size=[2], stride=[3], dilation=[1], before=[4], after=[2]),
)  # fmt: skip

max_pool = declare_op("max_pool", "x: number", Reduction("max", _window_domain), type_rule=_window_type, attrs=ATTRS, reference=_max_reference,
              samples=SAMPLES)  # fmt: skip
sum_pool = declare_op("sum_pool", "x: number", Reduction("add", _window_domain), type_rule=_window_type, attrs=ATTRS, reference=_sum_reference,
              samples=SAMPLES)  # fmt: skip
