"""Recognition of convolutions, transposed ones too, and zero padding by the elements they read, whatever their op."""

from __future__ import annotations

from dataclasses import dataclass

from compiler.analysis.contraction_nodes import is_contraction_node
from compiler.ir.graph.node import Node
from compiler.ir.graph.structure import IndexMap, Reduction, ReductionDomain, index_vars
from compiler.ir.ops.col2im import window_tap
from compiler.ir.scalar import Number
from compiler.ir.symbolic.affine import coefficient
from compiler.ir.symbolic.index_atoms import FloorDiv, terms
from compiler.ir.symbolic.index_expr import Dim


@dataclass(frozen=True)
class ConvolutionWindow:
    """Strides and dilations by spatial dimension: tap `t` of result `i` reads index `i * stride + t * dilation`."""

    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1


def spatial_contraction(n: Node) -> ReductionDomain | None:
    """Return the domain of a contraction whose operands and result have as many dimensions, at least three; None for others."""
    rank = n.type.rank if not isinstance(n.result_type, tuple) else 0
    if rank < 3 or not is_contraction_node(n) or any(o.type.rank != rank for o in n.operands):
        return None
    assert isinstance(n.structure, Reduction)
    return n.structure.domain(n)


def match_convolution(n: Node) -> ConvolutionWindow | None:
    """Return the window of a convolution without padding, or None for any other node.

    result[b, o, i, ...] = sum over c, t, ... of image[b, c, i * stride + t * dilation, ...] * weight[o, c, t, ...]

    With groups, `c` begins at those of the group of `o` in the image.
    """
    if (space := spatial_contraction(n)) is None:
        return None
    i, r = index_vars("i", n.type.rank), index_vars("r", len(space.extents))
    image, weight = space.positions(i, r)
    if weight != (i[1], *r) or space.guards(i, r):
        return None
    stride = tuple(coefficient(d, f"i{k}") or 0 for k, d in enumerate(image[2:], 2))
    dilation = tuple(coefficient(d, f"r{k}") or 0 for k, d in enumerate(image[2:], 1))
    taps = tuple(p * s + t * d for p, s, t, d in zip(i[2:], stride, r[1:], dilation, strict=True))
    if image == (i[0], r[0], *taps):
        return ConvolutionWindow(stride, dilation)
    groups = exact_quotient(n.operands[0].shape[1], space.extents[0])
    outputs = exact_quotient(n.shape[1], groups)
    if not outputs or image != (i[0], i[1] // outputs * space.extents[0] + r[0], *taps):
        return None
    return ConvolutionWindow(stride, dilation, groups)


def match_zero_padding(n: Node) -> tuple[tuple[Dim, Dim], ...] | None:
    """Return the number of zeros before and after the operand per dimension, or None if `n` is not zero padding."""
    return match_padding(n, 0)


def match_padding(n: Node, value: Number) -> tuple[tuple[Dim, Dim], ...] | None:
    """Return the number of elements before and after the operand per dimension, or None if `n` is no padding with `value`."""
    s = n.structure
    if not isinstance(s, IndexMap) or s.operand_offsets is None or len(n.operands) != 1:
        return None
    if s.fill is None or s.fill(n) != value:
        return None
    (before,) = s.operand_offsets(n)
    return tuple((b, size - own - b) for b, own, size in zip(before, n.operands[0].shape, n.shape, strict=True))


@dataclass(frozen=True)
class TransposedWindow:
    """Stride and first result by spatial dimension of a transposed convolution.

    Result `i` adds, for each step `t` of `taps`, the product of element `(i + start) // stride + t` of the image with tap
    `(i + start) % stride + (taps - 1 - t) * stride`.  Each of `groups` equal parts of the result channels adds its part of the image's.
    """

    stride: tuple[int, ...]
    start: tuple[int, ...]
    taps: tuple[int, ...]
    groups: int = 1


def match_transposed_convolution(n: Node) -> TransposedWindow | None:
    """Return the window of a transposed convolution, or None for any other node.

    result[b, o, i, ...] = sum over c, t, ... of image[b, c, i / stride + t, ...] * weight[c, o, i % stride - t * stride, ...]

    With groups, `c` begins at those of the group of `o`, and `o` counts within it in the weight.
    """
    if (space := spatial_contraction(n)) is None:
        return None
    taps = [e for e in space.extents[1:] if isinstance(e, int)]
    if len(taps) != n.type.rank - 2:
        return None
    i, r = index_vars("i", n.type.rank), index_vars("r", len(space.extents))
    image, weight = space.positions(i, r)
    phases = [_phase(d - t, w) for d, t, w in zip(image[2:], r[1:], i[2:], strict=True)]
    inputs, outputs = space.extents[0], n.operands[1].shape[1]
    groups = exact_quotient(n.operands[1].shape[0], inputs)
    first, output = (i[1] // outputs * inputs, i[1] % outputs) if groups != 1 else (0, i[1])
    if None in phases or not groups or image[:2] != (i[0], first + r[0]) or weight[:2] != (first + r[0], output):
        return None
    stride, start = zip(*(p for p in phases if p), strict=True)
    dims = zip(i[2:], start, r[1:], n.operands[1].shape[2:], stride, strict=True)
    if weight[2:] != tuple(window_tap(d + b, t, k, s)[0] for d, b, t, k, s in dims):
        return None
    return TransposedWindow(stride, start, tuple(taps), groups)


def exact_quotient(size: Dim, part: Dim) -> int:
    """Return how many parts a size has, 0 if that is not known."""
    if size == part:
        return 1
    return size // part if isinstance(size, int) and isinstance(part, int) and part and size % part == 0 else 0


def _phase(quotient: Dim, position: Dim) -> tuple[int, int] | None:
    """Return `stride` and `start` of quotient == (position + start) // stride, or None for any other expression."""
    match terms(quotient):
        case (((FloorDiv(num, int(stride)),), 1),):
            start = num - position
        case _:
            start, stride = quotient - position, 1
    return (stride, start) if isinstance(start, int) else None
