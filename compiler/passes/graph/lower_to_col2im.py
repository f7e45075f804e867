"""Transposed convolutions as one matrix product, whose results are added where windows overlap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from compiler.analysis.convolution_match import TransposedWindow, match_transposed_convolution, match_zero_padding
from compiler.analysis.padded_tiles import slice_region
from compiler.cost.machine import Machine
from compiler.ir import ops
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import Node
from compiler.ir.symbolic.index_expr import Dim, product
from compiler.ir.tile.kernel import dim_hint
from compiler.passes.base import Context, GraphPass, register
from compiler.passes.graph.fold import is_known_finite


@register
@dataclass(frozen=True)
class LowerToCol2im(GraphPass):
    """Multiply every pixel by the taps of all windows at once, then add the products that overlap.

    %y = conv_phases %x, %w {stride=[2], ...}   ->   %s = matmul %w, %x   %y = col2im %s {stride=[2], ...}

    Both forms multiply as often.  A transposed convolution reads the image once for each tap, and its lanes lie along pixels
    if it has few result channels; the product has a row for each tap of each of them.  Windows that do not overlap are put
    side by side.  Applies if the cost model estimates less than `max_time_ratio` of the time (0 disables the pass).

    Groups are a batch of products, each of which adds at least a vector of terms.

    Chellapilla et al., "High Performance Convolutional Neural Networks for Document Processing", 2006, backward.
    """

    name = "lower-to-col2im"
    max_time_ratio: float = 0.8

    def run(self, ir: Graph, context: Context) -> Graph:
        new: dict[Node, Node] = {}
        for n in ir.nodes:
            window = match_transposed_convolution(n)
            if window is None or max(window.stride) == 1:
                continue
            if window.groups > 1 and dim_hint(n.operands[1].shape[0]) < window.groups * context.machine.lanes(32):
                context.missed(self, "the sums of a group are shorter than a vector", n)
                continue
            direct = direct_cycles(n, window, context.machine)
            if product_cycles(n, window, context.machine) >= self.max_time_ratio * direct:
                context.missed(self, "adding overlapping products costs more than reading pixels for each tap", n)
            elif context.may_apply(self, "one product for all taps, added where windows overlap", n):
                new[n] = as_product(n, window)
        return ir.replace_nodes(new)


def direct_cycles(n: Node, window: TransposedWindow, machine: Machine) -> float:
    """Estimate the cycles of transposed convolution `n`.

    Lanes along pixels load a vector of them for each tap, from the second-level cache, and as many taps for each remainder by
    the stride; lanes along channels may be idle.
    """
    (pixels, inputs), (outputs, taps) = problem_sizes(n)
    lanes, padded_taps = machine.lanes(n.dtype.compute.bits), prod(window.taps) * prod(window.stride)
    load = machine.l2_line_cycles + machine.unaligned_cost / machine.loads_per_cycle
    along_pixels = padded_taps * (outputs / machine.fma_per_cycle + load) / lanes
    along_channels = taps * -(-outputs // lanes) / machine.fma_per_cycle / machine.products_efficiency
    return pixels * inputs * min(along_pixels, along_channels)


def product_cycles(n: Node, window: TransposedWindow, machine: Machine) -> float:
    """Estimate the cycles of the same as a product and sums of what overlaps, beyond storing the results."""
    (pixels, inputs), (outputs, taps) = problem_sizes(n)
    results = pixels * outputs * taps * window.groups
    vectors = results / machine.lanes(n.dtype.compute.bits)
    multiply_adds = vectors * (inputs // window.groups) / machine.fma_per_cycle / machine.products_efficiency
    adds = vectors * (machine.unaligned_cost / machine.loads_per_cycle + 1 / machine.fma_per_cycle)
    moved_bytes = 2 * max(0, results * n.dtype.compute.bytes - machine.l2)
    return multiply_adds + adds + moved_bytes / machine.l3_bytes_per_cycle


def problem_sizes(n: Node) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return pixels of all images, with their padding, and input channels; result channels of a group and taps of the window."""
    image, weight = (tuple(map(dim_hint, o.shape)) for o in n.operands)
    return (image[0] * prod(image[2:]), image[1]), (weight[1], prod(weight[2:]))


def as_product(n: Node, window: TransposedWindow) -> Node:
    """Return transposed convolution `n` as a product of its weight with all pixels, and what puts the results in place."""
    image, weight = n.operands
    may_skip_padding = max(window.taps) > 1 and is_known_finite(weight)
    image, start = without_padding(image, window) if may_skip_padding else with_padding(image, window)
    total = n.dtype.compute if n.dtype.is_float else n.dtype
    groups, (batch, channels) = (window.groups,) if window.groups > 1 else (), image.shape[:2]
    inputs, outputs = channels // window.groups, weight.shape[1] * window.groups
    by_group = ops.reshape(weight, shape=(*groups, inputs, product(weight.shape[1:])))
    rows = ops.permute(by_group, dims=(*range(len(groups)), len(groups) + 1, len(groups)))
    pixels = ops.reshape(image, shape=(batch, *groups, inputs, product(image.shape[2:])))
    products = ops.matmul(rows, pixels, dtype=total)
    windows = ops.reshape(products, shape=(batch, outputs, *weight.shape[2:], *image.shape[2:]))
    if max(window.taps) == 1 and weight.shape[2:] == window.stride:
        y = side_by_side(windows, start, n.shape)
    else:
        dilation = (1,) * len(start)
        y = ops.col2im(windows, stride=window.stride, dilation=dilation, start=start, size=n.shape[2:])
    return ops.as_dtype(y, n.dtype).with_loc(n.loc)


def side_by_side(windows: Node, start: Sequence[int], shape: Sequence[Dim]) -> Node:
    """Return windows [batch, channels, *window, *image] that do not overlap as images of `shape`, which begin at `start`."""
    spatial = len(start)
    dims = (d for k in range(spatial) for d in (2 + spatial + k, 2 + k))
    in_place = ops.permute(windows, dims=(0, 1, *dims))
    sizes = (in_place.shape[2 + 2 * k] * in_place.shape[3 + 2 * k] for k in range(spatial))
    y = ops.reshape(in_place, shape=(*windows.shape[:2], *sizes))
    return slice_region(y, (0, 0, *start), shape)


def without_padding(image: Node, window: TransposedWindow) -> tuple[Node, tuple[int, ...]]:
    """Return the image and the first result of col2im, without the padding that lets every tap of the convolution exist."""
    padding = match_zero_padding(image)
    if padding is not None and [low for low, _ in padding] == [0, 0, *(t - 1 for t in window.taps)]:
        return image.operands[0], window.start
    return with_padding(image, window)


def with_padding(image: Node, window: TransposedWindow) -> tuple[Node, tuple[int, ...]]:
    """Return the image and the first result of col2im, whose windows begin before those of the convolution."""
    dims = zip(window.start, window.taps, window.stride, strict=True)
    return image, tuple(b + (t - 1) * s for b, t, s in dims)
