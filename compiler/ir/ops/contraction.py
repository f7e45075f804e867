"""Matrix products and convolutions: sums of products over affine-indexed operands."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F

from compiler.ir.graph.node import REQUIRED, Node, Signature
from compiler.ir.graph.op import declare_op, sample_input
from compiler.ir.graph.structure import Composite, Guard, Position, Reduction, ReductionDomain
from compiler.ir.ops.arithmetic import add
from compiler.ir.ops.cast import as_dtype
from compiler.ir.ops.col2im import window_tap
from compiler.ir.ops.concat_pad import pad
from compiler.ir.ops.rules import (
    check_lengths,
    check_positive_attrs,
    implicit_padding,
    padded_extents,
    padding_guards,
    window_count,
)
from compiler.ir.ops.views import flip, permute, reshape, slice_
from compiler.ir.symbolic.index_expr import Dim, ceildiv, floordiv
from compiler.ir.torch_types import to_torch
from compiler.ir.types import DType, TensorType, broadcast_index, broadcast_shapes, f32, i32


def sum_dtype(s: Signature) -> DType:
    """Result dtype of a sum of products: attribute `dtype`, if given, else the operands' dtype.

    `dtype` must include every number of both; raises TypeRuleError otherwise.
    """
    lhs, rhs = (t.dtype for t in s.types[:2])
    result: DType = s.attrs.get("dtype") or lhs
    if not (result.includes(lhs) and result.includes(rhs)):
        raise s.error(f"products of {lhs} and {rhs} cannot be summed in {result}; insert a cast, or give a wider dtype")
    return result


def _matmul_type(s: Signature) -> TensorType:
    x, y = s.types
    if x.rank < 2 or y.rank < 2:
        raise s.error("takes matrices or batches of matrices")
    if x.shape[-1] != y.shape[-2]:
        raise s.error(f"inner dimensions differ: {x.shape[-1]} columns, {y.shape[-2]} rows")
    try:
        batch = broadcast_shapes(x.shape[:-2], y.shape[:-2])
    except ValueError as error:
        raise s.error(str(error)) from None
    return TensorType(sum_dtype(s), (*batch, x.shape[-2], y.shape[-1]))


def _matmul_domain(n: Node) -> ReductionDomain:
    x, y = (o.shape for o in n.operands)

    def positions(i: Position, r: Position) -> tuple[Position, ...]:
        *batch, row, column = i
        return (*broadcast_index(x[:-2], batch), row, r[0]), (*broadcast_index(y[:-2], batch), r[0], column)

    return ReductionDomain((x[-1],), positions)


def _matmul_reference(x: torch.Tensor, y: torch.Tensor, dtype: DType | None) -> torch.Tensor:
    return torch.matmul(x, y) if dtype is None else torch.matmul(x.to(to_torch(dtype)), y.to(to_torch(dtype)))


matmul = declare_op(
    "matmul", "x: number, y!: number", Reduction("add", _matmul_domain, lambda x, y: x * y),
    type_rule=_matmul_type, attrs={"dtype": None}, reference=_matmul_reference,
    samples=[
        sample_input("f32[4, 6]", "f32[6, 5]"), sample_input("f32[2, 4, 6]", "f32[2, 6, 5]"), sample_input("f32[3, 1, 2, 4]", "f32[2, 4, 5]"),
        sample_input("f32[2, 4, 6]", "f32[6, 5]"), sample_input("i64[3, 4]", "i64[4, 2]"), sample_input("bf16[4, 32]", "bf16[32, 5]"),
        sample_input("f32[3, 0]", "f32[0, 2]"), sample_input("f32[0, 3]", "f32[3, 2]"), sample_input("bf16[4, 32]", "bf16[32, 5]", dtype=f32),
        sample_input("u8[4, 6]", "i8[6, 5]", dtype=i32), sample_input("f32[4, 6]", "i8[6, 5]", dtype=f32),
    ],
)  # fmt: skip
"""Batched matrix product.  `dtype` is the result's if it is wider than the operands': the sum before rounding."""


def _sum_dtype_before_bias(dtype: DType) -> DType | None:
    """f32 for reduced floats, else None: attribute `dtype` of a `matmul` or `conv` whose sum a bias is added to before rounding."""
    return f32 if dtype.is_reduced_float else None


def _linear_type(s: Signature) -> TensorType:
    x, weight = s.types[0], s.types[1]
    if weight.rank != 2 or x.rank < 1 or x.shape[-1] != weight.shape[1]:
        raise s.error(f"a weight of shape {list(weight.shape)} does not match x of shape {list(x.shape)}")
    if len(s.types) > 2 and s.types[2].shape not in ((weight.shape[0],), (1,), ()):
        raise s.error(f"the bias must have {weight.shape[0]} elements")
    return TensorType(x.dtype, (*x.shape[:-1], weight.shape[0]))


def _linear(node: Node, x: Node, weight: Node, bias: Node | None = None) -> Node:
    rows = x if x.type.rank > 1 else reshape(x, shape=(1, *x.shape))
    wide = _sum_dtype_before_bias(x.dtype) if bias is not None else None
    y = matmul(rows, permute(weight, dims=(1, 0)), dtype=wide)
    if bias is not None:
        y = as_dtype(add(y, as_dtype(bias, y.dtype)), node.dtype)
    return y if x.type.rank > 1 else reshape(y, shape=node.shape)


linear = declare_op(
    "linear", "x: number, weight: number, bias?: number", Composite(_linear), type_rule=_linear_type,
    reference=lambda x, weight, bias=None: F.linear(x, weight, bias),
    samples=[
        sample_input("f32[4, 6]", "f32[5, 6]"), sample_input("f32[2, 4, 6]", "f32[5, 6]", "f32[5]"), sample_input("f32[6]", "f32[5, 6]", "f32[5]"),
        sample_input("bf16[4, 32]", "bf16[5, 32]", "bf16[5]"), sample_input("f32[0, 6]", "f32[5, 6]", "f32[5]"),
    ],
)  # fmt: skip
"""x @ weight^T + bias for a weight [outputs, inputs]."""


CONV_ATTRS: dict[str, Any] = {"stride": REQUIRED, "dilation": REQUIRED, "groups": 1}


def _check_groups(s: Signature, channels: Dim) -> None:
    """Raise TypeRuleError unless the channels divide evenly into groups."""
    if isinstance(channels, int) and channels % s.attrs["groups"]:
        raise s.error(f"{channels} channels are not divisible into {s.attrs['groups']} groups")


def _conv_type(s: Signature) -> TensorType:
    check_positive_attrs(s)
    x, w, groups = s.types[0], s.types[1], s.attrs["groups"]
    spatial = x.rank - 2
    if w.rank != x.rank or spatial < 1 or not len(s.attrs["stride"]) == len(s.attrs["dilation"]) == spatial:
        layout = "[batch, channels, ...] and [outputs, channels / groups, ...]"
        raise s.error(f"takes {layout} with a stride and a dilation per window dimension")
    if x.shape[1] != w.shape[1] * groups or (isinstance(w.shape[0], int) and w.shape[0] % groups):
        raise s.error(f"{x.shape[1]} channels in {groups} groups do not match a weight of shape {list(w.shape)}")
    sizes = zip(padded_extents(s, x.shape[2:]), w.shape[2:], s.attrs["stride"], s.attrs["dilation"], strict=True)
    return TensorType(sum_dtype(s), (x.shape[0], w.shape[0], *(window_count(s, *size) for size in sizes)))


def _conv_domain(n: Node) -> ReductionDomain:
    x, w = (o.shape for o in n.operands)
    stride, dilation, groups = n.attrs["stride"], n.attrs["dilation"], n.attrs["groups"]
    before, _ = implicit_padding(n, len(stride))
    outputs_per_group = w[0] // groups

    def image(window: Position, tap: Position) -> Position:
        terms = zip(window, stride, tap, dilation, before, strict=True)
        return tuple(i * s + t * d - b for i, s, t, d, b in terms)

    def guards(i: Position, r: Position) -> tuple[Guard, ...]:
        return padding_guards(n, image(i[2:], r[1:]), x[2:])

    def positions(i: Position, r: Position) -> tuple[Position, ...]:
        batch, out, *window = i
        channel, *tap = r
        first = out // outputs_per_group * w[1] if groups > 1 else 0
        return (batch, first + channel, *image(tuple(window), tuple(tap))), (out, channel, *tap)

    return ReductionDomain(tuple(w[1:]), positions, guards)


def _conv_reference(
    x: torch.Tensor,
    w: torch.Tensor,
    stride: Any,
    dilation: Any,
    groups: int,
    before: Any,
    after: Any,
    dtype: DType | None,
) -> torch.Tensor:
    if dtype is not None:
        x, w = x.to(to_torch(dtype)), w.to(to_torch(dtype))
    if before:
        margins = [p for pair in reversed(list(zip(before, after, strict=True))) for p in pair]
        if not bool(w.isfinite().all()):
            inside = F.pad(torch.ones_like(x[:1, :1]), margins)
            return _sum_of_taps(F.pad(x, margins), w, stride, dilation, groups, inside)
        x = F.pad(x, margins)
    return torch.convolution(x, w, None, stride, [0] * len(stride), dilation, False, [0] * len(stride), groups)


def _sum_of_taps(
    x: torch.Tensor, w: torch.Tensor, stride: Any, dilation: Any, groups: int, inside: torch.Tensor
) -> torch.Tensor:
    """Convolution one tap at a time, without taps where `inside` is 0: padding times infinite weights would be NaN."""
    zeros, ones, spatial = [0] * len(stride), [1] * len(stride), w.shape[2:]
    sizes = [(n - d * (k - 1) - 1) // s + 1 for n, k, s, d in zip(x.shape[2:], spatial, stride, dilation, strict=True)]
    total = x.new_zeros((x.shape[0], w.shape[0], *sizes))
    for tap in product(*map(range, spatial)):
        dims = zip(tap, sizes, stride, dilation, strict=True)
        image: Any = (..., *(slice(t * d, t * d + (n - 1) * s + 1, s) for t, n, s, d in dims))
        weight: Any = (..., *(slice(t, t + 1) for t in tap))
        term = torch.convolution(x[image], w[weight], None, ones, zeros, ones, False, zeros, groups)
        total = total + torch.where(inside[image] > 0, term, 0)
    return total


conv = declare_op(
    "conv", "x: number, weight!: number", Reduction("add", _conv_domain, lambda x, w: x * w),
    type_rule=_conv_type, attrs={**CONV_ATTRS, "before": (), "after": (), "dtype": None}, reference=_conv_reference,
    samples=[
        sample_input("f32[2, 3, 8]", "f32[4, 3, 3]", stride=[2], dilation=[1]),
        sample_input("f32[1, 4, 7, 6]", "f32[6, 2, 3, 2]", stride=[1, 2], dilation=[2, 1], groups=2),
        sample_input("f32[1, 3, 5, 5]", "f32[3, 1, 3, 3]", stride=[1, 1], dilation=[1, 1], groups=3),
        sample_input("bf16[1, 4, 5, 5]", "bf16[2, 4, 3, 3]", stride=[1, 1], dilation=[1, 1]),
        sample_input("f32[1, 2, 4, 4, 4]", "f32[2, 2, 2, 2, 2]", stride=[2, 1, 1], dilation=[1, 1, 1]),
        sample_input("f32[0, 2, 5]", "f32[3, 2, 3]", stride=[1], dilation=[1]),
        sample_input("f32[2, 3, 8]", "f32[4, 3, 4]", stride=[2], dilation=[2], before=[3], after=[1]),
        sample_input("f32[1, 4, 7, 6]", "f32[6, 2, 3, 2]", stride=[1, 2], dilation=[5, 1], groups=2, before=[5, 0], after=[7, 2]),
        sample_input("u8[1, 4, 5, 4]", "i8[2, 4, 3, 3]", stride=[1, 1], dilation=[1, 1], before=[1, 1], after=[1, 1], dtype=i32),
        sample_input("f32[1, 2, 3, 2, 4]", "f32[2, 2, 3, 3, 2]", stride=[1, 1, 2], dilation=[1, 1, 1], before=[1, 0, 2], after=[1, 3, 2]),
    ],
)  # fmt: skip
"""Convolution (cross-correlation) over any number of window dimensions.

Windows may reach `before` and `after` elements beyond the image (implicit padding); taps there are skipped, not multiplied by 0."""


def _convolution_type(s: Signature) -> TensorType:
    x, padding = s.types[0], s.attrs["padding"]
    check_lengths(s, x.rank - 2, ["padding"])
    padded = (*x.shape[:2], *(d + 2 * p for d, p in zip(x.shape[2:], padding, strict=True)))
    attrs = {k: s.attrs[k] for k in CONV_ATTRS}
    result = _conv_type(Signature(s.op, (TensorType(x.dtype, padded), s.types[1]), attrs))
    _check_bias(s, result.shape[1])
    return result


def _check_bias(s: Signature, channels: Dim) -> None:
    """Raise TypeRuleError unless operand 2, if present, has shape [channels]."""
    if len(s.types) > 2 and s.types[2].shape != (channels,):
        raise s.error(f"the bias must have {channels} elements")


def _with_bias(y: Node, bias: Node | None, dtype: DType) -> Node:
    """Return `y` plus a bias per channel, rounded to `dtype` once."""
    if bias is None:
        return y
    per_channel = reshape(as_dtype(bias, y.dtype), shape=(*bias.shape, *(1,) * (y.type.rank - 2)))
    return as_dtype(add(y, per_channel), dtype)


def pad_spatial(x: Node, low: Sequence[Dim], high: Sequence[Dim], value: float = 0) -> Node:
    """Pad the last `len(low)` dimensions of `x` with `low` elements before and `high` elements after."""
    if not any(p != 0 for p in (*low, *high)):
        return x
    leading = (0,) * (x.type.rank - len(low))
    return pad(x, before=(*leading, *low), after=(*leading, *high), value=value)


def _convolution(node: Node, x: Node, weight: Node, bias: Node | None = None) -> Node:
    padding = node.attrs["padding"]
    wide = _sum_dtype_before_bias(x.dtype) if bias is not None else None
    attrs = {k: node.attrs[k] for k in CONV_ATTRS}
    return _with_bias(conv(pad_spatial(x, padding, padding), weight, **attrs, dtype=wide), bias, node.dtype)


def _convolution_reference(
    x: Any, weight: Any, bias: Any = None, *, stride: Any, padding: Any, dilation: Any, groups: int
) -> Any:
    return torch.convolution(x, weight, bias, stride, padding, dilation, False, [0] * len(stride), groups)


convolution = declare_op(
    "convolution", "x: number, weight: number, bias?: number", Composite(_convolution), type_rule=_convolution_type,
    attrs={**CONV_ATTRS, "padding": REQUIRED}, reference=_convolution_reference,
    samples=[
        sample_input("f32[2, 3, 8]", "f32[4, 3, 3]", "f32[4]", stride=[2], padding=[1], dilation=[1]),
        sample_input("f32[1, 4, 7, 6]", "f32[6, 2, 3, 3]", stride=[1, 2], padding=[2, 0], dilation=[2, 1], groups=2),
        sample_input("bf16[1, 3, 5, 5]", "bf16[3, 1, 3, 3]", "bf16[3]", stride=[1, 1], padding=[1, 1], dilation=[1, 1], groups=3),
    ],
)  # fmt: skip


def _transposed_type(s: Signature) -> TensorType:
    check_positive_attrs(s)
    x, w, a = s.types[0], s.types[1], s.attrs
    if w.rank != x.rank or x.rank < 3 or x.shape[1] != w.shape[0]:
        raise s.error("takes [batch, channels, ...] and [channels, outputs / groups, ...]")
    _check_groups(s, x.shape[1])
    check_lengths(s, x.rank - 2, ["stride", "dilation", "padding", "output_padding"])
    sizes = zip(x.shape[2:], w.shape[2:], a["stride"], a["padding"], a["dilation"], a["output_padding"], strict=True)
    spatial = tuple((n - 1) * st - 2 * p + d * (k - 1) + extra + 1 for n, k, st, p, d, extra in sizes)
    _check_bias(s, w.shape[1] * a["groups"])
    return TensorType(x.dtype, (x.shape[0], w.shape[1] * a["groups"], *spatial))


def _phases_type(s: Signature) -> TensorType:
    check_positive_attrs(s)
    x, w, size = s.types[0], s.types[1], s.attrs["size"]
    groups = s.attrs["groups"]
    if w.rank != x.rank or x.rank < 3 or x.shape[1] != w.shape[0]:
        raise s.error("takes [batch, channels, ...] and [channels, outputs / groups, ...]")
    check_lengths(s, x.rank - 2, ["stride", "start", "size"])
    _check_groups(s, x.shape[1])
    dims = zip(x.shape[2:], w.shape[2:], size, s.attrs["stride"], s.attrs["start"], strict=True)
    for n, k, count, step, start in dims:
        if not all(isinstance(d, int) for d in (n, k, count, step, start)):
            continue
        end = start + count
        if start < 0 or count < 0 or (count and (end - 1) // step - (-k // step) > n):
            raise s.error(
                f"an input of {n} is too small for results {start}..{end - 1} of windows of {k}, stride {step}"
            )
    return TensorType(sum_dtype(s), (x.shape[0], w.shape[1] * groups, *size))


def _phases_domain(n: Node) -> ReductionDomain:
    w, stride, start, groups = n.operands[1].shape, n.attrs["stride"], n.attrs["start"], n.attrs["groups"]
    taps = tuple(ceildiv(k, s) for k, s in zip(w[2:], stride, strict=True))
    inputs = w[0] // groups

    def terms(i: Position, r: Position) -> list[tuple[Dim, Dim]]:
        """Return the tap and the element of the padded image in each dimension."""
        dims = zip(i[2:], start, r[1:], w[2:], stride, taps, strict=True)
        found = ((window_tap(d + b, t, k, s), n) for d, b, t, k, s, n in dims)
        return [(tap, window + n - 1) for (tap, window), n in found]

    def guards(i: Position, r: Position) -> tuple[Guard, ...]:
        dims = zip(terms(i, r), w[2:], stride, strict=True)
        return tuple(Guard(tap, 0, k) for (tap, _), k, s in dims if not isinstance(k, int) or k % s)

    def positions(i: Position, r: Position) -> tuple[Position, ...]:
        batch, out, channel = i[0], i[1], r[0]
        first = out // w[1] * inputs if groups > 1 else 0
        filter_out = out % w[1] if groups > 1 else out
        filter_index, image = zip(*terms(i, r), strict=True)
        return (batch, first + channel, *image), (first + channel, filter_out, *filter_index)

    return ReductionDomain((inputs, *taps), positions, guards)


def _phases_reference(
    x: torch.Tensor, w: torch.Tensor, stride: Any, start: Any, size: Any, groups: int, dtype: DType | None
) -> torch.Tensor:
    if dtype is not None:
        x, w = x.to(to_torch(dtype)), w.to(to_torch(dtype))
    zeros = [0] * len(stride)
    y = torch.convolution(x, w, None, stride, zeros, [1] * len(stride), True, zeros, groups)
    for d, (n, s, b, k) in enumerate(zip(size, stride, start, w.shape[2:], strict=True)):
        # PyTorch leaves out the last results of a window narrower than its stride
        padding = [0] * 2 * (len(stride) - 1 - d) + [0, max(0, s - k)]
        y = F.pad(y, padding).narrow(2 + d, b + -(-k // s) * s - s, n)
    return y


conv_phases = declare_op(
    "conv_phases", "x: number, weight!: number", Reduction("add", _phases_domain, lambda x, w: x * w),
    type_rule=_phases_type, attrs={"stride": REQUIRED, "start": REQUIRED, "size": REQUIRED, "groups": 1, "dtype": None},
    reference=_phases_reference,
    samples=[
        sample_input("f32[2, 3, 6]", "f32[3, 4, 4]", stride=[2], start=[1], size=[9]),
        sample_input("f32[1, 4, 4, 3]", "f32[4, 2, 2, 3]", stride=[2, 1], start=[0, 0], size=[8, 1], groups=2),
        sample_input("bf16[1, 4, 5]", "bf16[4, 2, 3]", stride=[3], start=[0], size=[14], dtype=f32),
        sample_input("f32[1, 2, 4, 5]", "f32[2, 3, 3, 3]", stride=[2, 2], start=[1, 0], size=[4, 8]),
        sample_input("f32[1, 2, 4]", "f32[2, 3, 1]", stride=[2], start=[0], size=[8]),
    ],
)  # fmt: skip
"""Transposed convolution by phases, for an input padded such that every tap exists.

Results whose indices have the same remainder by the stride form a phase: a convolution with its own taps.
`start` results are left out at the beginning of each dimension, and `size` are computed."""


def _transposed(node: Node, x: Node, weight: Node, bias: Node | None = None) -> Node:
    """Dilate the weight, pad the input such that every tap exists, and convolve by phases, or once if the stride is 1."""
    a, size = node.attrs, node.shape[2:]
    wide = _sum_dtype_before_bias(x.dtype) if bias is not None else None
    if margins := _margins_of_stride_1(node, x, weight):
        return _with_bias(_with_flipped_weight(node, x, weight, margins, wide), bias, node.dtype)
    for k, step in enumerate(a["dilation"]):
        weight = _dilate(weight, 2 + k, step)
    taps = [ceildiv(k, s) for k, s in zip(weight.shape[2:], a["stride"], strict=True)]
    low = [t - 1 for t in taps]
    last = [floordiv(n - 1 + p, s) for n, p, s in zip(size, a["padding"], a["stride"], strict=True)]
    missing = [e - n + 1 for e, n in zip(last, x.shape[2:], strict=True)]
    high = [max(e, 0) if isinstance(e, int) else e for e in missing]
    attrs = {"stride": a["stride"], "start": a["padding"], "size": size, "groups": a["groups"], "dtype": wide}
    return _with_bias(conv_phases(pad_spatial(x, low, high), weight, **attrs), bias, node.dtype)


def _margins_of_stride_1(node: Node, x: Node, weight: Node) -> list[tuple[int, int]]:
    """Return the zeros before and after the image by dimension with which an ordinary convolution computes `node`; [] if none does."""
    a = node.attrs
    reach = [d * (k - 1) for k, d in zip(weight.shape[2:], a["dilation"], strict=True)]
    dims = zip(reach, a["padding"], node.shape[2:], x.shape[2:], strict=True)
    margins = [(r - p, size + p - n) for r, p, size, n in dims]
    known = [
        (low, high) for low, high in margins if isinstance(low, int) and isinstance(high, int) and min(low, high) >= 0
    ]
    return known if len(known) == len(margins) and all(s == 1 for s in a["stride"]) else []


def _with_flipped_weight(
    node: Node, x: Node, weight: Node, margins: Sequence[tuple[int, int]], dtype: DType | None
) -> Node:
    """Return transposed convolution `node` of stride 1 as an ordinary one, whose weight is turned around."""
    groups, taps, spatial = node.attrs["groups"], weight.shape[2:], tuple(range(2, x.type.rank))
    by_group = reshape(weight, shape=(groups, weight.shape[0] // groups, *weight.shape[1:]))
    outputs = permute(by_group, dims=(0, 2, 1, *(d + 1 for d in spatial)))
    turned = flip(reshape(outputs, shape=(node.shape[1], weight.shape[0] // groups, *taps)), dims=spatial)
    low, high = zip(*margins, strict=True)
    return conv(pad_spatial(x, low, high), turned, **{k: node.attrs[k] for k in CONV_ATTRS}, dtype=dtype)


def _dilate(x: Node, dim: int, step: int) -> Node:
    """Insert `step - 1` zeros between neighbours along `dim`."""
    if step == 1:
        return x
    shape, n = x.shape, x.shape[dim]
    unsqueezed = reshape(x, shape=(*shape[: dim + 1], 1, *shape[dim + 1 :]))
    zeros = [0] * unsqueezed.type.rank
    padded = pad(unsqueezed, before=zeros, after=[*zeros[: dim + 1], step - 1, *zeros[dim + 2 :]])
    flat = reshape(padded, shape=(*shape[:dim], n * step, *shape[dim + 1 :]))
    return slice_(flat, dim=dim, size=(n - 1) * step + 1)


def _transposed_reference(x: Any, weight: Any, bias: Any = None, **a: Any) -> Any:
    return torch.convolution(
        x, weight, bias, a["stride"], a["padding"], a["dilation"], True, a["output_padding"], a["groups"]
    )


conv_transposed = declare_op(
    "conv_transposed", "x: number, weight: number, bias?: number", Composite(_transposed), type_rule=_transposed_type,
    attrs={**CONV_ATTRS, "padding": REQUIRED, "output_padding": REQUIRED}, reference=_transposed_reference,
    samples=[
        sample_input("f32[2, 3, 5]", "f32[3, 4, 3]", "f32[4]", stride=[2], padding=[1], dilation=[1], output_padding=[1]),
        sample_input("f32[1, 4, 3, 4]", "f32[4, 2, 2, 3]", stride=[2, 1], padding=[0, 1], dilation=[1, 2], output_padding=[0, 0], groups=2),
        sample_input("f32[1, 2, 4]", "f32[2, 3, 2]", stride=[3], padding=[2], dilation=[1], output_padding=[0]),
    ],
)  # fmt: skip
