"""Recognition of reductions over rectangular windows, and of the padding that such windows can skip."""

from __future__ import annotations

from dataclasses import dataclass

from compiler.analysis.accesses import count_divisions
from compiler.analysis.contraction_nodes import is_contraction_node, operand_positions
from compiler.analysis.convolution_match import match_padding
from compiler.analysis.plain_reductions import is_plain_reduction
from compiler.ir import ops
from compiler.ir.graph.node import Node
from compiler.ir.graph.structure import IDENTITIES, IndexMap, Leaf, Reduction, index_vars, is_permutation, viewed
from compiler.ir.symbolic.affine import coefficient
from compiler.ir.symbolic.index_expr import Dim, var
from compiler.ir.tile.kernel import dim_hint


@dataclass(frozen=True)
class Window:
    """The window of a reduction along dimension `dim`: tap `t` of result `i` reads index `i * stride + t * dilation`."""

    dim: int
    size: int
    stride: int
    dilation: int


def match_windows(n: Node) -> tuple[Window, ...]:
    """Return the windows of a node that reduces rectangular windows of its only operand, or none for any other node."""
    if not is_plain_reduction(n) or n.operands[0].type.rank != n.type.rank:
        return ()
    assert isinstance(n.structure, Reduction)
    x, i, domain = n.operands[0], index_vars("i", n.type.rank), n.structure.domain(n)
    taps = {f"r{k}": e for k, e in enumerate(domain.extents) if isinstance(e, int) and e > 1}
    windows = list[Window]()
    for k, d in enumerate(operand_positions(n)[0]):
        steps = {v: c for v in taps if (c := coefficient(d, v))}
        if not steps and d == i[k] and x.shape[k] == n.shape[k]:
            continue
        (v, dilation), stride = next(iter(steps.items()), ("", 0)), coefficient(d, f"i{k}") or 0
        if v not in taps or d != i[k] * stride + var(v) * dilation or min(stride, dilation) < 1:
            return ()
        windows.append(Window(k, taps.pop(v), stride, dilation))
        if unfolded(x, windows[-1]).shape[k] != n.shape[k]:
            return ()
    return () if taps else tuple(windows)


def unfolded(x: Node, w: Window) -> Node:
    """Return the view of `x` whose dimension `w.dim` counts windows, and whose new last dimension holds the elements of each."""
    return ops.unfold(x, dim=w.dim, size=w.size, step=w.stride, dilation=w.dilation)


@dataclass(frozen=True)
class PaddedWindows:
    """A reduction over windows of an image that is padded with the identity of the reduction.

    `windows` has the window and `padding` the elements before and after the image, for each of the last dimensions from the
    first one with a window.
    """

    node: Node
    windows: tuple[Window, ...]
    padding: tuple[tuple[int, int], ...]

    @property
    def image(self) -> Node:
        """Image without its padding."""
        return self.node.operands[0].operands[0]

    def without_padding(self) -> Node:
        """Return the reduction with implicit padding: its windows skip what lies outside the image."""
        assert isinstance(self.node.structure, Reduction)
        size, stride, dilation = zip(*((w.size, w.stride, w.dilation) for w in self.windows), strict=True)
        before, after = zip(*self.padding, strict=True)
        pool = POOLS[self.node.structure.combine]
        new = pool(self.image, size=size, stride=stride, dilation=dilation, before=before, after=after)
        return new.with_loc(self.node.loc)


POOLS = {"max": ops.max_pool, "add": ops.sum_pool}
"""Ops that reduce windows which may reach beyond the image."""


def match_padded_windows(n: Node) -> PaddedWindows | None:
    """Match a reduction over windows that padding with its identity surrounds, of constant size."""
    windows = {w.dim: w for w in match_windows(n)}
    if not windows or not isinstance(n.structure, Reduction) or n.structure.combine not in POOLS:
        return None
    padding, first = match_padding(n.operands[0], IDENTITIES[n.structure.combine](n.dtype)), min(windows)
    if padding is None or any(p != (0, 0) for k, p in enumerate(padding) if k not in windows):
        return None
    margins = tuple((b, a) for b, a in padding[first:] if isinstance(b, int) and isinstance(a, int))
    each = tuple(windows.get(k, Window(k, 1, 1, 1)) for k in range(first, n.type.rank))
    return PaddedWindows(n, each, margins) if len(margins) == len(each) else None


def adds_overlapping_products(n: Node) -> bool:
    """Return True if `n` adds results of a contraction, seen through views, in windows that overlap."""
    if not isinstance(n.structure, Reduction) or n.structure.combine != "add" or len(n.operands) != 1:
        return False
    extents = n.structure.domain(n).extents
    if not is_contraction_node(viewed(n.operands[0])):
        return False

    def overlaps(d: Dim) -> bool:
        strides = [abs(coefficient(d, f"i{k}") or 0) for k in range(n.type.rank)]
        reach = max((abs(coefficient(d, f"r{k}") or 0) * dim_hint(e) for k, e in enumerate(extents)), default=0)
        return any(0 < s < reach for s in strides)

    return any(map(overlaps, operand_positions(n)[0]))


def divides_results(n: Node) -> bool:
    """Return True if `n` reduces elements at quotients of its indices, as sums of strided windows that overlap do."""
    is_reduction = isinstance(n.structure, Reduction) and len(n.operands) == 1
    return is_reduction and any(map(count_divisions, operand_positions(n)[0]))


def contiguous_dim(n: Node) -> int | None:
    """Return the dimension of `n` that is contiguous in memory where it is a permutation of a stored row-major tensor."""
    index = index_vars("i", n.type.rank)
    while is_permutation(n):
        assert isinstance(n.structure, IndexMap)
        (read,) = n.structure.reads(n, index)
        n, index = n.operands[0], read.position
    dims = [k for k, v in enumerate(index_vars("i", len(index))) if v == index[-1]] if index else []
    return dims[0] if dims and isinstance(n.structure, Leaf) else None
