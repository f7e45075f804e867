"""Drawings of graphs: nodes in the boxes of their modules, kernels and bodies."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import takewhile

from compiler.ir.graph.graph import Graph, unique_names
from compiler.ir.graph.node import CONSTANT, Node
from compiler.ir.graph.structure import Leaf, TupleGet
from compiler.report.explore.layering import Path, build_hierarchy
from compiler.report.explore.origins import origin_name, origin_numbers, with_nested
from compiler.report.explore.page_data import Drawing, DrawnNode


class DrawingBuilder:
    """Drawings of the stages of one graph, whose nodes share one table."""

    def __init__(self) -> None:
        self.nodes: list[DrawnNode] = []
        self.drawings: list[Drawing] = []
        self._numbers: dict[tuple[object, ...], int] = {}

    def draw_step(self, graph: Graph, kernels: Mapping[str, str]) -> int:
        """Return the number of a new drawing, of `graph`; `kernels` gives the kernel of a node by its name in the fused graph."""
        walk = _GraphWalk(kernels)
        walk.add(graph, "", (), {})
        at = {n.id: k for k, n in enumerate(walk.drawn)}
        edges = [(at[i], k) for k, n in enumerate(walk.drawn) if walk.paths[k] is not None for i in n.inputs if i in at]
        boxes = {path: at[name] for path, name in walk.boxes.items()}
        self.drawings.append(Drawing([self._number(n) for n in walk.drawn], build_hierarchy(walk.paths, edges, boxes)))
        return len(self.drawings) - 1

    def _number(self, n: DrawnNode) -> int:
        key = (n.id, n.op, n.type, *n.origins, "<", *n.inputs, "<", *n.constants, "<", n.kernel)
        if key not in self._numbers:
            self._numbers[key] = len(self.nodes)
            self.nodes.append(n)
        return self._numbers[key]


class _GraphWalk:
    """Nodes of a graph and of its bodies in topological order, and the path of the box around each.

    A node with a body is itself a box, of its path in `boxes`, and lies nowhere (None).  Constants are not drawn: they are listed
    with the nodes that read them.
    """

    def __init__(self, kernels: Mapping[str, str]) -> None:
        self.kernels = kernels
        self.drawn: list[DrawnNode] = []
        self.paths: list[Path | None] = []
        self.boxes: dict[Path, str] = {}

    def add(self, graph: Graph, prefix: str, path: Path, given: Mapping[Node, list[str]]) -> list[str]:
        """Add a graph in the box `path`, and return the ids of its results; `given` has those of values from outside."""
        names, values = unique_names(graph.nodes, origin_name), dict(given)
        for n in graph.nodes:
            if n.op is CONSTANT or n in values:
                continue
            name = f"{prefix}{names[n]}"
            around = path if prefix else module_path(n)
            bodies = [v for v in n.attrs.values() if isinstance(v, Graph)]
            for body in bodies:
                self.boxes[(*around, name)] = name
                operands = {x: values.get(o, []) for x, o in zip(body.inputs, n.operands)}
                values[n] = self.add(body, f"{name}/", (*around, name), operands)
            read = [i for o in n.operands for i in values.get(o, ())[_selected(n)]]
            constants = [f"{names[o]}: {o.result_type}" for o in n.operands if o.op is CONSTANT]
            kernel = "" if prefix else self.kernels.get(names[n], "")
            origins = origin_numbers([n])
            self.drawn.append(
                DrawnNode(name, n.op.name, str(n.result_type), origins, [*dict.fromkeys(read)], constants, kernel)
            )
            self.paths.append(None if bodies else around)
            values.setdefault(n, [name])
        return [i for o in graph.outputs for i in values.get(o, ())[:1]]


def _selected(n: Node) -> slice:
    """Return which results of its operands a node reads: one, the first unless it says so."""
    index = n.attrs["index"] if isinstance(n.structure, TupleGet) else 0
    return slice(index, index + 1)


def module_path(n: Node) -> Path:
    """Return the modules around a node: those around all nodes in its bodies if it has any."""
    inner = (m for m in with_nested([n]) if not isinstance(m.structure, Leaf))
    paths: list[Path] = [tuple(filter(None, m.loc.module.split("."))) for m in inner if m.loc]
    common = takewhile(lambda column: len(set(column)) == 1, zip(*paths))
    return tuple(column[0] for column in common)
