"""Round to a narrow float where a kernel stores a value, not after each op in it."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field, replace

from compiler.analysis.contraction_nodes import is_contraction_node, with_sum_dtype
from compiler.analysis.scalar_chain import is_clamp, is_continuous
from compiler.analysis.structural_key import structural_key
from compiler.ir import ops
from compiler.ir.graph.graph import Graph, reachable
from compiler.ir.graph.node import Node
from compiler.ir.graph.structure import Elementwise, Fused, elementwise_expr, is_cast, is_view, viewed
from compiler.passes.base import Context, GraphPass, register
from compiler.passes.graph.candidate_kernel import candidate_kernel


@register
@dataclass(frozen=True)
class DeferRounding(GraphPass):
    """Compute a kernel's values in the dtype of their arithmetic, and round those that it stores.

    fused {%y: bf16 = matmul %x, %w  %b: bf16 = add %y, %c  %z: bf16 = maximum %b, 0.0  return %z}
      ->
    fused {%y: f32 = matmul %x, %w {dtype=f32}  %b: f32 = add %y, %c  %m: f32 = maximum %b, 0.0  %z: bf16 = cast %m  return %z}

    Results are more accurate than PyTorch's.  A cast of the program still rounds, but behind clamps, which changes no result.
    Functions that are not continuous, such as comparisons, depend on rounded values alone: codes stay those of PyTorch.  Products,
    reductions and casts to wider dtypes read rounded values too, but for casts of sums of products.
    """

    name = "defer-rounding"

    def run(self, ir: Graph, context: Context) -> Graph:
        new: dict[Node, Node] = {}
        for n in ir.nodes:
            before = rounding_count(n.attrs["body"]) if isinstance(n.structure, Fused) else 0
            if not before:
                continue
            body = n.attrs["body"].map_nodes(UnroundedValues(values_read_rounded(n.attrs["body"])).rebuild)
            saved = before - rounding_count(body)
            if saved <= 0:
                continue
            kernel = candidate_kernel(body, structural_key(body), context)  # rounding counts in what is stored locally
            if isinstance(kernel, str):
                context.missed(self, f"{saved} values rounded: {kernel}", n)
            elif context.may_apply(self, f"{saved} values not rounded", n):
                new[n] = replace(n, attrs={**n.attrs, "body": body})
        return ir.replace_nodes(new)


def values_read_rounded(body: Graph) -> Set[Node]:
    """Return what a kernel stores, and what functions that are not continuous depend on."""
    steps = (n for n in body.nodes if isinstance(n.structure, Elementwise) and not is_continuous(elementwise_expr(n)))
    return {*body.outputs, *reachable([o for n in steps for o in n.operands], lambda n: n.operands)}


def rounding_count(body: Graph) -> int:
    """Return how many nodes round what they compute to a narrow float."""
    narrow = (n for n in body.nodes if n.operands and not isinstance(n.result_type, tuple) and n.dtype.is_reduced_float)
    return sum(not is_view(n.structure, n) for n in narrow)


@dataclass
class UnroundedValues:
    """The values of which nodes of a new graph are the roundings.

    Only clamps take those in `rounded` unrounded: the program itself has rounded them.  Nodes of the old graph in `read_rounded` have none.
    """

    read_rounded: Set[Node] = frozenset()
    values: dict[Node, Node] = field(default_factory=dict)
    rounded: set[Node] = field(default_factory=set)

    def rebuild(self, n: Node, operands: tuple[Node, ...]) -> Node:
        """Return `n` of the operands of the new graph, rounded after it is computed; record what it was before."""
        narrow = self.rebuilt(n, operands)
        if n in self.read_rounded:
            self.values.pop(narrow, None)
        return narrow

    def rebuilt(self, n: Node, operands: tuple[Node, ...]) -> Node:
        """Return the same of a node that others may read unrounded."""
        if isinstance(n.result_type, tuple) or not operands or not n.dtype.is_float:
            return n.with_operands(operands)
        x, total = operands[0], n.dtype.compute
        if is_cast(n) and n.dtype.is_reduced_float and x.dtype == total:
            return self.record(n.with_operands(operands), x, rounded=True)
        if is_cast(n) and x in self.values and is_contraction_node(viewed(self.values[x])):
            return ops.as_dtype(self.wide(x), n.dtype)
        if is_cast(n) or not n.dtype.is_reduced_float:
            return n.with_operands(operands)
        if is_contraction_node(n) and "dtype" in n.attrs:
            return self.round(n, with_sum_dtype(n, operands, total))
        if x in self.values and is_view(n.structure, n) and len(operands) == 1:
            return self.round(n, n.with_operands((self.values[x],)), rounded=x in self.rounded)
        if isinstance(n.structure, Elementwise) and is_continuous(elementwise_expr(n)):
            # rounding before or after a clamp is the same, but without infinities 1e9 is NaN before and not after
            clamps = is_clamp(n) and n.dtype.float_format.has_infinities
            wide = n.with_operands(tuple(self.wide(o, clamped=clamps) for o in operands))
            if wide.dtype == total:
                return self.round(n, wide, rounded=clamps and not self.rounded.isdisjoint(operands))
        return n.with_operands(operands)

    def wide(self, x: Node, *, clamped: bool = False) -> Node:
        """Return `x` in the dtype of its arithmetic, before it was rounded unless the program did that and it is not `clamped`."""
        exact = self.values.get(x) if clamped or x not in self.rounded else None
        return ops.as_dtype(x, x.dtype.compute) if exact is None else exact

    def round(self, n: Node, wide: Node, *, rounded: bool = False) -> Node:
        """Return the rounding of a value to the dtype of `n`, by the name of `n`, and record both."""
        return self.record(ops.cast(wide, dtype=n.dtype, loc=n.loc).with_name(n.name), wide, rounded=rounded)

    def record(self, narrow: Node, wide: Node, *, rounded: bool) -> Node:
        """Record a value and its rounding, and return the latter."""
        self.values[narrow] = wide
        if rounded:
            self.rounded.add(narrow)
        return narrow
