"""Pad the channels that a contraction adds over to whole groups of a dot product."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite, prod

from compiler.analysis.contraction_nodes import mixed_contractions, operand_positions, widening_shape
from compiler.ir import ops
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import Node
from compiler.ir.symbolic.affine import coefficient
from compiler.ir.symbolic.index_expr import var, variables
from compiler.ir.tile.kernel import dim_hint
from compiler.passes.base import Context, GraphPass, register
from compiler.passes.graph.fold import constant_sources, constant_values


@register
@dataclass(frozen=True)
class PadReductions(GraphPass):
    """Add zeros to both operands of a contraction, so that its channels are a multiple of those that the target adds at once.

    %y = conv %x, %w   ->   %a = pad %x   %b = pad %w   %y = conv %a, %b         3 channels of u8 become 4

    Where each result adds over its own channel alone, rows of a window over a padded image are added at once: 3 become 4.
    The target multiplies the dtypes of the operands.  Operands that are not constant are copied to be padded, which pays if the
    elements of both are multiplied often enough.  Sums are the same: the padding is zero.
    """

    name = "pad-reductions"
    exact = True

    def run(self, ir: Graph, context: Context) -> Graph:
        constants, new = constant_sources(ir), dict[Node, Node]()
        for n in mixed_contractions(ir):
            found = widening_shape(n.operands, n.dtype.compute, context.matrix_shapes)
            if found is None or found[0].m != 1:
                continue
            sums = summed_channels(n) or summed_rows(n)
            missing = -sums.extent % found[0].k if sums else 0
            if sums is None or not missing or (sums.is_window and missing >= sums.extent):
                continue
            is_constant = n.operands[1] in constants
            if not is_constant and least_reuse(n, sums) < context.machine.min_operand_reuse:
                context.missed(self, "too few products share an element to pay for padded copies", n)
                continue
            if not context.may_apply(self, f"{sums} padded to {sums.extent + missing}", n):
                continue
            x, w = n.operands
            weights = pad_end(w, sums.of_weights, missing)
            weights = constant_values([weights])[weights] if is_constant else weights
            new[n] = n.with_operands((pad_end(x, sums.of_values, missing * sums.step), weights))
        return ir.replace_nodes(new)


@dataclass(frozen=True)
class SummedDim:
    """Dimension `of_values` of the first and `of_weights` of the second operand that a sum of `extent` terms runs over.

    Terms of a window are `step` elements apart, and windows begin at other elements for other results.
    """

    of_values: int
    of_weights: int
    extent: int
    step: int = 1
    is_window: bool = False

    def __str__(self) -> str:
        return f"{self.extent} {'rows of windows' if self.is_window else 'channels'}"


def summed_channels(n: Node) -> SummedDim | None:
    """Return the dimension that the first sum of a contraction alone runs over, or None."""
    if n.attrs.get("groups", 1) != 1:
        return None
    dims = [[k for k, d in enumerate(p) if d == var("r0")] for p in operand_positions(n)]
    if any(len(d) != 1 for d in dims):
        return None
    extent = n.operands[0].shape[dims[0][0]]
    return SummedDim(dims[0][0], dims[1][0], extent) if isinstance(extent, int) else None


def summed_rows(n: Node) -> SummedDim | None:
    """Return the first of several dimensions of windows over a padded image of integers, if a result adds no channels; or None.

    Rows behind a window are multiplied by zeros, which is NaN for infinite floats.
    """
    if not n.operands[0].dtype.is_integer:
        return None
    values, weights = operand_positions(n)
    extents = dict(zip(weights, n.operands[1].shape, strict=True))
    reduced = {var(f"r{k}") for k in range(len(weights))}
    sums = [d for d in weights if d in reduced and extents[d] != 1]
    windows = [(k, r) for r in sums for k, d in enumerate(values) if d != r and variables(d) > variables(r)]
    if len(sums) < 2 or len(windows) != len(sums):
        return None
    (k, r), extent = windows[0], extents[sums[0]]
    step = coefficient(values[k], *variables(r))
    if not isinstance(step, int) or not isinstance(extent, int) or not is_padded(n.operands[0], k):
        return None
    return SummedDim(k, weights.index(r), extent, step, is_window=True)


def is_padded(x: Node, dim: int) -> bool:
    """Return True if dimension `dim` is padded by a finite number, so that more padding copies nothing."""
    return x.op is ops.pad and isinstance(x.attrs["after"][dim], int) and isfinite(x.attrs["value"])


def least_reuse(n: Node, sums: SummedDim) -> int:
    """Return in how many products an element of either operand of a contraction is a factor at least."""
    products = prod(map(dim_hint, n.shape)) * sums.extent
    return min(products // max(1, prod(map(dim_hint, x.shape))) for x in n.operands)


def pad_end(x: Node, dim: int, count: int) -> Node:
    """Add `count` zeros after the end of dimension `dim`, or more padding if `x` is padded."""
    padded, zeros = is_padded(x, dim), (0,) * x.type.rank
    before, after = (x.attrs["before"], x.attrs["after"]) if padded else (zeros, zeros)
    value = x.attrs["value"] if padded else 0
    after = (*after[:dim], after[dim] + count, *after[dim + 1 :])
    return ops.pad(x.operands[0] if padded else x, before=before, after=after, value=value)
