"""Graphs whose nodes remember the node of the imported graph that they come from, through every pass."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from compiler.errors import Loc
from compiler.ir.graph.graph import Graph, unique_names
from compiler.ir.graph.node import Node
from compiler.ir.graph.structure import Leaf
from compiler.passes.remark import Remark


@dataclass(frozen=True)
class OriginLoc(Loc):
    """Location of a node of the imported graph, with the node's name and its number in the table of origins.

    Passes hand locations on to the nodes that they build, and so their origins too.
    """

    node: str = ""
    number: int = -1


@dataclass
class OriginTable:
    """Nodes of the imported graph, numbered in order; the same name in the same `part` of a program is the same origin."""

    nodes: list[Node] = field(default_factory=list)
    _numbers: dict[tuple[int, str], int] = field(default_factory=dict)

    def trace(self, graph: Graph, part: int = 0) -> Graph:
        """Return `graph` with a name and an `OriginLoc` for each computed node, nested graphs included."""
        return self._trace(graph, part, "")

    def _trace(self, graph: Graph, part: int, prefix: str) -> Graph:
        names = unique_names(graph.nodes)

        def rule(n: Node, operands: tuple[Node, ...]) -> Node:
            if isinstance(n.structure, Leaf):
                return n
            name, loc = f"{prefix}{names[n]}", n.loc or Loc()
            number = self._numbers.setdefault((part, name), len(self.nodes))
            if number == len(self.nodes):
                self.nodes.append(n.with_name(name))
            attrs = {k: self._trace(v, part, f"{name}.") if isinstance(v, Graph) else v for k, v in n.attrs.items()}
            origin = OriginLoc(loc.file, loc.line, loc.code, loc.module, name, number)
            return replace(n, operands=operands, attrs=attrs, name=name, loc=origin)

        return graph.map_nodes(rule)


def origin_name(n: Node) -> str:
    """Return the name of a node on the page: one that a pass built is called after its origin and its op, as in `linear_0.matmul`.

    Such names stay as they are when other nodes come and go.
    """
    is_built = not n.name and isinstance(n.loc, OriginLoc) and not isinstance(n.structure, Leaf)
    return f"{n.loc.node}.{n.op.name}" if is_built and isinstance(n.loc, OriginLoc) else n.name


def subject_of(r: Remark) -> str:
    """Return what a remark is about as the page names it: a node by `origin_name`, or a kernel."""
    if isinstance(r.loc, OriginLoc) and r.node:
        return f"%{r.node}" if r.node.startswith(r.loc.node) else f"%{r.loc.node}.{r.node}"
    return r.subject


def origin_numbers(nodes: Iterable[Node]) -> list[int]:
    """Return the numbers of the origins of `nodes` and of the nodes in their bodies, in order."""
    return sorted({n.loc.number for n in with_nested(nodes) if isinstance(n.loc, OriginLoc)})


def with_nested(nodes: Iterable[Node]) -> Iterator[Node]:
    """Yield each node, and those of the graphs in its attributes."""
    for n in nodes:
        yield n
        for v in n.attrs.values():
            if isinstance(v, Graph):
                yield from with_nested(v.nodes)
