"""Convolutions with few result channels as one matrix product, whose results are added where windows overlap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from compiler.analysis.convolution_match import match_convolution, match_transposed_convolution, match_zero_padding
from compiler.analysis.padded_tiles import slice_region
from compiler.analysis.quantized_value import is_known
from compiler.cost.machine import CACHE_LINE_BYTES, Machine
from compiler.ir import ops
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import Node
from compiler.ir.symbolic.index_expr import Dim, product
from compiler.ir.tile.kernel import dim_hint
from compiler.passes.base import Context, GraphPass, register
from compiler.passes.graph.fold import constant_values, is_known_finite


@register
@dataclass(frozen=True)
class LowerToCol2im(GraphPass):
    """Multiply every pixel by the taps of all windows at once, then add the products that overlap.

    %y = conv_phases %x, %w {stride=[2], ...}   ->   %s = matmul %w, %x   %y = col2im %s {stride=[2], ...}

    Both forms multiply as often.  A convolution reads the image once for each tap, and its lanes lie along pixels if it has
    few result channels; the product has a row for each tap of each of them.  Windows that do not overlap are put side by
    side.  Applies to transposed convolutions, and to others of stride 1, if the cost model estimates less than
    `max_time_ratio` of the time (0 disables the pass).

    Groups are a batch of products, each of which adds at least a vector of terms.

    Chellapilla et al., "High Performance Convolutional Neural Networks for Document Processing", 2006, backward.
    """

    name = "lower-to-col2im"
    max_time_ratio: float = 0.95

    def run(self, ir: Graph, context: Context) -> Graph:
        new: dict[Node, Node] = {}
        for n in ir.nodes:
            window = match_window(n)
            if window is None:
                continue
            if window.groups > 1 and dim_hint(window.weight.shape[0]) < window.groups * context.machine.lanes(32):
                context.missed(self, "the sums of a group are shorter than a vector", n)
                continue
            direct, (image, start) = direct_cycles(n, window, context.machine), without_padding(n, window)
            if product_cycles(n, image, window, context.machine) >= self.max_time_ratio * direct:
                context.missed(self, "adding overlapping products costs more than reading pixels for each tap", n)
            elif context.may_apply(self, "one product for all taps, added where windows overlap", n):
                new[n] = as_product(n, image, start, window)
        return ir.replace_nodes(new)


@dataclass(frozen=True)
class ScatterWindow:
    """Results that the pixels of an image add to, by spatial dimension: pixel `l` and tap `k` to `l * stride + k * dilation - start`.

    `weight` is [channels, result channels of a group, *taps].
    """

    weight: Node
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    start: tuple[int, ...]
    groups: int = 1

    @property
    def taps(self) -> tuple[int, ...]:
        """Taps of the window."""
        return self.weight.type.static_shape()[2:]

    @property
    def overlaps(self) -> bool:
        """True if several pixels may add to a result."""
        return any(t > s for t, s in zip(self.taps, self.stride, strict=True))


def match_window(n: Node) -> ScatterWindow | None:
    """Return the window of a transposed convolution or of one of stride 1 with several taps; None for any other node.

    Result `i` of the latter reads pixel `i + t * dilation` with tap `t`: the last tap of a pixel comes first.
    """
    if (transposed := match_transposed_convolution(n)) is not None and max(transposed.stride) > 1:
        steps = zip(transposed.start, transposed.taps, transposed.stride, strict=True)
        start = tuple(b + (t - 1) * s for b, t, s in steps)
        ones = (1,) * len(start)
        return ScatterWindow(n.operands[1], transposed.stride, ones, start, transposed.groups)
    if (window := match_convolution(n)) is None or max(window.stride) > 1 or not n.operands[1].type.is_static:
        return None
    spatial, taps, groups = tuple(range(2, n.type.rank)), n.operands[1].type.static_shape()[2:], window.groups
    if prod(taps) < 2:
        return None
    outputs, inputs, *_ = n.operands[1].shape
    g = int(groups > 1)
    by_group = ops.as_shape(n.operands[1], (*(groups,) * g, outputs // groups, inputs, *taps))
    flipped = ops.flip(by_group, dims=tuple(d + g for d in spatial))
    weight = ops.permute(flipped, dims=(*range(g), 1 + g, g, *(d + g for d in spatial)))
    weight = ops.as_shape(weight, (groups * inputs, outputs // groups, *taps))
    start = tuple((k - 1) * d for k, d in zip(taps, window.dilation, strict=True))
    return ScatterWindow(weight, window.stride, window.dilation, start, groups)


def direct_cycles(n: Node, window: ScatterWindow, machine: Machine) -> float:
    """Estimate the cycles of convolution `n`.

    Lanes along the pixels of a row load a vector of them for each tap, from the second-level cache, and as many taps for each
    remainder by the stride; lanes along channels may be idle, and so may those at the end of a row.  Each remainder has a loop nest with partial tiles.
    Zero padding is not multiplied, but that of a transposed convolution is copied with the image.
    """
    _, inputs, outputs = problem_sizes(n.operands[0], window)
    lanes, (batch, _, *area) = machine.lanes(n.dtype.compute.bits), map(dim_hint, n.shape)
    rows, step = batch * prod(area[:-1]), window.stride[-1]
    vectors = rows * step * -(-area[-1] // (step * lanes))
    taps = prod(-(-k // s) for k, s in zip(window.taps, window.stride, strict=True))
    load = machine.l2_line_cycles + machine.unaligned_cost / machine.loads_per_cycle
    along_pixels = vectors * taps * (outputs / machine.fma_per_cycle + load)
    products = rows * area[-1] * prod(window.taps) / prod(window.stride)
    along_channels = products * -(-outputs // lanes) / machine.fma_per_cycle / machine.products_efficiency
    nests = 1 + machine.partial_tile_penalty * (prod(window.stride) - 1)
    cycles = inputs * min(along_pixels, along_channels) * nests
    return cycles + copy_cycles(n.operands[0], machine) if step > 1 and match_zero_padding(n.operands[0]) else cycles


def copy_cycles(image: Node, machine: Machine) -> float:
    """Estimate the cycles to copy an image from and to the last cache."""
    lines = prod(map(dim_hint, image.shape)) * image.dtype.bytes / CACHE_LINE_BYTES
    return lines * machine.l3_line_cycles * (1 + machine.store_transfers)


def product_cycles(n: Node, image: Node, window: ScatterWindow, machine: Machine) -> float:
    """Estimate the cycles of the same as a product with `image` and sums of what overlaps, beyond storing the results."""
    pixels, inputs, outputs = problem_sizes(image, window)
    results = pixels * outputs * prod(window.taps) * window.groups
    vectors = results / machine.lanes(n.dtype.compute.bits)
    multiply_adds = vectors * (inputs // window.groups) / machine.fma_per_cycle / machine.products_efficiency
    load = machine.l2_line_cycles + machine.unaligned_cost / machine.loads_per_cycle
    adds = vectors * (machine.l2_line_cycles + load + 1 / machine.fma_per_cycle)
    moved_bytes = 2 * max(0, results * n.dtype.compute.bytes - machine.l2)
    return multiply_adds + adds + moved_bytes / machine.l3_bytes_per_cycle


def problem_sizes(image: Node, window: ScatterWindow) -> tuple[int, int, int]:
    """Return pixels of all images, input channels, and result channels of a group."""
    (batch, channels, *area), outputs = map(dim_hint, image.shape), dim_hint(window.weight.shape[1])
    return batch * prod(area), channels, outputs


def as_product(n: Node, image: Node, start: Sequence[int], window: ScatterWindow) -> Node:
    """Return convolution `n` as a product of its weight with all pixels of `image`, and what puts the results in place.

    The first of these is result `start`.  Result channels are the inner rows of the product, so that lanes may lie along them.
    """
    weight, taps, area = window.weight, window.taps, image.shape[2:]
    total = n.dtype.compute if n.dtype.is_float else n.dtype
    groups, (batch, channels), outputs = (window.groups,) if window.groups > 1 else (), image.shape[:2], weight.shape[1]
    inputs, g = channels // window.groups, len(groups)
    by_group = ops.as_shape(weight, (*groups, inputs, outputs, *taps))
    taps_first = ops.permute(by_group, dims=(*range(g), *range(g + 2, by_group.type.rank), g + 1, g))
    rows = folded(ops.reshape(taps_first, shape=(*groups, prod(taps) * outputs, inputs)))
    pixels = ops.as_shape(image, (batch, *groups, inputs, product(area)))
    products = ops.matmul(rows, pixels, dtype=total)
    by_tap = ops.reshape(products, shape=(batch, *groups, *taps, outputs, *area))
    first, channel = 1 + g, 1 + g + len(taps)
    dims = (*range(first), channel, *range(first, channel), *range(channel + 1, by_tap.type.rank))
    windows = ops.as_shape(ops.permute(by_tap, dims=dims), (batch, outputs * window.groups, *taps, *area))
    if not window.overlaps:
        y = side_by_side(with_gaps(windows, window), start, n.shape)
    else:
        y = ops.col2im(windows, stride=window.stride, dilation=window.dilation, start=start, size=n.shape[2:])
    return ops.as_dtype(y, n.dtype).with_loc(n.loc)


def folded(rows: Node) -> Node:
    """Return the constant that `rows` are a view of as a constant of its own, so that rows are one loop; others as they are."""
    return constant_values([rows]).get(rows, rows) if is_known(rows) else rows


def with_gaps(windows: Node, window: ScatterWindow) -> Node:
    """Return windows [batch, channels, *window, *image] with zeros between one and the next."""
    gaps = [s - t for s, t in zip(window.stride, window.taps, strict=True)]
    if not any(gaps):
        return windows
    zeros = (0,) * windows.type.rank
    return ops.pad(windows, before=zeros, after=(0, 0, *gaps, *(0 for _ in gaps)), value=0)


def side_by_side(windows: Node, start: Sequence[int], shape: Sequence[Dim]) -> Node:
    """Return windows [batch, channels, *window, *image] that do not overlap as images of `shape`, which begin at `start`."""
    spatial = len(start)
    dims = (d for k in range(spatial) for d in (2 + spatial + k, 2 + k))
    in_place = ops.permute(windows, dims=(0, 1, *dims))
    sizes = (in_place.shape[2 + 2 * k] * in_place.shape[3 + 2 * k] for k in range(spatial))
    y = ops.reshape(in_place, shape=(*windows.shape[:2], *sizes))
    return slice_region(y, (0, 0, *start), shape)


def without_padding(n: Node, window: ScatterWindow) -> tuple[Node, tuple[int, ...]]:
    """Return the image of `n`, without its zero padding if windows overlap and weights are finite, and the first result of col2im.

    Padding that reaches farther than a window stays: its results lie before the first window.
    """
    image = n.operands[0]
    padding = match_zero_padding(image) if is_known_finite(n.operands[1]) and window.overlaps else None
    if padding is None or padding[0] != (0, 0) or padding[1] != (0, 0):
        return image, window.start
    dims = zip(window.start, padding[2:], window.stride, strict=True)
    start = tuple(b - low * s for b, (low, _), s in dims if isinstance(low, int) and low * s <= b)
    return (image.operands[0], start) if len(start) == len(window.start) else (image, window.start)
