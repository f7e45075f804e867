"""Convolutions and reductions over windows that skip the padding of their image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise, product
from math import prod
from typing import TypeAlias

from compiler.analysis.convolution_match import ConvolutionWindow, match_convolution, match_zero_padding
from compiler.analysis.index_sets import guard_interval, guard_never_holds, order_split_points
from compiler.analysis.size_hints import minimize_max_regret
from compiler.analysis.windows import PaddedWindows, contiguous_dim, match_padded_windows
from compiler.cost.contraction import ContractionProblem, best_common_width
from compiler.cost.machine import CACHE_LINE_BYTES, Machine
from compiler.cost.windows import WindowStep, window_seconds
from compiler.errors import LoweringError
from compiler.ir import ops
from compiler.ir.graph.graph import Graph, reachable
from compiler.ir.graph.node import CONSTANT, Node
from compiler.ir.graph.structure import ConstantLinear, Elementwise, Guard, IndexMap, Reduction
from compiler.ir.symbolic.index_atoms import DEFAULT_SIZE_HINT, SMALL_SIZE_HINT, DynamicSize
from compiler.ir.symbolic.index_expr import Dim, dynamic_sizes, substitute, var
from compiler.ir.tile.kernel import dim_hint
from compiler.passes.base import Context, GraphPass, register
from compiler.passes.graph.fold import is_known_finite

OutputSegment: TypeAlias = tuple[Dim, int]
"""Number of adjacent outputs along one dimension, and of the taps of their windows that lie inside the image."""

DYNAMIC_ROWS = 840
"""Rows assumed for a dynamic number of them: a multiple of 1..8, so that no tile height leaves a remainder."""


@register
@dataclass(frozen=True)
class EliminatePadding(GraphPass):
    """Skip the padding of an image that a convolution or a reduction over windows reads.

    %p = pad %x {before=[0, 0, 12], after=[0, 0, 12]}  %y = conv %p, %w   ->   %y = conv %x, %w {before=[12], after=[12]}

    Lowering splits the convolution's loops by the taps that lie inside the image; each loop nest adds only these.
    The cost model chooses the dimensions, weighing saved products against shorter loops, with at most `max_loop_nests`.
    Weights must be constant and finite, so that their products with the padding are zeros.

    %p = pad %x {value=-inf, ...}  %y = max_pool %p   ->   %y = max_pool %x {before=[1, 1], after=[1, 1]}

    Maxima and sums over windows skip padding with their identity, if the image would be copied to be padded and the copy
    costs more than the shorter loops.
    """

    name = "eliminate-padding"
    max_loop_nests: int = 16

    def run(self, ir: Graph, context: Context) -> Graph:
        machine, new = context.machine, dict[Node, Node]()
        for n in ir.nodes:
            windows = match_padded_windows(n)
            if windows is not None and self.copy_costs_more(windows, ir, machine):
                if context.may_apply(self, "padding skipped, not copied with the image", n):
                    new[n] = windows.without_padding()
                continue
            if (c := match_padded_convolution(n, machine.min_channels)) is None:
                continue
            single_use = len(ir.users[n.operands[0]]) == 1
            best = self.best_dims(c, single_use, machine)
            if c.image_sizes and self.best_dims(c, single_use, machine, size_hint=SMALL_SIZE_HINT) != best:
                context.wants_small_variant = True
                context.note(self, "small images choose other dimensions", n)
            if not any(best):
                context.missed(self, "splitting the loops costs more than multiplying the padding", n)
                continue
            dims = " and ".join(str(2 + k) for k, d in enumerate(best) if d)
            if context.may_apply(self, f"padding eliminated in dimension {dims}", n):
                new[n] = without_padding(c, best)
        return ir.replace_nodes(new)

    def copy_costs_more(self, w: PaddedWindows, graph: Graph, machine: Machine) -> bool:
        """Return True if a padded copy of the image costs more than loops that are split by the taps inside the image."""
        n, padded, lane_dim = w.node, w.node.operands[0], contiguous_dim(w.image)
        if len(graph.users[padded]) > 1 or padded in graph.outputs or lane_dim is None:
            return False
        try:
            segments = window_segments(w)
        except LoweringError:
            return False
        if prod(map(len, segments)) > self.max_loop_nests:
            return False
        whole = [(n.shape[k], x.size) for k, x in enumerate(w.windows, n.type.rank - len(w.windows))]
        split = sum(window_nest_seconds(w, nest, lane_dim, machine) for nest in product(*segments))
        copy = machine.round_trip_seconds(dim_hint(padded.type.nbytes))
        dims = range(n.type.rank)  # a copy may lie in any order
        return split < min(window_nest_seconds(w, whole, d, machine) for d in dims) + copy

    def best_dims(
        self, c: PaddedConvolution, single_use: bool, machine: Machine, size_hint: int = DEFAULT_SIZE_HINT
    ) -> tuple[bool, ...]:
        """Choose the dimensions whose padding to eliminate; minimax regret over dynamic image sizes."""
        choices = sorted(product((True, False), repeat=len(c.padding)), key=sum)  # few dimensions first, outer ones

        def times(values: dict[str, int]) -> dict[tuple[bool, ...], float]:
            return {d: self.seconds(replace(c, size_values=values), d, single_use, machine) for d in choices}

        return minimize_max_regret(times, c.image_sizes, size_hint)

    def seconds(self, c: PaddedConvolution, eliminated: tuple[bool, ...], single_use: bool, machine: Machine) -> float:
        """Estimate the seconds of convolution and padding, with padding skipped in `eliminated` dimensions."""
        n, w = c.node, c.node.operands[1].type.static_shape()
        unsplit = [[(size, taps)] for size, taps in zip(n.shape[2:], w[2:], strict=True)]
        segments = [c.output_segments[k] if d else unsplit[k] for k, d in enumerate(eliminated)]
        if prod(map(len, segments)) > self.max_loop_nests:
            return float("inf")
        columns, lanes, element = w[0], machine.lanes(n.dtype.bits), n.dtype.bytes
        row_stride = c.windows.stride[-1] * w[1] * element  # with channels innermost
        problems, code = [], -1
        for nest in product(*segments):
            taps = w[1] * prod(t for _, t in nest)
            products = w[0] * c.expected_size(n.shape[0]) * prod(c.expected_size(s) for s, _ in nest) * taps
            problem = ContractionProblem(columns, lanes, taps, products, row_stride=row_stride, element_bytes=element)
            if products:
                problems.append((max(s if isinstance(s, int) else DYNAMIC_ROWS for s, _ in nest), problem))
                code += 1 if all(isinstance(s, int) for s, _ in nest) else 2
        cycles = best_common_width(problems, machine)[0] * (1 + machine.loop_nest_penalty * code)
        pad_cycles = padding_bytes(c, eliminated, single_use) / machine.l3_bytes_per_cycle
        return machine.seconds(max(cycles, memory_wait_cycles(c, eliminated, machine)) + pad_cycles)


def window_segments(w: PaddedWindows) -> list[list[OutputSegment]]:
    """Return the results along each window dimension, grouped by the taps of their windows that lie inside the image."""
    dims = zip(range(w.node.type.rank - len(w.windows), w.node.type.rank), w.windows, w.padding, strict=True)
    return [
        segments_by_taps(w.image.shape[k], x.size, w.node.shape[k], before, x.stride, x.dilation)
        for k, x, (before, _) in dims
    ]


def window_nest_seconds(w: PaddedWindows, nest: Sequence[OutputSegment], lane_dim: int, machine: Machine) -> float:
    """Return the seconds of a loop nest over so many results and taps along each window dimension, in lanes along `lane_dim`."""
    n, first = w.node, w.node.type.rank - len(nest)
    assert isinstance(n.structure, Reduction)
    sizes = [*map(dim_hint, n.shape[:first]), *(dim_hint(size) for size, _ in nest)]
    lanes, width = machine.lanes(n.dtype.bits), sizes[lane_dim]
    sizes[lane_dim] = -(-width // lanes) * lanes if width >= machine.min_lane_iterations else width * lanes
    step = WindowStep(prod(sizes), prod(taps for _, taps in nest))
    return window_seconds([step], n.structure.combine, n.dtype.bits, machine)


@dataclass(frozen=True)
class PaddedConvolution:
    """A convolution of a zero-padded image.

    `padding` counts zeros before and after in each window dimension; `size_values` are assumed for dynamic sizes.
    """

    node: Node
    windows: ConvolutionWindow
    padding: tuple[tuple[int, int], ...]
    size_values: Mapping[str, int] = field(default_factory=dict)

    @property
    def image(self) -> Node:
        """Image without its padding."""
        return self.node.operands[0].operands[0]

    @property
    def image_sizes(self) -> set[DynamicSize]:
        """Dynamic sizes in the shape of the image."""
        return {s for d in self.image.shape for s in dynamic_sizes(d)}

    def expected_size(self, d: Dim) -> int:
        """Return the value assumed for a size."""
        return dim_hint(substitute(d, self.size_values))

    @property
    def output_segments(self) -> list[list[OutputSegment]]:
        """Outputs along each window dimension, grouped by the taps of their windows that lie inside the image."""
        sizes = zip(self.image.shape[2:], self.node.operands[1].shape[2:], self.node.shape[2:], strict=True)
        numbers = zip(sizes, self.padding, self.windows.stride, self.windows.dilation, strict=True)
        return [segments_by_taps(*size, before, stride, dilation) for size, (before, _), stride, dilation in numbers]


@lru_cache(maxsize=1024)
def segments_by_taps(
    size: Dim, taps: int, results: Dim, before: int, stride: int, dilation: int
) -> list[OutputSegment]:
    """Group adjacent outputs whose windows have the same taps inside an image of `size`, as lowering splits loops.

    LoweringError if the split points of a dynamic number of outputs cannot be ordered.
    """
    inside = [Guard(var("i") * stride + (t * dilation - before), 0, size) for t in range(taps)]
    ends = order_split_points(results, {end for g in inside for end in guard_interval(g, "i")})
    return [(hi - lo, sum(not guard_never_holds(g, {"i": (lo, hi - 1)}) for g in inside)) for lo, hi in pairwise(ends)]


def match_padded_convolution(n: Node, min_channels: int) -> PaddedConvolution | None:
    """Match an ungrouped convolution of a zero-padded image with constant weights and at least `min_channels` outputs.

    Grouped convolutions do not match: `delinearize` splits their channels, and needs one loop nest for that.
    """
    windows = match_convolution(n) if len(n.operands) == 2 and n.operands[1].op is CONSTANT else None
    if windows is None or windows.groups > 1:
        return None
    image, weight = n.operands
    zeros = match_zero_padding(image)
    if zeros is None or any(z != (0, 0) for z in zeros[:2]) or weight.shape[0] < min_channels:
        return None
    margins = tuple((b, a) for b, a in zeros[2:] if isinstance(b, int) and isinstance(a, int))
    if len(margins) < len(zeros[2:]) or not is_known_finite(weight):
        return None
    c = PaddedConvolution(n, windows, margins)
    try:
        return c if c.output_segments else None
    except LoweringError:
        return None


def padding_bytes(c: PaddedConvolution, eliminated: tuple[bool, ...], single_use: bool) -> int:
    """Return the bytes moved to pad the image in the other dimensions, if that is for this convolution only."""
    image, remaining_padding = c.image, [(0, 0) if d else pair for d, pair in zip(eliminated, c.padding, strict=True)]
    if not any(map(any, remaining_padding)):
        return 0
    shape = [c.expected_size(d) for d in image.shape]
    box = prod(shape[:2]) * prod(b + size + a for (b, a), size in zip(remaining_padding, shape[2:], strict=True))
    if not single_use and not any(eliminated):
        return 0
    return (box + (-1 if is_computed_by_reduction(image) else 1) * prod(shape)) * image.dtype.bytes


def memory_wait_cycles(c: PaddedConvolution, eliminated: tuple[bool, ...], machine: Machine) -> float:
    """Return the cycles to read the image from memory, 0 if a kernel wrote it before: a lower bound of the time."""
    image = c.image
    direct = not any(any(pair) and not d for d, pair in zip(eliminated, c.padding, strict=True))
    size = prod(map(c.expected_size, image.shape)) * image.dtype.bytes
    return machine.line_latency * size / CACHE_LINE_BYTES if direct and not is_computed_by_reduction(image) else 0.0


def is_computed_by_reduction(n: Node) -> bool:
    """Return True if a kernel computes `n`, and so stores it inside the padding without a copy."""
    computed = reachable([n], lambda m: m.operands if isinstance(m.structure, (Elementwise, IndexMap)) else ())
    return any(isinstance(m.structure, (Reduction, ConstantLinear)) for m in computed)


def without_padding(c: PaddedConvolution, eliminated: tuple[bool, ...]) -> Node:
    """Rebuild a convolution with implicit padding in the `eliminated` dimensions; the others stay padded."""
    implicit_padding = [pair if d else (0, 0) for d, pair in zip(eliminated, c.padding, strict=True)]
    remaining_padding = [(0, 0) if d else pair for d, pair in zip(eliminated, c.padding, strict=True)]
    x = ops.pad_spatial(c.image, [b for b, _ in remaining_padding], [a for _, a in remaining_padding])
    (before, after) = zip(*implicit_padding, strict=True)
    wide = c.node.dtype if c.node.dtype != c.image.dtype else None
    stride, dilation, w = c.windows.stride, c.windows.dilation, c.node.operands[1]
    new = ops.conv(x, w, stride=stride, dilation=dilation, before=before, after=after, dtype=wide)
    return new.with_loc(c.node.loc)
