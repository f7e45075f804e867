"""Estimates of the time of single ops, before they are fused: a call into PyTorch compared with its expansion."""

from __future__ import annotations

from collections.abc import Iterable

from compiler.cost.machine import Machine
from compiler.ir.graph.graph import postorder
from compiler.ir.graph.node import Node
from compiler.ir.graph.structure import CountingSort, Elementwise, Generate, Opaque, Reduction, is_view
from compiler.ir.symbolic.index_expr import product
from compiler.ir.tile.kernel import dim_hint


def call_seconds(node: Node, machine: Machine) -> float:
    """Return the estimated seconds of a call into PyTorch that branches on data."""
    assert isinstance(node.structure, Opaque)
    return machine.call_seconds + machine.seconds(machine.branch_cycles * dim_hint(node.structure.branches(node)))


def expansion_nodes(results: Iterable[Node], operands: tuple[Node, ...]) -> list[Node]:
    """Return the ops from `operands` to `results`."""
    return [n for n in postorder(list(results), lambda n: () if n in operands else n.operands) if n not in operands]


def expansion_seconds(nodes: Iterable[Node], machine: Machine) -> float:
    """Return the estimated seconds of ops, and the share of a call in the time to compile them."""
    return sum(_op_seconds(n, machine) + machine.expanded_op_seconds for n in nodes)


def _op_seconds(n: Node, machine: Machine) -> float:
    """Return the seconds of one op: elementwise ones compute in vectors, the others also write their result and read it again."""
    if not n.operands or isinstance(n.structure, Generate) or is_view(n.structure, n):
        return 0.0
    if isinstance(n.structure, Elementwise):
        return _computing_seconds(n, machine)
    if isinstance(n.structure, CountingSort):
        steps = n.type.numel + product(n.shape[:-1]) * n.structure.buckets(n)
        return machine.launch_seconds + machine.seconds(machine.bucket_cycles * dim_hint(steps))
    computed = _computing_seconds(n.operands[0], machine) if isinstance(n.structure, Reduction) else 0.0
    return computed + machine.round_trip_seconds(dim_hint(n.type.nbytes))


def _computing_seconds(n: Node, machine: Machine) -> float:
    """Return the seconds of one operation on each element of `n`."""
    return machine.operation_seconds(dim_hint(n.type.numel) * n.dtype.bits / 32)
