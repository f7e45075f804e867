"""Constant folding: compute at compile time what depends on no input."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch

from compiler.analysis.contraction_nodes import is_contraction_node
from compiler.analysis.demand import is_cheap_index_expr
from compiler.analysis.quantized_value import is_known
from compiler.ir import ops
from compiler.ir.float_format import Array
from compiler.ir.graph.constant import ConstantData, to_storage
from compiler.ir.graph.graph import Graph, reachable
from compiler.ir.graph.node import CONSTANT, INPUT, Node, constant_node
from compiler.ir.graph.structure import Generate, Opaque, Recurrence, TupleGet, is_view
from compiler.ir.interpret.graph import interpret_in_float64
from compiler.ir.symbolic.index_expr import IndexExpr
from compiler.ir.torch_types import as_array
from compiler.ir.types import i64
from compiler.passes.base import Context, GraphPass, register


@register
@dataclass(frozen=True)
class Fold(GraphPass):
    """Replace nodes that depend on constants only by their values.

    %y = add 1.0, 2.0   ->   %y = constant 3.0

    Every op is computed in float64 and rounded once; PyTorch's f32 functions may be less accurate than compiled code.
    Not folded: views, unless a recurrence reads them; generated values and cheap functions of indices; results that are
    larger than the constants they are computed from, if they have more than `max_bytes` bytes or a contraction reads
    them.  Weights thus stay as narrow as they are, and the kernel widens them where it multiplies.

    Integers in equal steps, each repeated equally often, become functions of indices, so that lookups become views.
    """

    name = "fold"
    max_bytes: int = 65536

    def run(self, ir: Graph, context: Context) -> Graph:
        sources = constant_sources(ir)
        folded = [n for n in self._frontier(ir, sources) if n in sources]
        values = constant_values(folded) if folded else {}
        new = {n: v for n, v in values.items() if context.may_apply(self, "computed at compile time", n, remark=False)}
        context.count(self, "folded", len(new))
        return ir.replace_nodes({n: as_index_steps(v) or v for n, v in new.items()})

    def _frontier(self, ir: Graph, sources: dict[Node, frozenset[Node]]) -> Iterable[Node]:
        """Yield the foldable nodes that outputs or non-constant nodes read."""

        @cache
        def is_folded(n: Node) -> bool:
            return n in sources and n.op is not CONSTANT and self._is_profitable(ir, n, sources)

        read = (*ir.outputs, *(o for n in ir.nodes if n not in sources for o in n.operands))
        return filter(is_folded, reachable(read, lambda n: n.operands if n in sources and not is_folded(n) else ()))

    def _is_profitable(self, ir: Graph, n: Node, sources: Mapping[Node, frozenset[Node]]) -> bool:
        if isinstance(n.result_type, tuple) or isinstance(n.structure, Generate) or is_cheap_index_expr(n):
            return False
        if is_view(n.structure, n) and not any(isinstance(u.structure, Recurrence) for u in ir.users[n]):
            return False
        if not is_widened(n, sources[n]):
            return True
        return static_bytes(n) <= self.max_bytes and not _is_contracted(ir, n, sources)


def _is_contracted(ir: Graph, n: Node, sources: Collection[Node]) -> bool:
    """Return True if a contraction reads `n`, directly or through other nodes of `sources`."""
    computed = reachable([n], lambda m: (u for u in ir.users[m] if u in sources))
    return any(is_contraction_node(u) for m in computed for u in ir.users[m])


def _evaluate(nodes: Sequence[Node]) -> list[tuple[Node, torch.Tensor]]:
    """Return nodes and their values, without those for which PyTorch raises: these fail when they run."""
    try:
        return list(zip(nodes, interpret_in_float64(Graph((), tuple(nodes))), strict=True))
    except (IndexError, RuntimeError):
        return [pair for n in nodes for pair in _evaluate([n])] if len(nodes) > 1 else []


def constant_values(nodes: Sequence[Node]) -> dict[Node, Node]:
    """Return the constants that are the values of `nodes`, which depend on constants alone."""
    new: dict[Node, Node] = {}
    for n, value in _evaluate(nodes):
        data = ConstantData(n.dtype, to_storage(as_array(value), n.dtype))
        new[n] = constant_node(data, loc=n.loc).with_name(n.name)
    return new


def as_index_steps(constant: Node) -> Node | None:
    """Return the integers `start + k // times * step` of a constant as a function of `k`; None if they are others.

    constant [3, 3, 5, 5, 7, 7]  ->  reshape (expand (3 + 2 * iota)) {shape=[6]}
    """
    if constant.type.rank != 1 or constant.dtype != i64 or constant.type.numel == 0:
        return None
    values = constant.attrs["value"].numpy_values
    count, start = len(values), int(values[0])
    times = next((k for k, v in enumerate(values) if v != start), count)
    step = int(values[times % count]) - start
    if abs(start) + abs(step) * count >= 1 << 63:
        return None
    if not step or count % times or not (values == start + np.arange(count) // times * step).all():
        return None
    steps = ops.iota(size=count // times)
    steps = steps if step == 1 else ops.mul(steps, step)
    steps = steps if start == 0 else ops.add(steps, start)
    if times == 1:
        return steps.with_name(constant.name)
    repeated = ops.expand(ops.reshape(steps, shape=(count // times, 1)), shape=(count // times, times))
    return ops.reshape(repeated, shape=(count,)).with_name(constant.name)


def known_values(n: Node) -> Array | None:
    """Return the elements of a node that depends on constants alone; None where PyTorch raises."""
    constant = n if n.op is CONSTANT else constant_values([n]).get(n)
    return None if constant is None else constant.attrs["value"].numpy_values


def is_known_finite(n: Node) -> bool:
    """Return True if `n` depends on constants alone and is finite: its products with zeros are zeros, and may be left out."""
    values = known_values(n) if is_known(n) else None
    return values is not None and bool(np.isfinite(values).all())


def static_bytes(n: Node) -> int:
    """Return the bytes of a node of static shape."""
    assert isinstance(n.type.nbytes, int)
    return n.type.nbytes


def is_widened(n: Node, sources: Iterable[Node]) -> bool:
    """Return True if `n` has more bytes than the constants `sources` that it is computed from."""
    return static_bytes(n) > sum(map(static_bytes, sources))


def _is_dynamic(attr: Any) -> bool:
    """Return True if an attribute depends on a dynamic size."""
    return isinstance(attr, IndexExpr) or (isinstance(attr, tuple) and any(map(_is_dynamic, attr)))


def constant_sources(ir: Graph) -> dict[Node, frozenset[Node]]:
    """Map each static node that depends on no input or opaque op to the constants that it depends on."""
    sources: dict[Node, frozenset[Node]] = {}
    for n in ir.nodes:
        if n.op is INPUT or isinstance(n.structure, (Opaque, TupleGet)) or any(o not in sources for o in n.operands):
            continue
        if isinstance(n.result_type, tuple) or not n.type.is_static or any(map(_is_dynamic, n.attrs.values())):
            continue
        sources[n] = frozenset({n}) if n.op is CONSTANT else frozenset().union(*(sources[o] for o in n.operands))
    return sources
