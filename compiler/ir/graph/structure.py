"""Structures: the computation of an op, in one of a few kinds.  Passes and lowering read these, never an op's name.

    Elementwise     out[i]     = f(x[i], y[i], ...)                 operands broadcast
    IndexMap        out[i]     = x_p[map_p(i)]                      p is the read whose guards hold, else a fill value
    Gather          out[i]     = x[map(i, indices[...])]            the map reads other operands
    Reduction       out[i]     = combine over r of f(x[a(i, r)], y[b(i, r)], ...)       a, b affine
    ConstantLinear  out[..p..] = sum over k of m[p][k] * x[..k..]                       m is a constant matrix
    Scan            out[i, k]  = g(state), where state = f(state, x[i, k], ...)         for k in order
    Scatter         out        = x, then out[map(u, indices[...])] = combine(itself, values[a(u)])    for u in order
    CountingSort    out[i]     = the elements of row x[i] in the order of their keys[i], small integers
    Generate        out[i]     = f(i)
    Composite       a graph of other ops, expanded by the decompose pass
    Fused           the graph in an attribute
    Recurrence      the graph in an attribute, run for each step of sequences with carried state
    ControlFlow     graphs in attributes, run as data decides
    Opaque          run by PyTorch
    TupleGet        one of several results
    Leaf            an input or constant

Matmul, convolution and pooling are reductions; views, padding and concatenation are index maps.  A kind is its class here, its
rule in `EVALUATORS` of compiler.ir.interpret.structure and its rule in `LOWERINGS` or `ROOT_LOWERINGS` of compiler.lowering.kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from compiler.ir.scalar import Const, Expr, Number, PrimitiveCall, Ref, const
from compiler.ir.symbolic.index_expr import Bounds, Dim, substitute, var, variables
from compiler.ir.types import DType, broadcast_index

if TYPE_CHECKING:
    from compiler.ir.graph.node import Node

Position: TypeAlias = tuple[Dim, ...]
"""One index per dimension."""

OperandElements: TypeAlias = Iterable[tuple["Node", Position]]
"""Elements of operands, by operand and position."""


def index_vars(prefix: str, rank: int) -> Position:
    """Return one variable per dimension, named `prefix` and its number."""
    return tuple(var(f"{prefix}{k}") for k in range(rank))


def position_variables(*positions: Position) -> set[str]:
    """Return the variables that the indices of `positions` use."""
    return {v for index in positions for d in index for v in variables(d)}


class Structure:
    """Base of the structures."""

    def operand_elements(self, node: Node, index: Position, new_loop: Callable[[], Dim]) -> OperandElements:
        """Return the elements that element `index` of `node` reads in its kernel; a reduction reads them in new loops."""
        return ()


@dataclass(frozen=True)
class Elementwise(Structure):
    """`fn` maps one element of each operand to one element of the result.

    `fn` takes an `Expr` per operand and the node's attributes as keywords.  `uses_compute_dtype` converts operands to
    their compute dtypes.
    """

    fn: Callable[..., Expr]
    uses_compute_dtype: bool = True

    def operand_elements(self, node: Node, index: Position, new_loop: Callable[[], Dim]) -> OperandElements:
        return [(o, broadcast_index(o.shape, index)) for o in node.operands]


@dataclass(frozen=True)
class Guard:
    """The condition low <= index < high."""

    index: Dim
    low: Dim
    high: Dim


@dataclass(frozen=True)
class GuardedRead:
    """A read of operand number `operand` at `position`, valid where every guard holds."""

    operand: int
    position: Position
    guards: tuple[Guard, ...] = ()


@dataclass(frozen=True)
class IndexMap(Structure):
    """`reads(node, i)` lists the guarded reads of result element `i`; `fill(node)` is its value where no guards hold.

    A *view* has one read without guards.  `inverse(node, j)` maps operand element `j` of a view to its position in the
    result (out of bounds if the view omits it); a producer can store through it.  It is set only for views
    without duplicated elements, and returns None if the position is not a simple expression.
    `operand_offsets(node)` gives the position of each operand's first element in the result.  It is set if the result
    contains the operands as disjoint boxes, with the fill value around them, so that they can be computed in place.
    """

    reads: Callable[[Node, Position], tuple[GuardedRead, ...]]
    fill: Callable[[Node], Number] | None = None
    inverse: Callable[[Node, Position], Position | None] | None = None
    operand_offsets: Callable[[Node], tuple[Position, ...]] | None = None

    def operand_elements(self, node: Node, index: Position, new_loop: Callable[[], Dim]) -> OperandElements:
        return [(node.operands[read.operand], read.position) for read in self.reads(node, index)]


@dataclass(frozen=True)
class Lookup:
    """A data-dependent index: the integer in operand number `operand` at `position`.

    The value must be in 0..extent-1; with `wrap_negative`, negative values count from the end.  `in_bounds` promises
    that it is in 0..extent-1, so that nothing is checked.
    """

    operand: int
    position: Position
    extent: Dim
    wrap_negative: bool = False
    in_bounds: bool = False


@dataclass(frozen=True)
class Gather(Structure):
    """`position(node, i)` is the index in operand 0 of result element `i`; a `Lookup` in it reads another operand."""

    position: Callable[[Node, Position], tuple[Dim | Lookup, ...]]

    def operand_elements(self, node: Node, index: Position, new_loop: Callable[[], Dim]) -> OperandElements:
        position: list[Dim] = []
        for d in self.position(node, index):
            if isinstance(d, Lookup):
                yield node.operands[d.operand], d.position
                # varies with the loops of the lookup
                d = sum(map(var, sorted(position_variables(d.position))), start=0)
            position.append(d)
        yield node.operands[0], tuple(position)


@dataclass(frozen=True)
class ReductionDomain:
    """Domain of a reduction (compare Halide's RDom).

    `positions(i, r)` gives the position read in each operand for result index `i` at point `r` of `extents`.  Points
    where `guards(i, r)` do not all hold are skipped.
    """

    extents: tuple[Dim, ...]
    positions: Callable[[Position, Position], tuple[Position, ...]]
    guards: Callable[[Position, Position], tuple[Guard, ...]] = lambda i, r: ()


@dataclass(frozen=True)
class Reduction(Structure):
    """A reduction by `combine`: "add", "mul", "max" or "min" (on bool, "max" is any and "min" is all).

    `domain(node)` gives the reduced domain; `fn` maps one element of each operand to the value to combine.
    """

    combine: str
    domain: Callable[[Node], ReductionDomain]
    fn: Callable[..., Expr] = lambda x: x

    def operand_elements(self, node: Node, index: Position, new_loop: Callable[[], Dim]) -> OperandElements:
        domain = self.domain(node)
        point = tuple(new_loop() if e != 1 else 0 for e in domain.extents)
        return zip(node.operands, domain.positions(index, point), strict=True)


@dataclass(frozen=True)
class ConstantLinear(Structure):
    """Product of a constant matrix with every line of the operand along one dimension.

    `axis_and_matrix(node)` gives the dimension and the matrix, as in the Winograd transforms (Lavin and Gray, 2016).
    """

    axis_and_matrix: Callable[[Node], tuple[int, tuple[tuple[float, ...], ...]]]

    def operand_elements(self, node: Node, index: Position, new_loop: Callable[[], Dim]) -> OperandElements:
        dim, matrix = self.axis_and_matrix(node)
        return [(node.operands[0], (*index[:dim], k, *index[dim + 1 :])) for k in range(len(matrix[0]))]


@dataclass(frozen=True)
class ScanAxis:
    """Dimension of a scan and its direction; an `exclusive` scan does not include an element in its own result."""

    dim: int
    reverse: bool = False
    exclusive: bool = False


@dataclass(frozen=True)
class BlockwiseScan:
    """Functions that scan blocks of a row apart.

    `total(x, d)` reduces dimension `d` of `x` to 1; `join(y, before)` adds the total before to results.
    """

    total: Callable[[Node, int], Node]
    join: Callable[[Node, Node], Node]


@dataclass(frozen=True)
class Scan(Structure):
    """A scan with state carried along a dimension: `initial(node)`, then `step(*state, *elements)` for each element.

    Operands have the shape of the result, whose elements are `result(*state)`.  Operands are converted to their compute
    dtypes; the state has the dtypes of `initial`.  `combine` is set if the scan is the prefix form of that `Reduction`;
    `blockwise` if blocks of a row can be scanned apart in another way.
    """

    axis: Callable[[Node], ScanAxis]
    initial: Callable[[Node], tuple[Const, ...]]
    step: Callable[..., tuple[Expr, ...]]
    result: Callable[..., Expr] = lambda *state: state[0]
    combine: str = ""
    blockwise: BlockwiseScan | None = None

    def operand_elements(self, node: Node, index: Position, new_loop: Callable[[], Dim]) -> OperandElements:
        return [(o, index) for o in node.operands]


@dataclass(frozen=True)
class ScatterWrites:
    """The writes of a scatter: for each point u of `extents`, the result position and the read of the value."""

    extents: tuple[Dim, ...]
    position: Callable[[Position], tuple[Dim | Lookup, ...]]
    value: Callable[[Position], GuardedRead]


@dataclass(frozen=True)
class Scatter(Structure):
    """A copy of operand 0, updated at data-dependent positions.

    `combine(node)` is "add", "mul", "max", "min", or "set" to overwrite.  Writes to the same position happen in order,
    the last dimension fastest, except for points that differ in a dimension of `position`.
    """

    combine: Callable[[Node], str]
    writes: Callable[[Node], ScatterWrites]


@dataclass(frozen=True)
class CountingSort(Structure):
    """The elements of each row of operand 0, in stable ascending order of their keys in operand 1: one pass of a radix sort.

    Rows lie along the last dimension; keys are in 0..`buckets(node)`-1.
    """

    buckets: Callable[[Node], int]

    def key(self, node: Node, index: Position) -> Lookup:
        """Return the bucket that element `index` of operand 0 belongs to."""
        return Lookup(1, index, self.buckets(node))


@dataclass(frozen=True)
class Generate(Structure):
    """`fn(node, i)` is element `i` of the result, computed from the position only."""

    fn: Callable[[Node, Position], Expr]


@dataclass(frozen=True)
class Composite(Structure):
    """`expand(node, *operands)` builds the same value from other ops."""

    expand: Callable[..., Node]


@dataclass(frozen=True)
class Fused(Structure):
    """The graph in attribute `body` applied to the operands, to be lowered to one kernel."""


@dataclass(frozen=True)
class Recurrence(Structure):
    """A loop over steps of the graph in attribute `body`.

    The body maps (entries of the sequences, states, loop-invariant operands) to (states, entries of the results).
    """


@dataclass(frozen=True)
class ControlFlow(Structure):
    """Runs graphs in its attributes as data decides; each takes the operands after the `leading_operands` first ones.

    The op's reference implements it, given functions in place of the graphs.
    """

    leading_operands: int = 0


@dataclass(frozen=True)
class Opaque(Structure):
    """Runs the op's reference in PyTorch; `reason` explains why the op has no structure.

    `shape_attr` names an attribute that only declares the result shapes; the call defines symbols that are only there.
    `expansions(node, used)` yields graphs of other ops that compute the results whose numbers are in `used`.  The pass decompose
    takes the fastest one unless the call is faster, which takes `branches(node)` jumps that depend on data.
    """

    reason: str
    shape_attr: str = ""
    expansions: Callable[[Node, frozenset[int]], Iterator[Mapping[int, Node]]] | None = None
    branches: Callable[[Node], Dim] = lambda node: 0


@dataclass(frozen=True)
class TupleGet(Structure):
    """Result number `index` of an operand with several results (compare XLA's GetTupleElement)."""


@dataclass(frozen=True)
class Leaf(Structure):
    """An input or constant of the graph."""


IDENTITIES: dict[str, Callable[[DType], Number]] = {
    "add": lambda dtype: 0,
    "mul": lambda dtype: 1,
    "max": lambda dtype: lowest(dtype),
    "min": lambda dtype: highest(dtype),
}
"""Identity element of each `combine` in a dtype."""


def lowest(dtype: DType) -> Number:
    """Return the smallest value of `dtype`, the identity of max."""
    if dtype.is_float:
        return float("-inf")
    return -(1 << (dtype.bits - 1)) if dtype.kind == "int" else 0


def highest(dtype: DType) -> Number:
    """Return the largest value of `dtype`, the identity of min."""
    if dtype.is_float:
        return float("inf")
    if dtype.kind == "bool":
        return True
    return (1 << (dtype.bits - (dtype.kind == "int"))) - 1


def is_view(structure: Structure, node: Node) -> bool:
    """Return True if the node is a view: an index map with one read and no guards."""
    if not isinstance(structure, IndexMap):
        return False
    reads = structure.reads(node, index_vars("i", node.type.rank))
    return len(reads) == 1 and not reads[0].guards


def through_view(view: Node, position: Position, bounds: Bounds) -> tuple[Node, Position]:
    """Return what a view of one operand shows, and the position in it of the element at `position`; `bounds` are of its variables."""
    assert isinstance(view.structure, IndexMap)
    (read,) = view.structure.reads(view, position)
    return view.operands[0], tuple(substitute(d, {}, bounds) for d in read.position)


def viewed(node: Node) -> Node:
    """Return what `node` is a view of, through any number of views of one operand; itself if it is none."""
    while is_view(node.structure, node) and len(node.operands) == 1:
        (node,) = node.operands
    return node


def is_permutation(node: Node) -> bool:
    """Return True if a view has every element of its operand once."""
    s = node.structure
    return isinstance(s, IndexMap) and s.inverse is not None and node.type.numel == node.operands[0].type.numel


def is_cast(node: Node) -> bool:
    """Return True if `node` converts the elements of its only operand, and does nothing else."""
    if not isinstance(node.structure, Elementwise) or len(node.operands) != 1:
        return False
    e = elementwise_expr(node)
    return isinstance(e, Ref) or (
        isinstance(e, PrimitiveCall) and e.primitive == "cast" and isinstance(e.operands[0], Ref)
    )


def elementwise_expr(node: Node, dtypes: Sequence[DType] = ()) -> Expr:
    """Return the expression of an elementwise node over refs x0, x1, ...; default `dtypes` are its compute dtypes."""
    assert isinstance(node.structure, Elementwise)
    dtypes = dtypes or [o.dtype.compute if node.structure.uses_compute_dtype else o.dtype for o in node.operands]
    result = node.structure.fn(*(Ref(d, f"x{k}") for k, d in enumerate(dtypes)), **node.attrs)
    return result if isinstance(result, Expr) else const(result, node.dtype)


def primitive_of(n: Node) -> str:
    """Return the primitive that an elementwise node applies to its operands, as they are and in their order; "" if there is none."""
    e = elementwise_expr(n) if isinstance(n.structure, Elementwise) else None
    names = [a.name if isinstance(a, Ref) else "" for a in e.operands] if isinstance(e, PrimitiveCall) else []
    return e.primitive if isinstance(e, PrimitiveCall) and names == [f"x{k}" for k in range(len(n.operands))] else ""
