"""The loops of a kernel's root: those of a value behind views and elementwise ops, through which its elements are stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from compiler.analysis.accesses import count_divisions
from compiler.analysis.store_domains import is_bijective_view, is_invertible_view, position_in_view
from compiler.ir.graph.graph import Graph, postorder
from compiler.ir.graph.node import Node
from compiler.ir.graph.structure import ConstantLinear, Elementwise, IndexMap, Leaf, Position, Reduction, index_vars
from compiler.ir.symbolic.index_expr import Bounds, simplify


def skip_trailing_views(graph: Graph, node: Node) -> Node:
    """Return the node behind the bijective views ending in `node`; its loops are run and stored through the views."""
    while is_invertible_view(node) and is_bijective_view(node) and is_single_use(graph, node.operands[0]):
        node = node.operands[0]
    return node


def store_chain(graph: Graph, root: Node) -> Sequence[Node]:
    """Return the path from `root` to the node whose loops the kernel runs, which is often `root` itself.

    The path ends at a constant linear map, or behind a view that flattens rows which the kernel reduces:

        %y = relu (reshape (div %x, (sum %x {dims=[1]})))     loops over the rows and columns of the quotient
    """
    if chain := path_to(graph, root, lambda n: isinstance(n.structure, ConstantLinear)):
        return chain
    chain = path_to(graph, root, flattens_rows) if len(graph.outputs) == 1 else None
    if chain is None or not is_single_use(graph, chain[-1].operands[0]):
        return [root]
    is_reduced = any(isinstance(n.structure, Reduction) for n in postorder(chain[-1:]))
    crops = any(isinstance(n.structure, IndexMap) and not is_bijective_view(n) for n in chain)
    return [*chain, chain[-1].operands[0]] if is_reduced and not crops else [root]


def path_to(graph: Graph, node: Node, is_end: Callable[[Node], bool]) -> list[Node] | None:
    """Return the path from `node` through invertible views and elementwise ops to the first node of a kind, or None."""
    if is_end(node):
        return [node]
    through = isinstance(node.structure, Elementwise) or is_invertible_view(node)
    for o in node.operands if through else ():
        keeps_loops = isinstance(node.structure, IndexMap) or o.shape == node.shape
        if keeps_loops and is_single_use(graph, o) and (chain := path_to(graph, o, is_end)):
            return [node, *chain]
    return None


def is_single_use(graph: Graph, node: Node) -> bool:
    """Return True if the kernel computes `node` and exactly one node uses it."""
    is_single = len(graph.users[node]) == 1 and node not in graph.outputs
    return is_single and not isinstance(node.structure, Leaf)


def flattens_rows(node: Node) -> bool:
    """Return True if `node` is a bijective view that divides its index to read its operand, and the inverse divides nothing."""
    view = node.structure
    if not isinstance(view, IndexMap) or not is_invertible_view(node) or not is_bijective_view(node):
        return False
    (operand,) = node.operands
    read = view.reads(node, index_vars("i", node.type.rank))[0].position
    stored = position_in_view(node, index_vars("i", operand.type.rank)) or ()
    return divides(read, node) and not divides(stored, operand)


def divides(position: Position, node: Node) -> bool:
    """Return True if a position divides the indices of `node`."""
    bounds: Bounds = {f"i{k}": (0, n - 1) for k, n in enumerate(node.shape)}
    return any(count_divisions(simplify(d, bounds)) for d in position)
