"""Winograd convolution: 3 x 3 windows with fewer multiplications."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import TypeAlias

import numpy as np

from compiler.analysis.contraction_nodes import matching_shape
from compiler.analysis.convolution_match import match_convolution, match_zero_padding
from compiler.analysis.padded_tiles import PaddedTiles, extend_to, slice_region, zero_pad_to
from compiler.analysis.size_hints import minimize_max_regret
from compiler.cost.machine import Machine
from compiler.ir import ops
from compiler.ir.float_format import Array
from compiler.ir.graph.constant import LazyConstant
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import CONSTANT, Node, constant_node
from compiler.ir.symbolic.index_atoms import DEFAULT_SIZE_HINT, SMALL_SIZE_HINT
from compiler.ir.symbolic.index_expr import Dim, ceildiv, dynamic_sizes, product, substitute
from compiler.ir.tile.kernel import dim_hint
from compiler.ir.types import f32
from compiler.passes.base import Context, GraphPass, register

Matrix: TypeAlias = tuple[tuple[Fraction, ...], ...]

INTERPOLATION_POINTS = {2: (0, 1, -1), 4: (0, 1, -1, Fraction(1, 2), -2)}
"""Interpolation points for each tile size, without infinity: those of least error (Barabasz et al., "Error Analysis and
Improving the Accuracy of Winograd Convolution", 2020)."""

ERROR_GROWTH = {2: 2.0, 4: 12.0}
"""Largest rounding error relative to direct convolution, for each tile size; measured over random tensors."""

TRANSFORM_BLOCK = 64
"""Outputs and channels whose weights are transformed at once, which bounds temporary memory and compile time."""


@register
@dataclass(frozen=True)
class Winograd(GraphPass):
    """Compute 3 x 3 convolutions by Winograd's algorithm.

    %y = conv %x, %w {stride=[1, 1]}   ->   %y = transform of (transform of %x) @ (transform of %w)

    F(m x m, 3 x 3) of Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", 2016: each tile of m x m
    results takes (m + 2)^2 multiplications for each pair of channels instead of 9 m^2.  Applies to images of f32 or a reduced
    float, which is computed in f32, unit strides and constant weights of f32 or narrower.  The cost model must estimate less than `max_time_ratio` of the direct
    convolution's time, and the rounding error must grow by no more than `max_error` (0 disables the pass).
    """

    name = "winograd"
    max_error: float = 16.0
    max_time_ratio: float = 0.8

    def run(self, ir: Graph, context: Context) -> Graph:
        fastest = partial(best_tile, context=context, max_error=self.max_error, max_time_ratio=self.max_time_ratio)
        best = {n: tile for n in ir.nodes if (tile := fastest(n))}
        for n in filter(is_dynamic, ir.nodes):
            tile = fastest(n, size_hint=SMALL_SIZE_HINT)
            if tile != best.get(n, 0):
                context.wants_small_variant = True
                context.note(self, f"small images use {f'tiles of {tile} x {tile}' if tile else 'no tiles'}", n)
        tiles = {n: m for n, m in best.items() if context.may_apply(self, describe_tiles(m), n)}
        if not tiles:
            return ir
        padded = PaddedTiles(ir, {n.operands[0]: read_shape(n, tile) for n, tile in tiles.items()})

        def rule(n: Node, operands: tuple[Node, ...]) -> Node:
            if n in padded.pad_replacements:
                return slice_region(padded.pad_replacements[n], (0,) * n.type.rank, n.shape)
            new, tile = n.with_operands(operands), tiles.get(n)
            if tile:
                # other values beyond an image's edge would spread over its tile if they were infinite
                extend = extend_to if match_zero_padding(n.operands[0]) is not None else zero_pad_to
                x = ops.as_dtype(extend(new.operands[0], read_shape(n, tile)), f32)
                y = ops.as_dtype(winograd_convolution(new, x, tile), n.dtype)
                return padded.as_slice_of_padded(n, padded.crop(y, n.shape))
            if n in padded.read_shapes and match_zero_padding(n) is not None:
                return padded.crop(padded.pad_extended(n, *operands), n.shape)
            return padded.as_slice_of_padded(n, padded.sink_crop(new))

        return ir.map_nodes(rule)


def describe_tiles(m: int) -> str:
    """Return the remark on a convolution in tiles of m x m."""
    return f"Winograd tiles of {m} x {m}: {(m + 2) ** 2} products instead of {9 * m * m}"


def is_supported(n: Node) -> bool:
    """Return True if `n` is a unit-stride convolution, computed in f32, of images with constant 3 x 3 windows."""
    if not is_unit_stride_3x3(n):
        return False
    x, w = n.operands
    return n.dtype.compute == x.dtype.compute == f32 and f32.includes(w.dtype) and w.op is CONSTANT


def is_dynamic(n: Node) -> bool:
    """Return True if `n` is supported and has a dynamic dimension."""
    return is_supported(n) and any(dynamic_sizes(d) for d in n.shape)


def is_unit_stride_3x3(n: Node) -> bool:
    """Return True if `n` convolves images, or videos, with 3 x 3 windows of stride and dilation 1."""
    windows = match_convolution(n)
    if windows is None or windows.groups > 1 or (windows.stride[-2:], windows.dilation[-2:]) != ((1, 1), (1, 1)):
        return False
    return n.operands[1].shape[-2:] == (3, 3)


def best_tile(
    n: Node, context: Context, max_error: float, max_time_ratio: float, size_hint: int = DEFAULT_SIZE_HINT
) -> int:
    """Return the fastest tile size, 0 for direct convolution; minimax regret over dynamic sizes up to `size_hint`."""
    if not is_supported(n):
        return 0
    allowed = [m for m in INTERPOLATION_POINTS if ERROR_GROWTH[m] <= max_error]
    dot = matching_shape(n.operands, f32, context.matrix_shapes)
    at_once = dot.k if dot else 1

    def times(values: dict[str, int]) -> dict[int, float]:
        shape = tuple(dim_hint(substitute(d, values)) for d in n.shape)
        return {
            m: seconds(n, shape, m, context.machine, at_once) / (1 if m else 1 / max_time_ratio) for m in [*allowed, 0]
        }

    return minimize_max_regret(times, {s for d in n.shape for s in dynamic_sizes(d)}, size_hint)


def seconds(n: Node, shape: Sequence[int], m: int, machine: Machine, at_once: int = 1) -> float:
    """Estimate the seconds of a convolution with results of `shape` in tiles of m x m (0: direct, `at_once` products at a time).

    Counts multiply-adds, bytes that exceed the L2 cache, and weights, which come from memory in every call of a network.
    """
    batch, outputs, *frames, height, width = shape
    channels, *taps = n.operands[1].type.static_shape()[1:-2]
    images, input_channels = batch * math.prod(frames), channels * math.prod(taps)
    points, tiles = ((m + 2) ** 2, images * -(-height // m) * -(-width // m)) if m else (9, images * height * width)
    products = points * tiles * input_channels * outputs
    moved_bytes = machine.memory_slowdown * 4 * points * input_channels * outputs
    if not m:
        moved = machine.seconds(moved_bytes / at_once / machine.l3_bytes_per_cycle)
        return machine.operation_seconds(products / at_once) + moved
    transforms = tiles * (channels * 2 * (m + 2) ** 3 + outputs * 2 * m * (m + 2) ** 2)
    gathered = [input_channels] if input_channels > channels else []  # frames are copied for each window
    for size in (4 * points * tiles * c for c in (channels, *gathered, outputs)):
        moved_bytes += 2 * max(0, size - machine.l2)
    operations = products / machine.products_efficiency + transforms
    return machine.operation_seconds(operations) + machine.seconds(moved_bytes / machine.l3_bytes_per_cycle)


def tile_grid(n: Node, m: int) -> tuple[Dim, Dim]:
    """Return the number of rows and columns of m x m tiles that cover the results of `n`."""
    height, width = n.shape[-2:]
    return ceildiv(height, m), ceildiv(width, m)


def read_shape(n: Node, m: int) -> tuple[Dim, ...]:
    """Return the extents of the images that convolution `n` reads in tiles of m x m."""
    rows, columns = tile_grid(n, m)
    return (*n.operands[0].shape[:-2], rows * m + 2, columns * m + 2)


def winograd_convolution(n: Node, x: Node, m: int) -> Node:
    """Build convolution `n` of images `x`, extended to whole tiles, as transforms around one matrix product per point.

    The result has whole tiles.  Each frame of a video is transformed once; the frames of a window count as channels.
    """
    output_transform, kernel_transform, input_transform = toom_cook_matrices(m, 3)
    points, rank = m + 2, n.type.rank
    batch, outputs, *frames = n.shape[:-2]
    rows, columns = tile_grid(n, m)

    tile_rows = ops.unfold(x, dim=rank - 2, size=points, step=m, dilation=1)
    # [batch, channels, *frames, rows, columns, points, points]
    tiles = ops.unfold(tile_rows, dim=rank - 1, size=points, step=m, dilation=1)
    unfolded_frames = unfold_frames(n, transform_tiles(tiles, rank, input_transform))
    # the points of a tile are adjacent in memory, so that transforms touch few pages
    channels_last = ops.permute(unfolded_frames, dims=(0, *range(2, unfolded_frames.type.rank), 1))
    tile_count = product((batch, *frames, rows, columns))
    channels = product((*unfolded_frames.shape[rank + 2 :], unfolded_frames.shape[1]))
    left = ops.reshape(channels_last, shape=(tile_count, points**2, 1, channels))
    products = ops.matmul(left, transformed_weights(n.operands[1], kernel_transform))
    grid = ops.reshape(products, shape=(batch, *frames, rows, columns, points, points, outputs))
    gathered = ops.permute(grid, dims=(0, rank + 1, *range(1, rank + 1)))
    result = transform_tiles(gathered, rank, output_transform)
    interleaved = ops.permute(result, dims=(*range(rank - 1), rank, rank - 1, rank + 1))
    tiled_result = ops.reshape(interleaved, shape=(batch, outputs, *frames, rows * m, columns * m))
    return tiled_result.with_loc(n.loc)


def transform_tiles(tiles: Node, dim: int, matrix: Matrix) -> Node:
    """Multiply tiles in dimensions `dim` and `dim + 1` by `matrix` from both sides."""
    entries = as_floats(matrix)
    return ops.constant_linear(ops.constant_linear(tiles, dim=dim, matrix=entries), dim=dim + 1, matrix=entries)


def unfold_frames(n: Node, transformed_tiles: Node) -> Node:
    """Unfold tiles [batch, channels, *frames, ...] to [batch, channels, *frames of `n`, ..., *frames of a window]."""
    windows, taps = match_convolution(n), n.operands[1].type.static_shape()[2:-2]
    assert windows is not None
    for d, (size, step, dilation) in enumerate(zip(taps, windows.stride, windows.dilation, strict=False), 2):
        transformed_tiles = ops.unfold(transformed_tiles, dim=d, size=size, step=step, dilation=dilation)
    return transformed_tiles


def transformed_weights(w: Node, kernel_transform: Matrix) -> Node:
    """Return the constant [points, frames * channels, outputs] of transformed windows, computed when it is needed."""
    array, g = w.attrs["value"].array, np.array(as_floats(kernel_transform))
    kron_transform = np.kron(g, g)
    shape = (len(kron_transform), math.prod(array.shape[1:-2]), len(array))

    def compute(start: int, stop: int) -> Array:
        return transform_windows(frames_as_channels(w.dtype.decode(array[start:stop])), kron_transform)

    return constant_node(LazyConstant(f32, shape, compute), loc=w.loc)


def frames_as_channels(array: Array) -> Array:
    """Reshape windows [outputs, channels, *frames, 3, 3] to [outputs, frames * channels, 3, 3]."""
    return np.moveaxis(array, 1, -3).reshape(len(array), -1, *array.shape[-2:])


def transform_windows(array: Array, kron_transform: Array) -> Array:
    """Transform [outputs, channels, 3, 3] by [points, 9] in float64, rounded once: [points, channels, outputs]."""
    outputs, channels = array.shape[:2]
    transformed = np.empty((len(kron_transform), channels, outputs), np.float32)
    # one product for each channel: too small for the threads of BLAS, which would disturb other kernels
    for o, c in itertools.product(range(0, outputs, TRANSFORM_BLOCK), range(0, channels, TRANSFORM_BLOCK)):
        block = array[o : o + TRANSFORM_BLOCK, c : c + TRANSFORM_BLOCK]
        taps = block.reshape(*block.shape[:2], -1).transpose(1, 2, 0).astype(np.float64, order="C")
        transformed[:, c : c + TRANSFORM_BLOCK, o : o + TRANSFORM_BLOCK] = (kron_transform @ taps).transpose(1, 0, 2)
    return transformed


def toom_cook_matrices(m: int, r: int) -> tuple[Matrix, Matrix, Matrix]:
    """Return the matrices A^T, G and B^T of the Toom-Cook algorithm: y = A^T ((G g) * (B^T d)).

    They give `m` results y of a convolution of m + r - 1 elements d with a window g of `r` taps, by m + r - 1 products.
    """
    points = [Fraction(p) for p in INTERPOLATION_POINTS[m]]
    count = m + r - 1
    output_transform = tuple((*(p**i for p in points), Fraction(i == m - 1)) for i in range(m))
    kernel_transform, input_transform = list[tuple[Fraction, ...]](), list[tuple[Fraction, ...]]()
    for j, p in enumerate(points):
        others = [q for k, q in enumerate(points) if k != j]
        scale = math.prod(p - q for q in others)
        kernel_transform.append(tuple(p**k / scale for k in range(r)))
        input_transform.append((*polynomial_coefficients(others), Fraction(0)))
    kernel_transform.append(tuple(Fraction(k == r - 1) for k in range(r)))
    input_transform.append(tuple(polynomial_coefficients(points)))
    assert all(len(row) == count for row in input_transform)
    return output_transform, tuple(kernel_transform), tuple(input_transform)


def polynomial_coefficients(roots: Sequence[Fraction]) -> list[Fraction]:
    """Return the coefficients of the monic polynomial with these roots, constant term first."""
    coefficients = [Fraction(1)]
    for root in roots:
        coefficients = [
            b - root * a for a, b in zip([*coefficients, Fraction(0)], [Fraction(0), *coefficients], strict=True)
        ]
    return coefficients


def as_floats(matrix: Matrix) -> tuple[tuple[float, ...], ...]:
    """Convert the entries to floats."""
    return tuple(tuple(float(e) for e in row) for row in matrix)
