"""Convolutions that leave out the padding of their image instead of multiplying by its zeros."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby, product
from math import prod
from typing import TypeAlias

import numpy as np

from compiler.ir import ops
from compiler.ir.graph import CONSTANT, Graph, Node
from compiler.ir.structure import Elementwise, IndexMap, Mix, Reduction
from compiler.passes.base import Context, GraphPass, register
from compiler.perf.contraction import Shape, equally_wide
from compiler.perf.machine import Machine

Stretch: TypeAlias = tuple[int, int]
"""Neighbouring results along one dimension, and how many taps of their windows lie inside the image."""

CODE = 0.01
"""Share of the time by which each further loop nest must pay, for the code it adds."""

LATENCY, LINE = 100, 64
"""Cycles that a line of memory takes to come where several are on their way, and its bytes."""

FEW = 16
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
        machine, chosen = context.machine or Machine(), dict[Node, tuple[bool, ...]]()
        for n in filter(fits, ir.nodes):
            alone = len(ir.users[n.operands[0]]) == 1
            ways = sorted(
                product((True, False), repeat=len(n.attrs["stride"])), key=sum
            )  # few dimensions first, outer ones
            times = {w: self.cycles(n, w, alone, machine) for w in ways}
            best = min(times, key=lambda w: times[w])
            if not any(best):
                context.missed(self, "parts of its loops would take longer than products with the padding", n)
                continue
            chosen[n] = best
            dims = " and ".join(str(2 + k) for k, d in enumerate(best) if d)
            context.applied(self, f"taps beyond the image are left out in dimension {dims}", n)

        def rule(n: Node, operands: tuple[Node, ...]) -> Node:
            new = n.with_operands(operands)
            return rewritten(new, chosen[n]) if n in chosen else new

        return ir.rebuild(rule) if chosen else ir

    def cycles(self, n: Node, dropped: tuple[bool, ...], alone: bool, machine: Machine) -> float:
        """The time of the convolution and of its padding, where taps beyond the image are left out in the dimensions `dropped`."""
        image, w = n.operands[0], n.operands[1].type.static_shape()
        lines = [stretches(n, k) if d else [(n.shape[2 + k], w[2 + k])] for k, d in enumerate(dropped)]
        pieces = prod(len(line) for line in lines)
        if pieces > self.most:
            return float("inf")
        columns, lanes = w[0], machine.lanes(n.dtype.bits)
        parts = []
        for piece in product(*lines):
            steps, taps = [s for s, _ in piece], [t for _, t in piece]
            products = w[0] * image.shape[0] * prod(steps) * w[1] * prod(taps)
            parts.append((max(steps), Shape(columns, lanes, w[1] * prod(taps), products)))
        time = equally_wide(parts, machine)[0] * (1 + CODE * (pieces - 1))
        return max(time, awaited(n, dropped)) + moved(n, dropped, alone) / machine.l3_bytes_per_cycle


def fits(n: Node) -> bool:
    """Whether `n` is a convolution of a padded image with constant windows, many of them, over all channels.

    Groups of channels are taken apart as loops of one nest (`delinearize`), which parts would hide.
    """
    if n.op is not ops.conv or n.operands[0].op is not ops.pad or n.operands[1].op is not CONSTANT:
        return False
    image, weight = n.operands
    amounts = [*zip(image.attrs["before"], image.attrs["after"], strict=True)]
    return (
        image.attrs["value"] == 0
        and not any(p for pair in amounts[:2] for p in pair)
        and not any((*n.attrs["before"], *n.attrs["after"]))
        and all(isinstance(d, int) for d in (*image.shape, *n.shape))
        and n.attrs["groups"] == 1
        and weight.shape[0] >= FEW
        and bool(np.isfinite(weight.attrs["value"].numbers).all())
    )


def margins(n: Node) -> list[Stretch]:
    """The padding of a convolution's image in front and behind, for each window dimension."""
    image = n.operands[0]
    return [*zip(image.attrs["before"][2:], image.attrs["after"][2:], strict=True)]


def stretches(n: Node, k: int) -> list[Stretch]:
    """The results along window dimension `k`, those together whose windows have the same taps inside the image."""
    (before, _), size, taps = margins(n)[k], n.operands[0].operands[0].shape[2 + k], n.operands[1].shape[2 + k]
    stride, dilation = n.attrs["stride"][k], n.attrs["dilation"][k]

    def inside(place: int) -> tuple[int, ...]:
        return tuple(t for t in range(taps) if 0 <= place * stride + t * dilation - before < size)

    return [(len(list(same)), len(found)) for found, same in groupby(map(inside, range(n.shape[2 + k])))]


def moved(n: Node, dropped: tuple[bool, ...], alone: bool) -> int:
    """Bytes that are written and read to pad the image in the other dimensions, for this convolution alone."""
    image = n.operands[0].operands[0]
    kept = [(0, 0) if d else pair for d, pair in zip(dropped, margins(n), strict=True)]
    if not any(map(any, kept)):
        return 0
    box = prod(image.shape[:2]) * prod(b + size + a for (b, a), size in zip(kept, image.shape[2:], strict=True))
    own = prod(image.shape)
    return (box - own if is_computed(image) else box + own) * image.dtype.bytes if alone or any(dropped) else 0


def awaited(n: Node, dropped: tuple[bool, ...]) -> float:
    """Cycles in which the lines of an image come that no kernel has written or copied before; products take that long at least."""
    image = n.operands[0].operands[0]
    direct = not any(any(pair) and not d for d, pair in zip(dropped, margins(n), strict=True))
    return LATENCY * prod(image.shape) * image.dtype.bytes / LINE if direct and not is_computed(image) else 0.0


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


def rewritten(n: Node, dropped: tuple[bool, ...]) -> Node:
    """The convolution whose windows reach beyond the image in the dimensions `dropped`; in the others it stays padded."""
    image = n.operands[0].operands[0]
    reach = [pair if d else (0, 0) for d, pair in zip(dropped, margins(n), strict=True)]
    kept = [(0, 0) if d else pair for d, pair in zip(dropped, margins(n), strict=True)]
    x = ops.pad_spatial(image, [b for b, _ in kept], [a for _, a in kept])
    (before, after) = zip(*reach, strict=True)
    return ops.conv(x, n.operands[1], **{**n.attrs, "before": before, "after": after}).at(n.loc)
