"""Expansion of composite ops into the ops that define them, and of opaque ones where that is faster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from operator import itemgetter

from compiler.analysis.opaque_calls import used_results
from compiler.cost.expansion import call_seconds, expansion_nodes, expansion_seconds
from compiler.errors import PassError
from compiler.ir.graph.graph import Graph, postorder
from compiler.ir.graph.node import Node
from compiler.ir.graph.structure import Composite, Opaque, TupleGet
from compiler.passes.base import Context, GraphPass, register

Expansion = Mapping[int, Node]
"""The results of a node, by their numbers, computed by other ops."""


@register
@dataclass(frozen=True)
class Decompose(GraphPass):
    """Expand composite nodes, and the composite nodes in their expansions.

    %y = linear %x, %w   ->   %t = permute %w {dims=[1, 0]}   %y = matmul %x, %t

    An opaque node that has expansions becomes the one that computes the results in use in the least estimated time, in which
    ops to compile count, unless PyTorch takes less and `calls` allows that.  Ops named in `keep` are not expanded.
    """

    name = "decompose"
    keep: tuple[str, ...] = ()
    calls: bool = True

    def run(self, ir: Graph, context: Context) -> Graph:
        if not any(self._should_expand(n) for n in ir.nodes):
            return ir
        used = used_results(ir)
        chosen: dict[Node, Expansion] = {}

        def rule(n: Node, operands: tuple[Node, ...]) -> Node:
            new = n.with_operands(operands)
            if isinstance(n.structure, Opaque) and self._should_expand(n):
                chosen[new] = self._choose(new, used.get(n, frozenset()), context)
            if isinstance(n.structure, TupleGet) and chosen.get(operands[0]):
                return self._expand_to(chosen[operands[0]][n.attrs["index"]], new, operands[0].operands, context)
            return self._expand(new, context)

        return ir.map_nodes(rule, context.reached)

    def _should_expand(self, n: Node) -> bool:
        return isinstance(n.structure, (Composite, Opaque)) and n.op.name not in self.keep

    def _choose(self, n: Node, used: frozenset[int], context: Context) -> Expansion:
        """Return the fastest expansion of the results of `n` in use; nothing if PyTorch is faster or there is none."""
        assert isinstance(n.structure, Opaque)
        machine, call = context.machine, call_seconds(n, context.machine)
        ways = list(n.structure.expansions(n, used)) if n.structure.expansions else []
        if not ways:
            return {}
        nodes = [expansion_nodes((results[k] for k in used), n.operands) for results in ways]
        seconds, size, fastest = min(
            zip((expansion_seconds(m, machine) for m in nodes), map(len, nodes), ways, strict=True), key=itemgetter(0)
        )
        estimate = f"{size} ops, {seconds * 1e6:.1f} us, {call * 1e6:.1f} in PyTorch"
        if self.calls and call <= seconds:
            context.missed(self, f"{n.op.name} runs in PyTorch: expanded to {estimate}", n)
            return {}
        if not context.may_apply(self, f"{n.op.name} expanded to {estimate}", n, required=not self.calls):
            return {}
        context.count(self, n.op.name)
        return fastest

    def _expand(self, n: Node, context: Context) -> Node:
        """Return `n` in ops that need no expansion; its operands are expanded already."""
        if not isinstance(n.structure, Composite) or not self._should_expand(n):
            return n
        if not context.may_apply(self, f"{n.op.name} expanded", n, required=True, remark=False):
            return n
        context.count(self, n.op.name)
        return self._expand_to(n.structure.expand(n, *n.operands), n, n.operands, context)

    def _expand_to(self, root: Node, n: Node, operands: Iterable[Node], context: Context) -> Node:
        """Return `root`, which computes `n` from `operands`, in ops that need no expansion."""
        if root.result_type != n.result_type:
            raise PassError(f"{n!r} expands to a value of type {root.result_type}")
        new: dict[Node, Node] = {o: o for o in operands}
        for inner in postorder([root], lambda m: () if m in new else m.operands):
            if inner in new:
                continue
            located = replace(inner, loc=n.loc or inner.loc)
            new[inner] = self._expand(located.with_operands(tuple(new[o] for o in inner.operands)), context)
        return new[root] if root in operands else replace(new[root], name=n.name)
