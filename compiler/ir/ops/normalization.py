"""Softmax and normalisations as composites of reductions and arithmetic."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from compiler.ir.graph.node import REQUIRED, Node, Signature
from compiler.ir.graph.op import declare_op, sample_input
from compiler.ir.graph.structure import Composite
from compiler.ir.ops.arithmetic import add, div, mul, rsqrt, sub
from compiler.ir.ops.reductions import amax, mean, sum_
from compiler.ir.ops.rules import check_dims, in_f32, same_type
from compiler.ir.ops.transcendental import exp, log
from compiler.ir.ops.views import reshape
from compiler.ir.types import TensorType


def _one_dim_type(s: Signature) -> TensorType:
    check_dims(s, [s.attrs["dim"]] if s.types[0].rank else [])
    return same_type(s)


def _subtract_max(x: Node, dims: tuple[int, ...]) -> Node:
    """Return `x` minus its maximum over `dims`: no exponential overflows, and their sum is at least 1."""
    return sub(x, amax(x, dims=dims, keepdim=True)) if dims else sub(x, x)


def _dims(node: Node) -> tuple[int, ...]:
    return (node.attrs["dim"],) if node.type.rank else ()


def _softmax(node: Node, x: Node) -> Node:
    e = exp(_subtract_max(x, _dims(node)))
    return div(e, sum_(e, dims=_dims(node), keepdim=True))


def _log_softmax(node: Node, x: Node) -> Node:
    shifted = _subtract_max(x, _dims(node))
    return sub(shifted, log(sum_(exp(shifted), dims=_dims(node), keepdim=True)))


SOFTMAX_SAMPLES = (
    sample_input("f32[4, 5]", dim=1), sample_input("f32[2, 3, 4]", dim=1), sample_input("f32[]", dim=0), sample_input("bf16[3, 8]", dim=1),
    sample_input("f32[0, 3]", dim=1), sample_input("f32[3, 5]", dim=0, low=-200.0, high=200.0),
)  # fmt: skip
softmax = declare_op("softmax", "x: float", Composite(in_f32(_softmax)), type_rule=_one_dim_type, attrs={"dim": REQUIRED},
             reference=torch.softmax, samples=SOFTMAX_SAMPLES)  # fmt: skip
log_softmax = declare_op("log_softmax", "x: float", Composite(in_f32(_log_softmax)), type_rule=_one_dim_type, attrs={"dim": REQUIRED},
                 reference=torch.log_softmax, samples=SOFTMAX_SAMPLES)  # fmt: skip


def _apply_affine(y: Node, weight: Node | None, bias: Node | None) -> Node:
    y = y if weight is None else mul(y, weight)
    return y if bias is None else add(y, bias)


def deviation_and_variance(x: Node, dims: tuple[int, ...]) -> tuple[Node, Node]:
    """Return the deviation from the mean over `dims` and the mean of its square, in two passes (one would cancel)."""
    deviation = sub(x, mean(x, dims=dims, keepdim=True))
    return deviation, mean(mul(deviation, deviation), dims=dims, keepdim=True)


def _last_dims(node: Node) -> tuple[int, ...]:
    return tuple(range(node.type.rank - node.attrs["dims"], node.type.rank))


def _last_dims_type(s: Signature) -> TensorType:
    x, count = s.types[0], s.attrs["dims"]
    if not 1 <= count <= x.rank or any(t.shape != x.shape[x.rank - count :] for t in s.types[1:]):
        raise s.error(f"weight and bias must have the shape of the last {count} dimensions")
    return same_type(s)


def _layer_norm(node: Node, x: Node, weight: Node | None = None, bias: Node | None = None) -> Node:
    deviation, variance = deviation_and_variance(x, _last_dims(node))
    return _apply_affine(mul(deviation, rsqrt(add(variance, node.attrs["eps"]))), weight, bias)


def _layer_norm_reference(x: Any, weight: Any = None, bias: Any = None, *, dims: int, eps: float) -> Any:
    return F.layer_norm(x, x.shape[x.ndim - dims :], weight, bias, eps)


layer_norm = declare_op(
    "layer_norm", "x: float, weight?: float, bias?: float", Composite(in_f32(_layer_norm)), type_rule=_last_dims_type,
    attrs={"dims": 1, "eps": 1e-5}, reference=_layer_norm_reference,
    samples=[
        sample_input("f32[4, 8]"), sample_input("f32[4, 8]", "f32[8]", "f32[8]"), sample_input("f32[2, 3, 4]", "f32[3, 4]", dims=2, eps=1e-3),
        sample_input("bf16[4, 16]", "bf16[16]", "bf16[16]"), sample_input("f32[0, 8]", "f32[8]", "f32[8]"),
    ],
)  # fmt: skip
"""Layer normalisation over the last `dims` dimensions."""


def _rms_norm(node: Node, x: Node, weight: Node | None = None) -> Node:
    square = mean(mul(x, x), dims=_last_dims(node), keepdim=True)
    return _apply_affine(mul(x, rsqrt(add(square, node.attrs["eps"]))), weight, None)


def _rms_norm_reference(x: Any, weight: Any = None, *, dims: int, eps: float) -> Any:
    return F.rms_norm(x, x.shape[x.ndim - dims :], weight, eps)


rms_norm = declare_op(
    "rms_norm", "x: float, weight?: float", Composite(in_f32(_rms_norm)), type_rule=_last_dims_type,
    attrs={"dims": 1, "eps": REQUIRED}, reference=_rms_norm_reference,
    samples=[sample_input("f32[4, 8]", eps=1e-6), sample_input("f32[2, 3, 4]", "f32[3, 4]", dims=2, eps=1e-5), sample_input("bf16[4, 16]", "bf16[16]", eps=1e-6)],
)  # fmt: skip


def _per_channel_type(s: Signature) -> TensorType:
    x = s.types[0]
    if x.rank < 2 or any(t.shape != (x.shape[1],) for t in s.types[1:]):
        raise s.error("operands after x must have one element per channel (dimension 1)")
    return same_type(s)


def _broadcast_channels(v: Node, like: Node) -> Node:
    """Reshape one number per channel such that it broadcasts to `like`."""
    return reshape(v, shape=(like.shape[1], *(1,) * (like.type.rank - 2)))


def _batch_norm(
    node: Node, x: Node, mean_: Node, variance: Node, weight: Node | None = None, bias: Node | None = None
) -> Node:
    """Expand to one multiply-add per element, with statistics and parameters folded into a slope and an offset per channel."""
    slope = rsqrt(add(variance, node.attrs["eps"]))
    slope = slope if weight is None else mul(slope, weight)
    offset = mul(mean_, slope)
    offset = sub(0.0, offset) if bias is None else sub(bias, offset)
    return add(mul(x, _broadcast_channels(slope, x)), _broadcast_channels(offset, x))


def _batch_norm_reference(
    x: Any, mean_: Any, variance: Any, weight: Any = None, bias: Any = None, *, eps: float
) -> Any:
    return F.batch_norm(x, mean_, variance, weight, bias, False, 0.0, eps)


batch_norm = declare_op(
    "batch_norm", "x: float, mean: float, variance: float, weight?: float, bias?: float", Composite(in_f32(_batch_norm)),
    type_rule=_per_channel_type, attrs={"eps": 1e-5}, reference=_batch_norm_reference,
    samples=[
        sample_input("f32[2, 3, 4, 4]", "f32[3]", "f32[3]", "f32[3]", "f32[3]", low=0.5), sample_input("f32[4, 3]", "f32[3]", "f32[3]", low=0.5),
        sample_input("f32[0, 3, 2]", "f32[3]", "f32[3]", "f32[3]", "f32[3]", low=0.5),
    ],
)  # fmt: skip
"""Batch normalisation in inference, with given statistics per channel."""


def _group_type(s: Signature) -> TensorType:
    _per_channel_type(s)
    channels = s.types[0].shape[1]
    if isinstance(channels, int) and channels % s.attrs["groups"]:
        raise s.error(f"{channels} channels are not divisible into {s.attrs['groups']} groups")
    return same_type(s)


def _group_norm(node: Node, x: Node, weight: Node | None = None, bias: Node | None = None) -> Node:
    groups = node.attrs["groups"]
    grouped = reshape(x, shape=(x.shape[0], groups, x.shape[1] // groups, *x.shape[2:]))
    deviation, variance = deviation_and_variance(grouped, tuple(range(2, grouped.type.rank)))
    y = reshape(mul(deviation, rsqrt(add(variance, node.attrs["eps"]))), shape=x.shape)
    return _apply_affine(y, *(None if v is None else _broadcast_channels(v, x) for v in (weight, bias)))


group_norm = declare_op(
    "group_norm", "x: float, weight?: float, bias?: float", Composite(in_f32(_group_norm)), type_rule=_group_type,
    attrs={"groups": REQUIRED, "eps": 1e-5},
    reference=lambda x, weight=None, bias=None, *, groups, eps: F.group_norm(x, groups, weight, bias, eps),
    samples=[
        sample_input("f32[2, 6, 3, 3]", "f32[6]", "f32[6]", groups=2), sample_input("f32[2, 4, 5]", groups=4), sample_input("bf16[2, 4, 8]", groups=1),
    ],
)  # fmt: skip
