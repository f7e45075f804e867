"""Bounds checks of constant indices."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from compiler.ir.graph.constant import ConstantData
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import CONSTANT, Node, constant_node
from compiler.ir.graph.structure import Gather, Lookup, index_vars
from compiler.ir.symbolic.index_expr import Dim
from compiler.ir.types import i64
from compiler.passes.base import Context, GraphPass, register
from compiler.passes.graph.fold import constant_sources, known_values


@register
@dataclass(frozen=True)
class ConstantIndices(GraphPass):
    """Check indices that depend on no input at compile time; negative ones are counted from the start.

    %y = index %x, [3, -1] {dims=[0]}   ->   %y = index %x, [3, 7] {dims=[0], in_bounds=True}

    Indices out of bounds stay, and fail when they are used.
    """

    name = "constant-indices"
    exact = True

    def run(self, ir: Graph, context: Context) -> Graph:
        gathers = [n for n in ir.nodes if isinstance(n.structure, Gather) and not n.attrs.get("in_bounds", True)]
        sources = constant_sources(ir) if gathers else {}
        check = cache(checked_indices)  # several gathers read the same indices
        new: dict[Node, Node] = {}
        for n in gathers:
            assert isinstance(n.structure, Gather)
            lookups = [d for d in n.structure.position(n, index_vars("i", n.type.rank)) if isinstance(d, Lookup)]
            if any(n.operands[d.operand] not in sources for d in lookups):
                continue
            checked = {d.operand: check(n.operands[d.operand], d.extent, d.wrap_negative) for d in lookups}
            if all(checked.values()) and context.may_apply(self, "all indices are within bounds", n):
                operands = tuple(checked.get(k) or o for k, o in enumerate(n.operands))
                new[n] = replace(n, operands=operands, attrs={**n.attrs, "in_bounds": True})
        return ir.replace_nodes(new)


def checked_indices(indices: Node, extent: Dim, wrap_negative: bool) -> Node | None:
    """Return constant indices as values in 0..extent-1, or None if some are out of bounds."""
    values = indices.attrs["value"].numpy_values if indices.op is CONSTANT else known_values(indices)
    if values is None or not isinstance(extent, int):
        return None
    low, high = values.min(initial=0), values.max(initial=0)
    if low < (-extent if wrap_negative else 0) or high >= max(extent, 1):
        return None
    if low >= 0:
        return indices
    wrapped = values.astype(i64.numpy) + (values < 0) * extent
    return constant_node(ConstantData(i64, wrapped), loc=indices.loc).with_name(indices.name)
