"""Graph nodes that the statements of a kernel compute, as far as the names in Tile IR tell.

A parameter holds the results of the node whose buffer is launched with; accumulators and local buffers keep, through the passes,
the names that lowering gave them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from compiler.cost.machine import Machine
from compiler.errors import LoweringError
from compiler.ir.graph.graph import Graph, unique_names
from compiler.ir.graph.node import Node
from compiler.ir.graph.structure import Fused, Recurrence
from compiler.ir.text.statement_lines import StatementLines
from compiler.ir.tile.kernel import Block, For, Kernel, Let, Local, Reduce, Stmt, Store, loaded_buffers, stored_buffers
from compiler.ir.tile.uses import used_names
from compiler.lowering.kernel import KernelLowering
from compiler.pipeline import Stages
from compiler.report.explore.origins import OriginLoc


def statement_origins(kernel: Kernel, lines: StatementLines, values: Mapping[str, set[int]]) -> dict[int, list[int]]:
    """Return the origins of the statements by line, where they are known; `values` has those of names and parameters."""

    def known(names: set[str]) -> set[int]:
        return set().union(*(_lookup(name, values) for name in names))

    def enter(body: Block, outer: int) -> Iterator[tuple[int, set[int]]]:
        for s, line in lines.in_block(body, outer):
            yield line, known(_written(s)) or known(loaded_buffers((s,)) | used_names(s))
            if isinstance(s, (For, Reduce)):
                yield from enter(s.body, line)

    return {line: sorted(origins) for line, origins in enter(kernel.body, 0) if origins}


def _written(s: Stmt) -> set[str]:
    if isinstance(s, (Let, Reduce)):
        return {s.name}
    return {s.buffer} if isinstance(s, Local) else stored_buffers((s,)) if isinstance(s, (For, Store)) else set()


def _lookup(name: str, values: Mapping[str, set[int]]) -> set[int]:
    """Return the origins of a name, or of the one that passes derived it from, as `%acc0.r2` from `%acc0`."""
    while name not in values and "." in name:
        name = name.rpartition(".")[0]
    return values.get(name, set())


def kernel_values(stages: Stages, machine: Machine) -> dict[str, dict[str, set[int]]]:
    """Return, for each kernel, the origins of its parameters, accumulators and local buffers by name."""
    nodes = dict(_fused_nodes(stages.fused, ""))
    buffers = {name: number for node_name, node in nodes.items() for name, number in _results(node_name, node)}
    found: dict[str, dict[str, set[int]]] = {}
    for launch in stages.scheduled.launches:
        values = found.setdefault(launch.kernel, {})
        for p, buffer in zip(stages.scheduled.kernels[launch.kernel].params, launch.arguments, strict=True):
            values.setdefault(p.name, set()).update({buffers[buffer]} if buffer in buffers else ())
        for name, number in _lowered_names(nodes[launch.node], machine) if launch.node in nodes else ():
            values.setdefault(name, set()).add(number)
    return found


def _fused_nodes(graph: Graph, prefix: str) -> Iterator[tuple[str, Node]]:
    for node, name in unique_names(graph.nodes).items():
        if isinstance(node.structure, Recurrence):
            yield from _fused_nodes(node.attrs["body"], f"{prefix}{name}.")
        elif isinstance(node.structure, Fused):
            yield f"{prefix}{name}", node


def _results(name: str, node: Node) -> Iterator[tuple[str, int]]:
    """Yield the buffers of the results of a fused node, and the origin of each."""
    outputs = node.attrs["body"].outputs
    for k, o in enumerate(outputs):
        if isinstance(o.loc, OriginLoc):
            yield f"{name}.{k}" if len(outputs) > 1 else name, o.loc.number


def _lowered_names(node: Node, machine: Machine) -> Iterator[tuple[str, int]]:
    """Yield the names that hold values of the nodes of a fused group in its lowered kernel, and the origin of each."""
    lowering = KernelLowering(node.attrs["body"], "kernel", machine)
    try:
        lowering.run()
    except LoweringError:
        return
    for name, inner in lowering.value_nodes.items():
        if isinstance(inner.loc, OriginLoc):
            yield name, inner.loc.number
