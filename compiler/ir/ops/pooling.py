"""Reductions over windows of the last dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from compiler.ir.graph.node import REQUIRED, Node, Signature
from compiler.ir.graph.op import declare_op, sample_input
from compiler.ir.graph.structure import Position, Reduction, ReductionDomain
from compiler.ir.ops.rules import check_positive_attrs, window_count
from compiler.ir.symbolic.index_expr import Dim
from compiler.ir.types import TensorType

ATTRS: dict[str, Any] = {"size": REQUIRED, "stride": REQUIRED, "dilation": REQUIRED}


def _window_type(s: Signature) -> TensorType:
    x, attrs = s.types[0], [s.attrs[a] for a in ATTRS]
    count = len(attrs[0])
    if count > x.rank or any(len(a) != count for a in attrs):
        raise s.error("needs a stride and a dilation for every window dimension")
    check_positive_attrs(s)
    windows = tuple(window_count(s, *each) for each in zip(x.shape[x.rank - count :], *attrs, strict=True))
    return TensorType(x.dtype, (*x.shape[: x.rank - count], *windows))


def window_index(
    window: Sequence[Dim], offset: Sequence[Dim], stride: Sequence[int], dilation: Sequence[int]
) -> Position:
    """Return the input index of element `offset` of window `window`."""
    return tuple(w * s + o * d for w, o, s, d in zip(window, offset, stride, dilation, strict=True))


def _window_domain(n: Node) -> ReductionDomain:
    size, stride, dilation = (n.attrs[a] for a in ATTRS)
    first = n.type.rank - len(size)
    return ReductionDomain(tuple(size), lambda i, r: ((*i[:first], *window_index(i[first:], r, stride, dilation)),))


def _windows(x: torch.Tensor, size: Any, stride: Any, dilation: Any) -> torch.Tensor:
    """View of `x` with the elements of each window as last dimensions."""
    first = x.ndim - len(size)
    for k, (n, s, d) in enumerate(zip(size, stride, dilation, strict=True)):
        x = x.unfold(first + k, d * (n - 1) + 1, s)[..., ::d]
    return x


def _sum_reference(x: torch.Tensor, size: Any, stride: Any, dilation: Any) -> torch.Tensor:
    return _windows(x, size, stride, dilation).sum(tuple(range(-len(size), 0)), dtype=x.dtype)


def _max_reference(x: torch.Tensor, size: Any, stride: Any, dilation: Any) -> torch.Tensor:
    if len(size) == 2 and x.ndim == 4 and x.is_floating_point() and x.numel():
        return F.max_pool2d(x, size, stride, 0, dilation)
    return _windows(x, size, stride, dilation).amax(tuple(range(-len(size), 0)))


SAMPLES = (
    sample_input("f32[2, 3, 8]", size=[3], stride=[2], dilation=[1]), sample_input("f32[1, 2, 7, 6]", size=[3, 2], stride=[2, 1], dilation=[1, 2]),
    sample_input("bf16[1, 2, 4, 4]", size=[2, 2], stride=[2, 2], dilation=[1, 1]), sample_input("f32[0, 5]", size=[2], stride=[1], dilation=[1]),
    sample_input("f32[2, 4, 4, 4]", size=[2, 2, 2], stride=[2, 2, 2], dilation=[1, 1, 1]),
)  # fmt: skip

max_pool = declare_op("max_pool", "x: number", Reduction("max", _window_domain), type_rule=_window_type, attrs=ATTRS, reference=_max_reference,
              samples=SAMPLES)  # fmt: skip
sum_pool = declare_op("sum_pool", "x: number", Reduction("add", _window_domain), type_rule=_window_type, attrs=ATTRS, reference=_sum_reference,
              samples=SAMPLES)  # fmt: skip
