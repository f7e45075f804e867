"""What an op computes, in one of a few kinds.  Passes and lowering read this and never an op's name.

    Elementwise   out[i]    = f(x[i], y[i], ...)                  operands broadcast
    IndexMap      out[i]    = x_p[map_p(i)]  for the piece p whose guard holds, else a fill value
    Gather        out[i]    = x[map(i, indices[...])]             the map reads other operands
    Reduction     out[i]    = combine over r of f(x[a(i, r)], y[b(i, r)], ...)    a, b affine
    Mix           out[..p..] = sum over k of m[p][k] * x[..k..]     the matrix m is known
    Scan          out[i, k] = g(state), where state = f(state, x[i, k], ...)       for k in order
    Scatter       out       = x, then out[map(u, indices[...])] = combine(itself, values[a(u)])    for u in order
    Generate      out[i]    = f(i)
    Composite     another graph of ops, spelled out by the decompose pass
    Fused         the graph it carries
    Recurrence    the graph it carries, once for every entry of sequences, with states from step to step
    Control       one of the graphs it carries, or some as often as data decides
    Opaque        called in PyTorch
    Item          one of several results

Matmul, convolution and pooling are reductions; views, pads and concatenations are index maps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, Union

from compiler.ir.scalar import Const, Expr, Number, Ref, const
from compiler.ir.symbolic.index_expr import Dim, var
from compiler.ir.types import DType, f32

if TYPE_CHECKING:
    from compiler.ir.graph.node import Node

Position: TypeAlias = tuple[Dim, ...]
"""One index per dimension."""


@dataclass(frozen=True)
class Elementwise:
    """`fn` maps one element of each operand to one element of the result.

    `fn` takes an `Expr` per operand, then the node's attributes as keywords.  Half types come as f32, unless `wide` is false.
    """

    fn: Callable[..., Expr]
    promotes_half: bool = True


@dataclass(frozen=True)
class Guard:
    """Holds where low <= index < high."""

    index: Dim
    low: Dim
    high: Dim


@dataclass(frozen=True)
class GuardedRead:
    """Elements of operand number `operand` at `position`, where every guard holds."""

    operand: int
    position: Position
    guards: tuple[Guard, ...] = ()


@dataclass(frozen=True)
class IndexMap:
    """`pieces(node, i)` says where element `i` of the result comes from; no guard holding means `fill(node)`.

    A *view* has one piece without guards.  `push(node, j)`, where there is one, says where element `j` of a view's
    operand goes in the result, outside of it for one that is left out, and lets a producer store through the view.  Only a view
    that shows no element twice has it; None where there is no simple answer.
    `offsets(node)`, where there is one, says where the first element of each operand stands in a result that holds them whole,
    side by side, and the fill value around them; it lets the operands be computed in place.
    """

    reads: Callable[[Node, Position], tuple[GuardedRead, ...]]
    fill: Callable[[Node], Number] | None = None
    inverse: Callable[[Node, Position], Position | None] | None = None
    operand_offsets: Callable[[Node], tuple[Position, ...]] | None = None


@dataclass(frozen=True)
class Lookup:
    """Element of operand `operand` at `position`: an integer that takes part in a data-dependent index.

    The value must lie in 0..extent-1; with `wrap`, negative values count from the end.
    """

    operand: int
    position: Position
    extent: Dim
    wrap_negative: bool = False


@dataclass(frozen=True)
class Gather:
    """`position(node, i)` locates element `i` in operand 0; a `Lookup` in it is read from another operand first."""

    position: Callable[[Node, Position], tuple[Dim | Lookup, ...]]


@dataclass(frozen=True)
class ReductionDomain:
    """The reduced domain of one node: its extents, and where operand number k is read for result index i at point r.

    Where `guards(i, r)` do not all hold, point r takes no part in result i.
    """

    extents: tuple[Dim, ...]
    positions: Callable[[Position, Position], tuple[Position, ...]]
    guards: Callable[[Position, Position], tuple[Guard, ...]] = lambda i, r: ()


@dataclass(frozen=True)
class Reduction:
    """`combine` is "add", "mul", "max" or "min" (on bool: "max" is any, "min" is all).

    `space(node)` gives the reduced domain; `fn` maps one element of each operand to the value combined.
    """

    combine: str
    domain: Callable[[Node], ReductionDomain]
    fn: Callable[..., Expr] = lambda x: x


@dataclass(frozen=True)
class ConstantLinear:
    """A line of elements becomes another one: element p is the sum of matrix[p][k] * x[k], all its numbers being known.

    `along(node)` gives the dimension and the matrix.
    """

    axis_and_matrix: Callable[[Node], tuple[int, tuple[tuple[float, ...], ...]]]


@dataclass(frozen=True)
class ScanAxis:
    """The dimension a scan walks, from its end with `reverse`; with `exclusive` no element counts in its own result."""

    dim: int
    reverse: bool = False
    exclusive: bool = False


@dataclass(frozen=True)
class Scan:
    """`state` is what is carried along a dimension: `initial(node)`, then `step(*state, *elements)` at every place.

    The operands have the shape of the result, whose elements are `result(*state)`.  Half types come to `step` as f32; the
    carried values have the dtypes of `initial`.  A scan that only combines its elements as a `Reduction` would names that
    reduction's `combine`.
    """

    axis: Callable[[Node], ScanAxis]
    initial: Callable[[Node], tuple[Const, ...]]
    step: Callable[..., tuple[Expr, ...]]
    result: Callable[..., Expr] = lambda *state: state[0]
    combine: str = ""


@dataclass(frozen=True)
class ScatterWrites:
    """The writes of a scatter, one for each point of `extents`: where point u goes, and the element it brings."""

    extents: tuple[Dim, ...]
    position: Callable[[Position], tuple[Dim | Lookup, ...]]
    value: Callable[[Position], GuardedRead]


@dataclass(frozen=True)
class Scatter:
    """Operand 0, then changed at looked-up positions.

    `combine(node)` joins what is there with what comes: "add", "mul", "max" or "min"; "set" replaces it.  Points that meet
    in one place are taken in order, the last dimension fastest, except for those that differ in a dimension of `position`.
    """

    combine: Callable[[Node], str]
    writes: Callable[[Node], ScatterWrites]


@dataclass(frozen=True)
class Generate:
    """`fn(node, i)` is element `i` of the result, computed from the position alone."""

    fn: Callable[[Node, Position], Expr]


@dataclass(frozen=True)
class Composite:
    """`expand(node, *operands)` builds the same value from other ops."""

    expand: Callable[..., Node]


@dataclass(frozen=True)
class Fused:
    """The graph in attribute `body`, its inputs being the operands: one kernel to be."""


@dataclass(frozen=True)
class Recurrence:
    """The graph in attribute `body` at every step: (entries of sequences, states, fixed operands) -> (states, entries of results)."""


@dataclass(frozen=True)
class ControlFlow:
    """Runs graphs among its attributes as data decides; each takes the operands but for the `leading` ones.

    The op's reference says how, given functions in place of graphs.
    """

    leading_operands: int = 0


@dataclass(frozen=True)
class Opaque:
    """Runs the op's reference in PyTorch; `reason` says why it has no structure.

    The attribute `declares` only says what the results' shapes are: a size that nothing else names is told by the call.
    """

    reason: str
    shape_attr: str = ""


@dataclass(frozen=True)
class TupleGet:
    """One of the several results of the operand: number `index`."""


@dataclass(frozen=True)
class Leaf:
    """An input or constant of the graph."""


Structure: TypeAlias = Union[
    Elementwise, IndexMap, Gather, Reduction, ConstantLinear, Scan, Scatter, Generate, Composite, Fused, Recurrence, ControlFlow, Opaque, TupleGet, Leaf
]  # fmt: skip

IDENTITIES: dict[str, Callable[[DType], Number]] = {
    "add": lambda dtype: 0,
    "mul": lambda dtype: 1,
    "max": lambda dtype: lowest(dtype),
    "min": lambda dtype: highest(dtype),
}


def lowest(dtype: DType) -> Number:
    """The smallest value of `dtype`: what leaves a maximum unchanged."""
    if dtype.is_float:
        return float("-inf")
    return -(1 << (dtype.bits - 1)) if dtype.kind == "int" else 0


def highest(dtype: DType) -> Number:
    """The largest value of `dtype`: what leaves a minimum unchanged."""
    if dtype.is_float:
        return float("inf")
    if dtype.kind == "bool":
        return True
    return (1 << (dtype.bits - (dtype.kind == "int"))) - 1


def is_view(structure: Structure, node: Node) -> bool:
    """Whether the node only renames positions: one operand, no guard, no fill."""
    if not isinstance(structure, IndexMap):
        return False
    pieces = structure.reads(node, tuple(var(f"i{k}") for k in range(node.type.rank)))
    return len(pieces) == 1 and not pieces[0].guards


def elementwise_expr(node: Node, dtypes: Sequence[DType] = ()) -> Expr:
    """The rule of an elementwise node over references x0, x1, ... of `dtypes`, or of those that it takes its operands in."""
    assert isinstance(node.structure, Elementwise)
    dtypes = dtypes or [f32 if node.structure.promotes_half and o.dtype.is_half else o.dtype for o in node.operands]
    result = node.structure.fn(*(Ref(d, f"x{k}") for k, d in enumerate(dtypes)), **node.attrs)
    return result if isinstance(result, Expr) else const(result, node.dtype)
