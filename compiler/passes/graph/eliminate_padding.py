"""Convolutions that leave out the padding of their image instead of multiplying by its zeros."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise, product
from math import prod
from typing import TypeAlias

import numpy as np

from compiler.analysis.convolution_match import ConvolutionWindow, match_convolution, match_zero_padding
from compiler.analysis.reduction_domains import guard_never_holds
from compiler.analysis.size_hints import minimize_max_regret
from compiler.analysis.store_domains import guard_interval, order_split_points
from compiler.cost.contraction import ContractionProblem, best_common_width
from compiler.cost.machine import CACHE_LINE_BYTES, Machine
from compiler.errors import LoweringError
from compiler.ir import ops
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import CONSTANT, Node
from compiler.ir.graph.structure import ConstantLinear, Elementwise, Guard, IndexMap, Reduction
from compiler.ir.symbolic.index_atoms import DEFAULT_SIZE_HINT, SMALL_SIZE_HINT, DynamicSize
from compiler.ir.symbolic.index_expr import Dim, dynamic_sizes, substitute, var
from compiler.ir.tile.kernel import dim_hint
from compiler.passes.base import Context, GraphPass, register

OutputSegment: TypeAlias = tuple[Dim, int]
"""Neighbouring results along one dimension, and how many taps of their windows lie inside the image."""

CODE_SIZE_PENALTY = 0.01
"""Share of the time by which each further loop nest must pay, for the code it adds: twice, if it may leave rows over."""

MEMORY_LATENCY = 100
"""Cycles that a line of memory takes to come where several are on their way."""

DYNAMIC_ROWS = 840
"""Rows that an open number of them counts as: a multiple of all blocks, as leftover rows differ from size to size."""

MIN_CHANNELS = 16
"""Channels that the results have at least, so that lanes lie along them."""


@register
@dataclass(frozen=True)
class EliminatePadding(GraphPass):
    """%p = pad %x {before=[0, 0, 12], after=[0, 0, 12]}  %y = conv %p, %w   ->   %y = conv %x, %w {before=[12], after=[12]}

    Lowering splits the convolution's loops where other taps of its windows lie inside the image, and each part adds only
    these.  For those dimensions where the cost model says that the products saved are worth shorter loops, `most` parts of them
    in all; and for constant weights without infinities alone, whose products with the padding are zeros.
    """

    name = "eliminate-padding"
    max_loop_nests: int = 16

    def run(self, ir: Graph, context: Context) -> Graph:
        machine, chosen = context.machine or Machine(), dict[Node, tuple[PaddedConvolution, tuple[bool, ...]]]()
        for n in ir.nodes:
            if (c := match_padded_convolution(n)) is None:
                continue
            single_use = len(ir.users[n.operands[0]]) == 1
            best = self.best_dims(c, single_use, machine)
            if c.image_sizes and self.best_dims(c, single_use, machine, size_hint=SMALL_SIZE_HINT) != best:
                context.wants_small_variant = True
                context.note(self, "small images take other parts", n)
            if not any(best):
                context.missed(self, "parts of its loops would take longer than products with the padding", n)
                continue
            chosen[n] = c, best
            dims = " and ".join(str(2 + k) for k, d in enumerate(best) if d)
            context.applied(self, f"taps beyond the image are left out in dimension {dims}", n)

        def rule(n: Node, operands: tuple[Node, ...]) -> Node:
            new = n.with_operands(operands)
            return without_padding(new, *chosen[n]) if n in chosen else new

        return ir.map_nodes(rule) if chosen else ir

    def best_dims(
        self, c: PaddedConvolution, single_use: bool, machine: Machine, size_hint: int = DEFAULT_SIZE_HINT
    ) -> tuple[bool, ...]:
        """In which dimensions leaving out taps beyond the image takes least time; of open images, what never takes much more than
        the best at the sizes that are tried.
        """
        ways = sorted(product((True, False), repeat=len(c.padding)), key=sum)  # few dimensions first, outer ones

        def times(values: dict[str, int]) -> dict[tuple[bool, ...], float]:
            return {w: self.cycles(replace(c, size_values=values), w, single_use, machine) for w in ways}

        return minimize_max_regret(times, c.image_sizes, size_hint)

    def cycles(self, c: PaddedConvolution, eliminated: tuple[bool, ...], single_use: bool, machine: Machine) -> float:
        """The time of the convolution and of its padding, where taps beyond the image are left out in the dimensions `dropped`."""
        n, w = c.node, c.node.operands[1].type.static_shape()
        unsplit = [[(size, taps)] for size, taps in zip(n.shape[2:], w[2:], strict=True)]
        lines = [c.output_segments[k] if d else unsplit[k] for k, d in enumerate(eliminated)]
        pieces = prod(len(line) for line in lines)
        if pieces > self.max_loop_nests:
            return float("inf")
        columns, lanes, element = w[0], machine.lanes(n.dtype.bits), n.dtype.bytes
        row_stride = c.windows.stride[-1] * w[1] * element  # of pixels whose channels lie innermost
        parts, code = [], -1
        for piece in product(*lines):
            steps, taps = [c.expected_size(s) for s, _ in piece], [t for _, t in piece]
            products = w[0] * c.expected_size(n.shape[0]) * prod(steps) * w[1] * prod(taps)
            problem = ContractionProblem(
                columns, lanes, w[1] * prod(taps), products, row_stride=row_stride, element_bytes=element
            )
            longest = max(s if isinstance(s, int) else DYNAMIC_ROWS for s, _ in piece)
            if products:
                parts.append((longest, problem))
                code += 1 if all(isinstance(s, int) for s, _ in piece) else 2
        time = best_common_width(parts, machine)[0] * (1 + CODE_SIZE_PENALTY * code)
        return (
            max(time, memory_wait_cycles(c, eliminated))
            + padding_bytes(c, eliminated, single_use) / machine.l3_bytes_per_cycle
        )


@dataclass(frozen=True)
class PaddedConvolution:
    """A convolution `node` of an image with zeros around it, `margins` of them before and after in each window dimension, and the
    `values` that its sizes are expected to have where they are open.
    """

    node: Node
    windows: ConvolutionWindow
    padding: tuple[tuple[int, int], ...]
    size_values: Mapping[str, int] = field(default_factory=dict)

    @property
    def image(self) -> Node:
        """The image without its padding."""
        return self.node.operands[0].operands[0]

    @property
    def image_sizes(self) -> set[DynamicSize]:
        """The open sizes in its shape."""
        return {s for d in self.image.shape for s in dynamic_sizes(d)}

    def expected_size(self, d: Dim) -> int:
        """What a size is expected to be."""
        return dim_hint(substitute(d, self.size_values))

    @property
    def output_segments(self) -> list[list[OutputSegment]]:
        """The results along each window dimension, those together whose windows have the same taps inside the image."""
        sizes = zip(self.image.shape[2:], self.node.operands[1].shape[2:], self.node.shape[2:], strict=True)
        numbers = zip(sizes, self.padding, self.windows.stride, self.windows.dilation, strict=True)
        return [segments_by_taps(*size, before, stride, dilation) for size, (before, _), stride, dilation in numbers]


@lru_cache(maxsize=1024)
def segments_by_taps(
    size: Dim, taps: int, results: Dim, before: int, stride: int, dilation: int
) -> list[OutputSegment]:
    """Neighbouring results together that have the same of their taps inside an image of `size`, as `taps.cuts` will part them.

    LowerError where it is open which of an open number of results these are.
    """
    inside = [Guard(var("i") * stride + (t * dilation - before), 0, size) for t in range(taps)]
    ends = order_split_points(results, {place for g in inside for place in guard_interval(g, "i")})
    return [(hi - lo, sum(not guard_never_holds(g, {"i": (lo, hi - 1)}) for g in inside)) for lo, hi in pairwise(ends)]


def match_padded_convolution(n: Node) -> PaddedConvolution | None:
    """The convolution `n` of a padded image with constant windows, many of them, over all channels; None for any other node.

    Groups of channels are taken apart as loops of one nest (`delinearize`), which parts would hide.
    """
    if len(n.operands) != 2 or n.operands[1].op is not CONSTANT or (found := match_convolution(n)) is None:
        return None
    image, weight = n.operands
    zeros = match_zero_padding(image)
    if zeros is None or any(z != (0, 0) for z in zeros[:2]) or weight.shape[0] < MIN_CHANNELS:
        return None
    margins = tuple((b, a) for b, a in zeros[2:] if isinstance(b, int) and isinstance(a, int))
    if len(margins) < len(zeros[2:]) or not np.isfinite(weight.attrs["value"].numpy_values).all():
        return None
    c = PaddedConvolution(n, found, margins)
    try:
        return c if c.output_segments else None
    except LoweringError:
        return None


def padding_bytes(c: PaddedConvolution, eliminated: tuple[bool, ...], single_use: bool) -> int:
    """Bytes that are written and read to pad the image in the other dimensions, for this convolution alone."""
    image, remaining_padding = c.image, [(0, 0) if d else pair for d, pair in zip(eliminated, c.padding, strict=True)]
    if not any(map(any, remaining_padding)):
        return 0
    shape = [c.expected_size(d) for d in image.shape]
    box = prod(shape[:2]) * prod(b + size + a for (b, a), size in zip(remaining_padding, shape[2:], strict=True))
    own = prod(shape)
    return (
        (box - own if has_reduction_producer(image) else box + own) * image.dtype.bytes
        if single_use or any(eliminated)
        else 0
    )


def memory_wait_cycles(c: PaddedConvolution, eliminated: tuple[bool, ...]) -> float:
    """Cycles in which the lines of an image come that no kernel has written or copied before; products take that long at least."""
    image = c.image
    direct = not any(any(pair) and not d for d, pair in zip(eliminated, c.padding, strict=True))
    size = prod(map(c.expected_size, image.shape)) * image.dtype.bytes
    return MEMORY_LATENCY * size / CACHE_LINE_BYTES if direct and not has_reduction_producer(image) else 0.0


def has_reduction_producer(n: Node) -> bool:
    """Whether a kernel makes `n`, which then stores it inside the padding."""
    seen, left = set[Node](), [n]
    while left:
        m = left.pop()
        if isinstance(m.structure, (Reduction, ConstantLinear)):
            return True
        if isinstance(m.structure, (Elementwise, IndexMap)) and m not in seen:
            seen.add(m)
            left += m.operands
    return False


def without_padding(n: Node, c: PaddedConvolution, eliminated: tuple[bool, ...]) -> Node:
    """`n`, the convolution `c`, with windows that reach beyond the image in the dimensions `dropped`; the others stay padded."""
    image, weight = n.operands[0].operands[0], n.operands[1]
    implicit_padding = [pair if d else (0, 0) for d, pair in zip(eliminated, c.padding, strict=True)]
    remaining_padding = [(0, 0) if d else pair for d, pair in zip(eliminated, c.padding, strict=True)]
    x = ops.pad_spatial(image, [b for b, _ in remaining_padding], [a for _, a in remaining_padding])
    (before, after) = zip(*implicit_padding, strict=True)
    wide = n.dtype if n.dtype != image.dtype else None
    stride, dilation = c.windows.stride, c.windows.dilation
    return ops.conv(x, weight, stride=stride, dilation=dilation, before=before, after=after, dtype=wide).with_loc(n.loc)
