"""Convolutions that leave out the padding of their image instead of multiplying by its zeros."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise, product
from math import prod
from typing import TypeAlias

import numpy as np

from compiler.ir import ops
from compiler.ir.atoms import FEW, MANY, Size
from compiler.ir.graph import CONSTANT, Graph, Node
from compiler.ir.index import Dim, sizes, substitute, var
from compiler.ir.structure import Elementwise, Guard, IndexMap, Mix, Reduction
from compiler.ir.tile import known
from compiler.passes.base import Context, GraphPass, register
from compiler.passes.crop import changes, cut
from compiler.passes.expectation import steadiest
from compiler.passes.nest import LowerError
from compiler.passes.taps import never
from compiler.passes.windows import Windows, windows, zeros_around
from compiler.perf.contraction import Shape, equally_wide
from compiler.perf.machine import LINE, Machine

Stretch: TypeAlias = tuple[Dim, int]
"""Neighbouring results along one dimension, and how many taps of their windows lie inside the image."""

CODE = 0.01
"""Share of the time by which each further loop nest must pay, for the code it adds: twice, if it may leave rows over."""

LATENCY = 100
"""Cycles that a line of memory takes to come where several are on their way."""

LONG = 840
"""Rows that an open number of them counts as: a multiple of all blocks, as leftover rows differ from size to size."""

COLUMNS = 16
"""Channels that the results have at least, so that lanes lie along them."""


@register
@dataclass(frozen=True)
class Unpad(GraphPass):
    """%p = pad %x {before=[0, 0, 12], after=[0, 0, 12]}  %y = conv %p, %w   ->   %y = conv %x, %w {before=[12], after=[12]}

    Lowering splits the convolution's loops where other taps of its windows lie inside the image, and each part adds only
    these.  For those dimensions where the cost model says that the products saved are worth shorter loops, `most` parts of them
    in all; and for constant weights without infinities alone, whose products with the padding are zeros.
    """

    name = "unpad"
    most: int = 16

    def run(self, ir: Graph, context: Context) -> Graph:
        machine, chosen = context.machine or Machine(), dict[Node, tuple[Padded, tuple[bool, ...]]]()
        for n in ir.nodes:
            if (c := padded(n)) is None:
                continue
            alone = len(ir.users[n.operands[0]]) == 1
            best = self.best(c, alone, machine)
            if c.sizes and self.best(c, alone, machine, usual=FEW) != best:
                context.otherwise_if_small = True
                context.note(self, "small images take other parts", n)
            if not any(best):
                context.missed(self, "parts of its loops would take longer than products with the padding", n)
                continue
            chosen[n] = c, best
            dims = " and ".join(str(2 + k) for k, d in enumerate(best) if d)
            context.applied(self, f"taps beyond the image are left out in dimension {dims}", n)

        def rule(n: Node, operands: tuple[Node, ...]) -> Node:
            new = n.with_operands(operands)
            return rewritten(new, *chosen[n]) if n in chosen else new

        return ir.rebuild(rule) if chosen else ir

    def best(self, c: Padded, alone: bool, machine: Machine, usual: int = MANY) -> tuple[bool, ...]:
        """In which dimensions leaving out taps beyond the image takes least time; of open images, what never takes much more than
        the best at the sizes that are tried.
        """
        ways = sorted(product((True, False), repeat=len(c.margins)), key=sum)  # few dimensions first, outer ones

        def times(values: dict[str, int]) -> dict[tuple[bool, ...], float]:
            return {w: self.cycles(replace(c, values=values), w, alone, machine) for w in ways}

        return steadiest(times, c.sizes, usual)

    def cycles(self, c: Padded, dropped: tuple[bool, ...], alone: bool, machine: Machine) -> float:
        """The time of the convolution and of its padding, where taps beyond the image are left out in the dimensions `dropped`."""
        n, w = c.node, c.node.operands[1].type.static_shape()
        whole = [[(size, taps)] for size, taps in zip(n.shape[2:], w[2:], strict=True)]
        lines = [c.stretches[k] if d else whole[k] for k, d in enumerate(dropped)]
        pieces = prod(len(line) for line in lines)
        if pieces > self.most:
            return float("inf")
        columns, lanes, element = w[0], machine.lanes(n.dtype.bits), n.dtype.bytes
        apart = c.windows.stride[-1] * w[1] * element  # of pixels whose channels lie innermost
        parts, code = [], -1
        for piece in product(*lines):
            steps, taps = [c.number(s) for s, _ in piece], [t for _, t in piece]
            products = w[0] * c.number(n.shape[0]) * prod(steps) * w[1] * prod(taps)
            shape = Shape(columns, lanes, w[1] * prod(taps), products, apart=apart, element=element)
            longest = max(s if isinstance(s, int) else LONG for s, _ in piece)
            if products:
                parts.append((longest, shape))
                code += 1 if all(isinstance(s, int) for s, _ in piece) else 2
        time = equally_wide(parts, machine)[0] * (1 + CODE * code)
        return max(time, awaited(c, dropped)) + moved(c, dropped, alone) / machine.l3_bytes_per_cycle


@dataclass(frozen=True)
class Padded:
    """A convolution `node` of an image with zeros around it, `margins` of them before and after in each window dimension, and the
    `values` that its sizes are expected to have where they are open.
    """

    node: Node
    windows: Windows
    margins: tuple[tuple[int, int], ...]
    values: Mapping[str, int] = field(default_factory=dict)

    @property
    def image(self) -> Node:
        """The image without its padding."""
        return self.node.operands[0].operands[0]

    @property
    def sizes(self) -> set[Size]:
        """The open sizes in its shape."""
        return {s for d in self.image.shape for s in sizes(d)}

    def number(self, d: Dim) -> int:
        """What a size is expected to be."""
        return known(substitute(d, self.values))

    @property
    def stretches(self) -> list[list[Stretch]]:
        """The results along each window dimension, those together whose windows have the same taps inside the image."""
        sizes = zip(self.image.shape[2:], self.node.operands[1].shape[2:], self.node.shape[2:], strict=True)
        numbers = zip(sizes, self.margins, self.windows.stride, self.windows.dilation, strict=True)
        return [alike(*size, before, stride, dilation) for size, (before, _), stride, dilation in numbers]


@lru_cache(maxsize=1024)
def alike(size: Dim, taps: int, results: Dim, before: int, stride: int, dilation: int) -> list[Stretch]:
    """Neighbouring results together that have the same of their taps inside an image of `size`, as `taps.cuts` will part them.

    LowerError where it is open which of an open number of results these are.
    """
    inside = [Guard(var("i") * stride + (t * dilation - before), 0, size) for t in range(taps)]
    ends = cut(results, {place for g in inside for place in changes(g, "i")})
    return [(hi - lo, sum(not never(g, {"i": (lo, hi - 1)}) for g in inside)) for lo, hi in pairwise(ends)]


def padded(n: Node) -> Padded | None:
    """The convolution `n` of a padded image with constant windows, many of them, over all channels; None for any other node.

    Groups of channels are taken apart as loops of one nest (`delinearize`), which parts would hide.
    """
    if len(n.operands) != 2 or n.operands[1].op is not CONSTANT or (found := windows(n)) is None:
        return None
    image, weight = n.operands
    zeros = zeros_around(image)
    if zeros is None or any(z != (0, 0) for z in zeros[:2]) or weight.shape[0] < COLUMNS:
        return None
    margins = tuple((b, a) for b, a in zeros[2:] if isinstance(b, int) and isinstance(a, int))
    if len(margins) < len(zeros[2:]) or not np.isfinite(weight.attrs["value"].numbers).all():
        return None
    c = Padded(n, found, margins)
    try:
        return c if c.stretches else None
    except LowerError:
        return None


def moved(c: Padded, dropped: tuple[bool, ...], alone: bool) -> int:
    """Bytes that are written and read to pad the image in the other dimensions, for this convolution alone."""
    image, kept = c.image, [(0, 0) if d else pair for d, pair in zip(dropped, c.margins, strict=True)]
    if not any(map(any, kept)):
        return 0
    shape = [c.number(d) for d in image.shape]
    box = prod(shape[:2]) * prod(b + size + a for (b, a), size in zip(kept, shape[2:], strict=True))
    own = prod(shape)
    return (box - own if is_computed(image) else box + own) * image.dtype.bytes if alone or any(dropped) else 0


def awaited(c: Padded, dropped: tuple[bool, ...]) -> float:
    """Cycles in which the lines of an image come that no kernel has written or copied before; products take that long at least."""
    image = c.image
    direct = not any(any(pair) and not d for d, pair in zip(dropped, c.margins, strict=True))
    size = prod(map(c.number, image.shape)) * image.dtype.bytes
    return LATENCY * size / LINE if direct and not is_computed(image) else 0.0


def is_computed(n: Node) -> bool:
    """Whether a kernel makes `n`, which then stores it inside the padding."""
    seen, left = set[Node](), [n]
    while left:
        m = left.pop()
        if isinstance(m.structure, (Reduction, Mix)):
            return True
        if isinstance(m.structure, (Elementwise, IndexMap)) and m not in seen:
            seen.add(m)
            left += m.operands
    return False


def rewritten(n: Node, c: Padded, dropped: tuple[bool, ...]) -> Node:
    """`n`, the convolution `c`, with windows that reach beyond the image in the dimensions `dropped`; the others stay padded."""
    image, weight = n.operands[0].operands[0], n.operands[1]
    reach = [pair if d else (0, 0) for d, pair in zip(dropped, c.margins, strict=True)]
    kept = [(0, 0) if d else pair for d, pair in zip(dropped, c.margins, strict=True)]
    x = ops.pad_spatial(image, [b for b, _ in kept], [a for _, a in kept])
    (before, after) = zip(*reach, strict=True)
    wide = n.dtype if n.dtype != image.dtype else None
    stride, dilation = c.windows.stride, c.windows.dilation
    return ops.conv(x, weight, stride=stride, dilation=dilation, before=before, after=after, dtype=wide).at(n.loc)
