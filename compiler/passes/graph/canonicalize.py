"""Canonicalization: remove nodes that change nothing, and give equivalent nodes one form.

Rules read structure, not op names.  Each is bit-exact: x + 0.0 stays, because it turns -0.0 into 0.0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from compiler.analysis.plain_reductions import is_plain_reduction, reduced_dims
from compiler.analysis.tensor_parts import split_into
from compiler.ir import ops
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import CONSTANT, Node, scalar_value
from compiler.ir.graph.structure import (
    Elementwise,
    Guard,
    IndexMap,
    Leaf,
    Opaque,
    Position,
    Reduction,
    TupleGet,
    index_vars,
    is_cast,
    is_view,
)
from compiler.ir.scalar import Const, Expr, Ref, const
from compiler.ir.symbolic.index_expr import interval, product, substitute
from compiler.ir.types import i32, i64
from compiler.passes.algebra import simplify_scalar
from compiler.passes.base import Context, GraphPass, register


@register
@dataclass(frozen=True)
class Canonicalize(GraphPass):
    """Remove identities and put constant operands last.

    %t = permute %x {dims=[1, 0]}   %u = permute %t {dims=[1, 0]}   %y = exp %u   ->   %y = exp %x

    Identities are x * 1, neg(neg(x)), casts to the same type, views that cancel, reductions of single elements, and pads by nothing.  Parts of one tensor
    that are concatenated become a view of it.
    """

    name = "canonicalize"
    exact = True

    def run(self, ir: Graph, context: Context) -> Graph:
        changed = False

        def rule(n: Node, operands: tuple[Node, ...]) -> Node:
            nonlocal changed
            new = n.with_operands(operands)
            for simplify in RULES:
                simplified = simplify(new)
                if simplified is None:
                    continue
                if context.may_apply(self, simplify.__name__.replace("_", " "), n, remark=False):
                    context.count(self, simplify.__name__)
                    changed, new = True, simplified
            return new

        rebuilt = ir.map_nodes(rule, context.reached)
        return rebuilt if changed else ir


def constants_last(n: Node) -> Node | None:
    """1 + x -> x + 1"""
    if not n.op.commutative or len(n.operands) != 2:
        return None
    x, y = n.operands
    return replace(n, operands=(y, x)) if x.op is CONSTANT and y.op is not CONSTANT else None


def elementwise_identity(n: Node) -> Node | None:
    """Return the value that `n`, expanded through elementwise operands, passes on unchanged; else None."""
    if not isinstance(n.structure, Elementwise):
        return None
    names: dict[Node, str] = {}

    def leaf(x: Node) -> Expr:
        value = scalar_value(x)
        return const(value, x.dtype) if value is not None else Ref(x.dtype, names.setdefault(x, f"x{len(names)}"))

    def inner(x: Node) -> Expr:
        return trace(x, [leaf(o) for o in x.operands]) if isinstance(x.structure, Elementwise) else leaf(x)

    simple = simplify_scalar(trace(n, [inner(o) for o in n.operands]))
    if not isinstance(simple, Ref):  # expanding the operands can hide that `n` alone is an identity
        simple = simplify_scalar(trace(n, [leaf(o) for o in n.operands]))
    source = next((x for x, name in names.items() if isinstance(simple, Ref) and simple.name == name), None)
    return source if source is not None and source.result_type == n.result_type else None


def trace(n: Node, operands: Sequence[Expr]) -> Expr:
    """Return one element of elementwise `n` as an expression of one element of each operand."""
    assert isinstance(n.structure, Elementwise)
    widened = [_widened(o) for o in operands] if n.structure.uses_compute_dtype else operands
    return n.structure.fn(*widened, **n.attrs).to(n.dtype)


def _widened(e: Expr) -> Expr:
    """Cast to the compute dtype, in which the scalar functions are written."""
    return const(e.value, e.dtype.compute) if isinstance(e, Const) else e.to(e.dtype.compute)


def view_identity(n: Node) -> Node | None:
    """Return the source of a chain of views that compose to the identity."""
    identity = index_vars("i", n.type.rank) if isinstance(n.structure, IndexMap) else ()
    at: Position = identity
    value = n
    while (seen := _view_source(value, at, n)) is not None:
        value, at = seen
        if value.result_type == n.result_type and _same_position(at, identity, n):
            return value
    return None


def _view_source(n: Node, at: Position, result: Node) -> tuple[Node, Position] | None:
    """Return the operand and position that element `at` of view `n` reads for all of `result`, else None."""
    if not isinstance(n.structure, IndexMap):
        return None
    reads = n.structure.reads(n, at)
    if not reads or not all(_always_holds(g, result) for g in reads[0].guards):
        return None
    return n.operands[reads[0].operand], reads[0].position


def _bounds(n: Node) -> dict[str, tuple[int, int]]:
    return {f"i{k}": (0, d - 1) for k, d in enumerate(n.shape) if isinstance(d, int) and d > 0}


def _always_holds(g: Guard, n: Node) -> bool:
    """Return True if the guard holds for every element of `n`."""
    low, high = interval(g.index - g.low, _bounds(n)), interval(g.high - g.index, _bounds(n))
    return low is not None and high is not None and low[0] >= 0 and high[0] > 0


def _same_position(at: Position, identity: Position, n: Node) -> bool:
    """Return True if the positions agree for every element of `n`; a dimension of size 1 has only index 0."""
    ones = {f"i{k}": 0 for k, d in enumerate(n.shape) if d == 1}
    bounds = _bounds(n)
    return len(at) == len(identity) and all(
        substitute(a, ones, bounds) == substitute(p, ones, bounds) for a, p in zip(at, identity, strict=True)
    )


def parts_of_a_tensor(n: Node) -> Node | None:
    """Concatenate the parts of a tensor as a view: cat(x[0::2], x[1::2]) -> reshape(permute(reshape(x)))"""
    s = n.structure
    if not isinstance(s, IndexMap) or s.operand_offsets is None or s.fill or len({o.type for o in n.operands}) != 1:
        return None
    dim, x = next((d for d, start in enumerate(s.operand_offsets(n)[-1]) if start != 0), None), n.operands[0]
    while dim is not None and is_view(x.structure, x) and len(x.operands) == 1:
        (x,) = x.operands
        if split := split_into(x, n.operands):
            order = (*split.inside[:dim], *split.numbers, *split.inside[dim:])
            numbered = ops.permute(ops.reshape(x, shape=split.shape), dims=order)
            return replace(ops.reshape(numbered, shape=n.shape), name=n.name, loc=n.loc)
    return None


def empty_tensor(n: Node) -> Node | None:
    """Replace a tensor without elements by a constant, so that it depends on nothing."""
    if isinstance(n.structure, (Leaf, Opaque, TupleGet)) or isinstance(n.result_type, tuple) or n.type.numel != 0:
        return None
    if is_view(n.structure, n) and scalar_value(n.operands[0]) is not None:
        return None  # already a scalar constant
    return replace(ops.full(n.shape, 0, n.dtype), name=n.name, loc=n.loc)


def reduction_of_single_elements(n: Node) -> Node | None:
    """Replace a reduction over dimensions of size 1 by a view: amax(x: [1, 5]) {dims=[0]} -> reshape(x)

    A sum begins with 0.0, which turns -0.0 into 0.0.
    """
    dims = reduced_dims(n)
    if not dims or any(n.operands[0].shape[d] != 1 for d in dims):
        return None
    assert isinstance(n.structure, Reduction)
    (x,) = n.operands
    value = x if x.shape == n.shape else ops.reshape(x, shape=n.shape)
    value = ops.add(value, 0.0) if n.structure.combine == "add" and n.dtype.is_float else value
    return value if value is x else replace(value, name=n.name, loc=n.loc)


def sum_in_32_bits(n: Node) -> Node | None:
    """Add narrow integers in i32 where no sum exceeds it, and widen the sum: sum(cast<i64>(x < y)) -> cast<i64>(sum(cast<i32>(x < y)))"""
    if not is_plain_reduction(n) or n.dtype != i64 or not is_cast(n.operands[0]):
        return None
    assert isinstance(n.structure, Reduction)
    (narrow,) = n.operands[0].operands
    bits = {"bool": 1, "int": narrow.dtype.bits, "uint": narrow.dtype.bits}.get(narrow.dtype.kind)
    terms = interval(product(n.structure.domain(n).extents), {})
    if n.structure.combine != "add" or bits is None or terms is None or terms[1] << bits > 1 << 31:
        return None
    total = ops.as_dtype(n.with_operands((ops.as_dtype(narrow, i32),)), i64)
    return replace(total, name=n.name, loc=n.loc)


RULES: tuple[Callable[[Node], Node | None], ...] = (
    constants_last,
    elementwise_identity,
    parts_of_a_tensor,
    view_identity,
    empty_tensor,
    reduction_of_single_elements,
    sum_in_32_bits,
)
