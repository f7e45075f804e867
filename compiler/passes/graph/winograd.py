"""Convolutions with 3-wide windows by fewer multiplications."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np

from compiler.ir import ops
from compiler.ir.atoms import FEW, MANY
from compiler.ir.graph import CONSTANT, Computed, Graph, Node, constant
from compiler.ir.index import Dim, ceildiv, product, sizes, substitute
from compiler.ir.tile import known
from compiler.ir.types import f32
from compiler.passes.base import Context, GraphPass, register
from compiler.passes.expectation import steadiest
from compiler.passes.overhang import Overhangs, part, reaching, with_zeros
from compiler.passes.windows import windows, zeros_around
from compiler.perf.machine import Machine

Matrix: TypeAlias = tuple[tuple[Fraction, ...], ...]

POINTS = {2: (0, 1, -1), 4: (0, 1, -1, Fraction(1, 2), -2)}
"""Where the polynomials are evaluated, for each size of tile, infinity aside: those of least error (Barabasz et al.,
"Error Analysis and Improving the Accuracy of Winograd Convolution", 2020)."""

ERROR = {2: 2.0, 4: 12.0}
"""By how much the largest rounding error grows against adding up the products (measured over random tensors)."""

BLOCK = 64
"""Outputs and channels whose weights are transformed at once: the memory in between is little, and the same for all."""

WAIT = 2
"""How much longer weights take than other bytes: few results use each of them, so that nothing hides the wait."""


@register
@dataclass(frozen=True)
class Winograd(GraphPass):
    """%y = conv %x, %w {stride=[1, 1]}   ->   %y = transform of (transform of %x) @ (transform of %w)

    F(m x m, 3 x 3) of Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", 2016: each tile of m x m results
    takes (m + 2)^2 multiplications for each pair of channels instead of 9 m^2.  Only for constant f32 weights, where the cost model
    says that it takes less than `gain` of the time, and where the error grows by no more than `max_error` (0: never).
    """

    name = "winograd"
    max_error: float = 16.0
    gain: float = 0.8

    def run(self, ir: Graph, context: Context) -> Graph:
        machine = context.machine or Machine()
        allowed = self.max_error if (context.options is None or context.options.winograd) else 0.0
        tiles = {n: tile for n in ir.nodes if (tile := best_tile(n, machine, allowed, self.gain))}
        for n in filter(is_open, ir.nodes):
            if (tile := best_tile(n, machine, allowed, self.gain, usual=FEW)) != tiles.get(n, 0):
                context.otherwise_if_small = True
                context.note(self, f"small images take {f'tiles of {tile} x {tile}' if tile else 'no tiles'}", n)
        if not tiles:
            return ir
        over = Overhangs(ir, {n.operands[0]: image(n, tile) for n, tile in tiles.items()})

        def rule(n: Node, operands: tuple[Node, ...]) -> Node:
            if n in over.padded:
                return part(over.padded[n], (0,) * n.type.rank, n.shape)
            new, tile = n.with_operands(operands), tiles.get(n)
            if tile:
                why = (
                    f"computed in tiles of {tile} x {tile} from {(tile + 2) ** 2} products instead of {9 * tile * tile}"
                )
                context.applied(self, why, n)
                # what else stands behind an image would spread over its tile, were it infinite
                wider = reaching if zeros_around(n.operands[0]) is not None else with_zeros
                x = wider(new.operands[0], image(n, tile))
                return over.placed(n, over.cut(rewritten(new, x, tile), n.shape))
            if n in over.reads and zeros_around(n) is not None:
                return over.cut(over.around(n, *operands), n.shape)
            return over.placed(n, over.sunk(new))

        return ir.rebuild(rule)


def fits(n: Node) -> bool:
    """Whether `n` is a plain convolution of f32 images with constant 3 x 3 windows."""
    return is_plain(n) and n.operands[1].op is CONSTANT


def is_open(n: Node) -> bool:
    """Whether `n` fits and has a dimension of open size."""
    return fits(n) and any(sizes(d) for d in n.shape)


def is_plain(n: Node) -> bool:
    """Whether `n` is a convolution of f32 images, or of frames of them, with 3 x 3 windows at every place."""
    found = windows(n)
    if found is None or (found.stride[-2:], found.dilation[-2:]) != ((1, 1), (1, 1)):
        return False
    return n.operands[1].shape[-2:] == (3, 3) and all(x.dtype == f32 for x in (n, *n.operands))


def best_tile(n: Node, machine: Machine, max_error: float, gain: float, usual: int = MANY) -> int:
    """The size of tile that takes least time, 0 for adding up the products; of open images, what never takes much more than the best
    at the sizes that are tried: those that are likely, or `usual` if that is less, and smaller ones.
    """
    if not fits(n):
        return 0
    allowed = [m for m in POINTS if ERROR[m] <= max_error]

    def times(values: dict[str, int]) -> dict[int, float]:
        shape = tuple(known(substitute(d, values)) for d in n.shape)
        return {m: cycles(n, shape, m, machine) / (1 if m else 1 / gain) for m in [*allowed, 0]}

    return steadiest(times, {s for d in n.shape for s in sizes(d)}, usual)


def cycles(n: Node, shape: Sequence[int], m: int, machine: Machine) -> float:
    """Time of the convolution of that shape in tiles of m (0: directly): multiply-adds, what does not stay in the second-level
    cache, and weights, which come from memory in every call of a network.
    """
    batch, outputs, *frames, height, width = shape
    channels, *taps = n.operands[1].type.static_shape()[1:-2]
    images, seen = batch * math.prod(frames), channels * math.prod(taps)
    fma = machine.fma_per_cycle * machine.lanes(32)
    points, tiles = ((m + 2) ** 2, images * -(-height // m) * -(-width // m)) if m else (9, images * height * width)
    products = points * tiles * seen * outputs
    moved = WAIT * 4 * points * seen * outputs
    if not m:
        return products / fma + moved / machine.l3_bytes_per_cycle
    transforms = tiles * (channels * 2 * (m + 2) ** 3 + outputs * 2 * m * (m + 2) ** 2)
    gathered = [seen] if seen > channels else []  # what several windows see stands beside each of them
    for size in (4 * points * tiles * c for c in (channels, *gathered, outputs)):
        moved += 2 * max(0, size - machine.l2)
    return (products / 0.9 + transforms) / fma + moved / machine.l3_bytes_per_cycle


def tiled(n: Node, m: int) -> tuple[Dim, Dim]:
    """Rows and columns of tiles of m x m that cover the results of `n`."""
    height, width = n.shape[-2:]
    return ceildiv(height, m), ceildiv(width, m)


def image(n: Node, m: int) -> tuple[Dim, ...]:
    """How far the convolution `n` in tiles of m x m reads its images."""
    rows, columns = tiled(n, m)
    return (*n.operands[0].shape[:-2], rows * m + 2, columns * m + 2)


def rewritten(n: Node, x: Node, m: int) -> Node:
    """The convolution `n` of the images `x` as transforms around one matrix product for each point; and what is beyond `n`.

    Each frame of a film is transformed once; the frames that a window sees are as channels.
    """
    outer, kernel, image = transforms(m, 3)
    points, rank = m + 2, n.type.rank
    batch, outputs, *frames = n.shape[:-2]
    rows, columns = tiled(n, m)

    lines = ops.unfold(x, dim=rank - 2, size=points, step=m, dilation=1)
    # [batch, channels, *frames, rows, columns, points, points]
    tiles = ops.unfold(lines, dim=rank - 1, size=points, step=m, dilation=1)
    spread = ops.mix(ops.mix(tiles, dim=rank, matrix=floats(image)), dim=rank + 1, matrix=floats(image))
    seen = with_frames(n, spread)
    # each tile's points side by side, so that transforms stay in few pages
    apart = ops.permute(seen, dims=(0, *range(2, seen.type.rank), 1))
    places, channels = product((batch, *frames, rows, columns)), product((*seen.shape[rank + 2 :], seen.shape[1]))
    left = ops.reshape(apart, shape=(places, points**2, 1, channels))
    products = ops.matmul(left, weights(n.operands[1], kernel))
    grid = ops.reshape(products, shape=(batch, *frames, rows, columns, points, points, outputs))
    gathered = ops.permute(grid, dims=(0, rank + 1, *range(1, rank + 1)))
    result = ops.mix(ops.mix(gathered, dim=rank, matrix=floats(outer)), dim=rank + 1, matrix=floats(outer))
    woven = ops.permute(result, dims=(*range(rank - 1), rank, rank - 1, rank + 1))
    whole = ops.reshape(woven, shape=(batch, outputs, *frames, rows * m, columns * m))
    return whole.at(n.loc)


def with_frames(n: Node, spread: Node) -> Node:
    """`spread` [batch, channels, *frames, ...] at the first frame of each window of `n`, with the frames that it sees behind."""
    found, taps = windows(n), n.operands[1].type.static_shape()[2:-2]
    assert found is not None
    for d, (size, step, dilation) in enumerate(zip(taps, found.stride, found.dilation, strict=False), 2):
        spread = ops.unfold(spread, dim=d, size=size, step=step, dilation=dilation)
    return spread


def weights(w: Node, kernel: Matrix) -> Node:
    """The constant [points, frames * channels, outputs] of transformed windows."""
    array, g = w.attrs["value"].array, np.array(floats(kernel))
    both = np.kron(g, g)
    shape = (len(both), math.prod(array.shape[1:-2]), len(array))
    return constant(Computed(f32, shape, lambda start, stop: planes(side_by_side(array[start:stop]), both)), loc=w.loc)


def side_by_side(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Windows [outputs, channels, *frames, 3, 3] as of one frame with the channels of all: [outputs, frames * channels, 3, 3]."""
    return np.moveaxis(array, 1, -3).reshape(len(array), -1, *array.shape[-2:])


def planes(array: np.ndarray[Any, Any], both: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Windows [outputs, channels, 3, 3] times the matrix [points, 9], in float64 and rounded once: [points, channels, outputs]."""
    outputs, channels = array.shape[:2]
    found = np.empty((len(both), channels, outputs), np.float32)
    # one product for each channel: too small for threads, which would be in the way of others
    for o, c in itertools.product(range(0, outputs, BLOCK), range(0, channels, BLOCK)):
        some = array[o : o + BLOCK, c : c + BLOCK]
        taps = some.reshape(*some.shape[:2], -1).transpose(1, 2, 0).astype(np.float64, order="C")
        found[:, c : c + BLOCK, o : o + BLOCK] = (both @ taps).transpose(1, 0, 2)
    return found


def transforms(m: int, r: int) -> tuple[Matrix, Matrix, Matrix]:
    """A^T, G and B^T with y = A^T ((G g) * (B^T d)) for m results y of a window g of r on m + r - 1 elements d (Toom and Cook)."""
    points = [Fraction(p) for p in POINTS[m]]
    count = m + r - 1
    outer = tuple((*(p**i for p in points), Fraction(i == m - 1)) for i in range(m))
    kernel, image = list[tuple[Fraction, ...]](), list[tuple[Fraction, ...]]()
    for j, p in enumerate(points):
        others = [q for k, q in enumerate(points) if k != j]
        scale = polynomial(others, at=p)
        kernel.append(tuple(p**k / scale for k in range(r)))
        image.append((*coefficients(others), Fraction(0)))
    kernel.append(tuple(Fraction(k == r - 1) for k in range(r)))
    image.append(tuple(coefficients(points)))
    assert all(len(row) == count for row in image)
    return outer, tuple(kernel), tuple(image)


def coefficients(roots: Sequence[Fraction]) -> list[Fraction]:
    """The polynomial with these roots, constant term first."""
    found = [Fraction(1)]
    for root in roots:
        found = [b - root * a for a, b in zip([*found, Fraction(0)], [Fraction(0), *found], strict=True)]
    return found


def polynomial(roots: Sequence[Fraction], at: Fraction) -> Fraction:
    """Its value at one point."""
    value = Fraction(1)
    for root in roots:
        value *= at - root
    return value


def floats(matrix: Matrix) -> tuple[tuple[float, ...], ...]:
    """The entries as floats."""
    return tuple(tuple(float(e) for e in row) for row in matrix)
