"""Constant folding: what depends on no input is computed now."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from compiler.analysis.demand import is_cheap_index_expr
from compiler.ir.graph.constant import ConstantData, to_storage
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import CONSTANT, INPUT, Node, constant_node
from compiler.ir.graph.structure import Generate, Opaque, Recurrence, TupleGet, is_view
from compiler.ir.interpret.graph import interpret_in_float64
from compiler.ir.symbolic.index_expr import Dim, IndexExpr
from compiler.ir.torch_types import as_array
from compiler.passes.base import Context, GraphPass, register


@register
@dataclass(frozen=True)
class Fold(GraphPass):
    """Replace nodes that only constants feed by their values.

    Views are left alone, for they cost nothing except where a loop reads them, as are generated values, comparisons of indices
    and the like, and results of more than `max_bytes` that are larger than the constants they come from.  Every op is computed in
    float64 and rounded once, for PyTorch's own functions in f32 may be further from the truth than compiled code is.

    %y = add 1.0, 2.0   ->   %y = constant 3.0
    """

    name = "fold"
    max_bytes: int = 65536

    def run(self, ir: Graph, context: Context) -> Graph:
        sources = constant_sources(ir)
        folded = [n for n in self._frontier(ir, sources) if n in sources]
        if not folded:
            return ir
        new: dict[Node, Node] = {}
        for n, value in _evaluate(folded):
            data = ConstantData(n.dtype, to_storage(as_array(value), n.dtype))
            new[n] = constant_node(data, loc=n.loc).with_name(n.name)
            context.count(self, "folded")
        return ir.replace_nodes(new)

    def _frontier(self, ir: Graph, sources: dict[Node, frozenset[Node]]) -> Iterable[Node]:
        """The last foldable nodes on the way from constants to values that are not constant."""
        pending = list(ir.outputs) + [o for n in ir.nodes if n not in sources for o in n.operands]
        seen: set[Node] = set()
        while pending:
            n = pending.pop()
            if n in seen or n not in sources or n.op is CONSTANT:
                continue
            seen.add(n)
            if self._is_profitable(n, sources[n], any(isinstance(u.structure, Recurrence) for u in ir.users[n])):
                yield n
            else:
                pending.extend(n.operands)

    def _is_profitable(self, n: Node, sources: frozenset[Node], read_by_recurrence: bool) -> bool:
        if (
            isinstance(n.result_type, tuple)
            or isinstance(n.structure, Generate)
            or (is_view(n.structure, n) and not read_by_recurrence)
        ):
            return False
        if is_cheap_index_expr(n):
            return False
        read = sum(_static_size(s.type.nbytes) for s in sources)
        return _static_size(n.type.nbytes) <= max(self.max_bytes, read)


def _evaluate(nodes: Sequence[Node]) -> list[tuple[Node, torch.Tensor]]:
    """Nodes that depend on constants alone, and their values; one that PyTorch refuses (an index out of range) is left to fail when it runs."""
    try:
        return list(zip(nodes, interpret_in_float64(Graph((), tuple(nodes))), strict=True))
    except (IndexError, RuntimeError):
        return [pair for n in nodes for pair in _evaluate([n])] if len(nodes) > 1 else []


def _static_size(size: Dim) -> int:
    assert isinstance(size, int)
    return size


def _is_dynamic(attr: Any) -> bool:
    """Whether an attribute follows a size that is not known."""
    return isinstance(attr, IndexExpr) or (isinstance(attr, tuple) and any(map(_is_dynamic, attr)))


def constant_sources(ir: Graph) -> dict[Node, frozenset[Node]]:
    """For each node of static type and static attributes that depends on no input and no opaque op: the constants it is computed from."""
    found: dict[Node, frozenset[Node]] = {}
    for n in ir.nodes:
        static = (
            not isinstance(n.result_type, tuple) and n.type.is_static and not any(map(_is_dynamic, n.attrs.values()))
        )
        if (
            n.op is INPUT
            or isinstance(n.structure, (Opaque, TupleGet))
            or not static
            or any(o not in found for o in n.operands)
        ):
            continue
        found[n] = frozenset({n}) if n.op is CONSTANT else frozenset().union(*(found[o] for o in n.operands))
    return found
