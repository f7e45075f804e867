"""Contractions of a graph: sums of products, whose operands and sum may have dtypes of their own."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from math import prod

from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import Node
from compiler.ir.graph.structure import Position, Reduction, index_vars, position_variables
from compiler.ir.scalar import Ref
from compiler.ir.tile.kernel import dim_hint
from compiler.ir.types import DType
from compiler.target import MatrixShape, find_matrix_shape, find_widening_shape


def is_contraction_node(n: Node) -> bool:
    """Return True if each element of `n` is a sum of products of elements of its two operands."""
    s = n.structure
    if not isinstance(s, Reduction) or s.combine != "add" or len(n.operands) != 2:
        return False
    x, y = Ref(n.dtype, "x"), Ref(n.dtype, "y")
    return (x * y).is_structurally_equal(s.fn(x, y))


def mixed_contractions(graph: Graph) -> Iterator[Node]:
    """Yield the contractions whose sum may have a dtype of its own: those that have the attribute `dtype`."""
    return (n for n in graph.nodes if is_contraction_node(n) and "dtype" in n.attrs)


def with_sum_dtype(n: Node, operands: Sequence[Node], total: DType) -> Node:
    """Return contraction `n` of other operands, whose products are added in dtype `total`."""
    return n.op(*operands, loc=n.loc, **{**n.attrs, "dtype": total})


def matching_shape(operands: Sequence[Node], total: DType, shapes: Collection[MatrixShape]) -> MatrixShape | None:
    """Return how the target multiplies both `operands`, in either order, and adds in dtype `total`; None if it does not."""
    lhs, rhs = (o.dtype.name for o in operands)
    return find_matrix_shape(shapes, lhs, rhs, total.name) or find_matrix_shape(shapes, rhs, lhs, total.name)


def widening_shape(
    operands: Sequence[Node], total: DType, shapes: Collection[MatrixShape]
) -> tuple[MatrixShape, tuple[DType, DType]] | None:
    """Return how the target multiplies both `operands`, if need be widened, and the dtypes that they become; None if it does not."""
    lhs, rhs = (o.dtype for o in operands)
    return find_widening_shape(shapes, lhs, rhs, total)


def operand_positions(n: Node) -> tuple[Position, ...]:
    """Return what product r0, r1, ... of result i0, i1, ... reads: a position in each operand of a reduction."""
    assert isinstance(n.structure, Reduction)
    domain = n.structure.domain(n)
    return domain.positions(index_vars("i", n.type.rank), index_vars("r", len(domain.extents)))


def results_of_element(n: Node, position: Position) -> int:
    """Return how many results of a reduction read an element of the operand that it reads at `position`."""
    used = position_variables(position)
    return prod(dim_hint(d) for k, d in enumerate(n.shape) if f"i{k}" not in used)
