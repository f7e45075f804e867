"""Expansion of composite ops into the ops that define them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from compiler.errors import PassError
from compiler.ir.graph.graph import Graph, postorder
from compiler.ir.graph.node import Node
from compiler.ir.graph.structure import Composite
from compiler.passes.base import Context, GraphPass, register


@register
@dataclass(frozen=True)
class Decompose(GraphPass):
    """Expand composite nodes, and the composite nodes in their expansions.

    %y = linear %x, %w   ->   %t = permute %w {dims=[1, 0]}   %y = matmul %x, %t

    Ops named in `keep` are not expanded.
    """

    name = "decompose"
    keep: tuple[str, ...] = ()

    def run(self, ir: Graph, context: Context) -> Graph:
        if not any(self._should_expand(n) for n in ir.nodes):
            return ir
        return ir.map_nodes(lambda n, operands: self._expand(n.with_operands(operands), context), context.reached)

    def _should_expand(self, n: Node) -> bool:
        return isinstance(n.structure, Composite) and n.op.name not in self.keep

    def _expand(self, n: Node, context: Context) -> Node:
        """Return `n` in ops that need no expansion; its operands are expanded already."""
        if not self._should_expand(n):
            return n
        if not context.may_apply(self, f"{n.op.name} expanded", n, required=True, remark=False):
            return n
        assert isinstance(n.structure, Composite)
        context.count(self, n.op.name)
        root = n.structure.expand(n, *n.operands)
        if root.result_type != n.result_type:
            raise PassError(f"{n!r} expands to a value of type {root.result_type}")
        new: dict[Node, Node] = {o: o for o in n.operands}
        for inner in postorder([root], lambda m: () if m in n.operands else m.operands):
            if inner in new:
                continue
            located = replace(inner, loc=n.loc or inner.loc)
            new[inner] = self._expand(located.with_operands(tuple(new[o] for o in inner.operands)), context)
        return new[root] if root in n.operands else replace(new[root], name=n.name)
