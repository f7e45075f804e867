"""What an op's *structure* computes, in NumPy: element by element, every position at once.

Tests compare it with the op's reference; the two are written independently of each other.  Half types are computed in f32
and rounded once, as lowering does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from compiler.errors import VerifyError
from compiler.ir.graph.graph import Graph, expand_composite
from compiler.ir.graph.node import CONSTANT, Node
from compiler.ir.graph.structure import (
    IDENTITIES,
    Composite,
    ConstantLinear,
    Elementwise,
    Fused,
    Gather,
    Generate,
    Guard,
    IndexMap,
    Lookup,
    Position,
    Reduction,
    Scan,
    Scatter,
)
from compiler.ir.interpret.arrays import REDUCE_UFUNCS, to_interpreter_array
from compiler.ir.scalar import Const, Expr, IndexValue, PrimitiveCall, Ref, evaluate_call, round_to
from compiler.ir.symbolic.binding import evaluate_broadcast
from compiler.ir.symbolic.index_expr import Dim, IndexExpr, evaluate, var, variables
from compiler.ir.types import accumulator_dtype, summand_dtype

Array: TypeAlias = np.ndarray[Any, Any]


def evaluate_structure(node: Node, operands: Sequence[Array]) -> Array:
    """The value of a single-result `node` of static shape from its structure; VerifyError where it has none.

    `operands` hold each operand's elements in `dtype.numpy`.  IndexError where a lookup is out of range.
    """
    if isinstance(node.structure, (Fused, Composite)):
        return evaluate_graph(node.attrs.get("body") or expand_composite(node), operands)[0]
    if node.op is CONSTANT:
        return to_interpreter_array(node.attrs["value"].array, node.dtype)
    for kind, rule in EVALUATORS.items():
        if isinstance(node.structure, kind):
            value = rule(node, node.structure, operands)
            return np.array(np.broadcast_to(round_to(value, node.dtype), node.type.static_shape()))
    raise VerifyError(f"{node!r} has no structure to evaluate: {node.structure}")


def evaluate_graph(graph: Graph, inputs: Sequence[Array]) -> list[Array]:
    """The graph's outputs, every node computed from its structure."""
    known = dict(zip(graph.inputs, inputs, strict=True))
    for n in graph.nodes:
        if n not in known:
            known[n] = evaluate_structure(n, [known[o] for o in n.operands])
    return [known[n] for n in graph.outputs]


def _elementwise(node: Node, structure: Elementwise, operands: Sequence[Array]) -> Any:
    dtypes = [accumulator_dtype(o.dtype) if structure.promotes_half else o.dtype for o in node.operands]
    elements = [Ref(d, f"x{k}") for k, d in enumerate(dtypes)]
    return _evaluate_fn(elements, lambda *refs: structure.fn(*refs, **node.attrs), operands)


def _generate(node: Node, structure: Generate, operands: Sequence[Array]) -> Any:
    place = _index_vars("i", node.type.rank)
    grids = _index_grids(place, node.type.static_shape())
    return _evaluate_expr(structure.fn(node, place), grids)


def _index_map(node: Node, structure: IndexMap, operands: Sequence[Array]) -> Any:
    place, shape = _index_vars("i", node.type.rank), node.type.static_shape()
    grids = _index_grids(place, shape)
    result = np.zeros(shape, node.dtype.numpy)
    if structure.fill is not None:
        result[...] = round_to(structure.fill(node), node.dtype)
    missing = np.ones(shape, np.bool_)
    for piece in structure.reads(node, place):
        here = missing & _guards_hold(piece.guards, grids)
        result = np.where(here, _read_elements(operands[piece.operand], piece.position, grids, here), result)
        missing &= ~here
    if structure.fill is None and missing.any():
        raise VerifyError(f"{node!r}: no piece covers element {np.argwhere(missing)[0].tolist()}")
    return result


def _gather(node: Node, structure: Gather, operands: Sequence[Array]) -> Any:
    place, shape = _index_vars("i", node.type.rank), node.type.static_shape()
    grids = dict(_index_grids(place, shape))
    position = _resolve_lookups(structure.position(node, place), operands, grids, shape)
    return _read_elements(operands[0], position, grids, np.ones(shape, np.bool_))


def _resolve_lookups(
    position: Sequence[Dim | Lookup], operands: Sequence[Array], grids: dict[str, Array], shape: tuple[int, ...]
) -> Position:
    """`position` with what is looked up as variables of `grids`, to which they are added."""
    located: list[Dim] = []
    for axis, entry in enumerate(position):
        if isinstance(entry, Lookup):
            grids[f"at{axis}"] = _evaluate_lookup(entry, operands, grids, shape)
            entry = var(f"at{axis}")
        located.append(entry)
    return tuple(located)


def _scan(node: Node, structure: Scan, operands: Sequence[Array]) -> Any:
    """One step after the other, each on all the other positions at once."""
    along = structure.axis(node)
    rows = [np.moveaxis(np.asarray(x, accumulator_dtype(o.dtype).numpy), along.dim, 0) for x, o in zip(operands, node.operands, strict=True)]  # fmt: skip
    carried = structure.initial(node)
    states = [Ref(c.dtype, f"s{k}") for k, c in enumerate(carried)]
    elements = [Ref(accumulator_dtype(o.dtype), f"x{k}") for k, o in enumerate(node.operands)]
    step, result = structure.step(*states, *elements), structure.result(*states)
    now = {r.name: np.asarray(round_to(c.value, c.dtype)) for r, c in zip(states, carried, strict=True)}
    out = np.zeros(rows[0].shape, node.dtype.numpy)
    for k in range(len(out))[:: -1 if along.reverse else 1]:
        before = now
        known = {**now, **{r.name: x[k] for r, x in zip(elements, rows, strict=True)}}
        now = {r.name: np.asarray(_evaluate_expr(e, known)) for r, e in zip(states, step, strict=True)}
        out[k] = round_to(_evaluate_expr(result, before if along.exclusive else now), node.dtype)
    return np.moveaxis(out, 0, along.dim)


def _scatter(node: Node, structure: Scatter, operands: Sequence[Array]) -> Any:
    """Every write in order; half types are rounded once, at the end."""
    writes = structure.writes(node)
    point, shape = _index_vars("u", len(writes.extents)), tuple(evaluate(e, {}) for e in writes.extents)
    grids = dict(_index_grids(point, shape))
    position = _resolve_lookups(writes.position(point), operands, grids, shape)
    source = writes.value(point)
    values = _read_elements(operands[source.operand], source.position, grids, np.ones(shape, np.bool_))
    out = np.array(operands[0])
    places = tuple(np.broadcast_to(_evaluate_index(d, grids), shape).ravel() for d in position)
    combine = structure.combine(node)
    if combine == "set":
        out[places] = values.ravel()
    else:
        REDUCE_UFUNCS[combine].at(out, places, values.ravel().astype(out.dtype))
    return out


def _reduction(node: Node, structure: Reduction, operands: Sequence[Array]) -> Any:
    space = structure.domain(node)
    outer, inner = _index_vars("i", node.type.rank), _index_vars("r", len(space.extents))
    shape = (*node.type.static_shape(), *(evaluate(e, {}) for e in space.extents))
    grids = _index_grids((*outer, *inner), shape)
    here = np.broadcast_to(_guards_hold(space.guards(outer, inner), grids), shape)
    read = [
        _read_elements(x, position, grids, here)
        for x, position in zip(operands, space.positions(outer, inner), strict=True)
    ]
    elements = [Ref(summand_dtype(o.dtype, node.dtype), f"x{k}") for k, o in enumerate(node.operands)]
    value, dtype = _evaluate_fn(elements, structure.fn, read), accumulator_dtype(node.dtype)
    axes = tuple(range(len(outer), len(shape)))
    first = np.array(IDENTITIES[structure.combine](dtype), dtype.numpy)
    full = np.where(here, np.asarray(value, dtype.numpy), first)
    with np.errstate(all="ignore"):
        return (
            REDUCE_UFUNCS[structure.combine].reduce(full, axis=axes, dtype=dtype.numpy, initial=first) if axes else full
        )


def _constant_linear(node: Node, structure: ConstantLinear, operands: Sequence[Array]) -> Any:
    dim, matrix = structure.axis_and_matrix(node)
    lines = np.moveaxis(operands[0], dim, -1).astype(accumulator_dtype(node.dtype).numpy)
    rows = [
        sum((lines[..., k] * lines.dtype.type(c) for k, c in enumerate(row)), np.zeros((), lines.dtype))
        for row in matrix
    ]
    return np.stack([np.broadcast_to(r, lines.shape[:-1]) for r in rows], axis=dim)


EVALUATORS: Mapping[type, Callable[[Node, Any, Sequence[Array]], Any]] = {
    Elementwise: _elementwise,
    Generate: _generate,
    IndexMap: _index_map,
    Gather: _gather,
    Reduction: _reduction,
    ConstantLinear: _constant_linear,
    Scan: _scan,
    Scatter: _scatter,
}


def _index_vars(letter: str, rank: int) -> tuple[IndexExpr, ...]:
    return tuple(var(f"{letter}{k}") for k in range(rank))


def _index_grids(place: Sequence[Dim], shape: Sequence[int]) -> dict[str, Array]:
    """For each position variable, its values along its own axis."""
    axes = np.ix_(*(np.arange(extent, dtype=np.int64) for extent in shape)) if shape else ()
    return {str(p): axis for p, axis in zip(place, axes, strict=True)}


def _evaluate_index(d: Dim, grids: Mapping[str, Array]) -> Array:
    return np.asarray(evaluate_broadcast(d, {name: grids[name] for name in variables(d)}), np.int64)


def _guards_hold(guards: Sequence[Guard], grids: Mapping[str, Array]) -> Any:
    holds: Any = np.True_
    for g in guards:
        index, low, high = (_evaluate_index(d, grids) for d in (g.index, g.low, g.high))
        holds = holds & (low <= index) & (index < high)
    return holds


def _read_elements(x: Array, position: Position, grids: Mapping[str, Array], where: Array) -> Array:
    """Elements of `x` at `position`, of the shape of `where`; unspecified where that is false."""
    if not where.any():
        return np.zeros(where.shape, x.dtype)
    place = []
    for d, extent in zip(position, x.shape, strict=True):
        at = _evaluate_index(d, grids)
        if np.any(where & ((at < 0) | (at >= extent))):
            raise VerifyError(f"index {d} leaves an extent of {extent}")
        place.append(np.clip(at, 0, extent - 1))
    return np.broadcast_to(x[tuple(place)], where.shape)


def _evaluate_lookup(
    entry: Lookup, operands: Sequence[Array], grids: Mapping[str, Array], shape: tuple[int, ...]
) -> Array:
    """The integers a data-dependent index takes, checked and wrapped."""
    at = _read_elements(operands[entry.operand], entry.position, grids, np.ones(shape, np.bool_)).astype(np.int64)
    extent = evaluate(entry.extent, {})
    bad = (at >= extent) | (at < (-extent if entry.wrap_negative else 0))
    if bad.any():
        raise IndexError(f"index {at[bad].flat[0]} is outside an extent of {extent}")
    return np.where(at < 0, at + extent, at)


def _evaluate_fn(refs: Sequence[Ref], fn: Callable[..., Expr], operands: Sequence[Array]) -> Any:
    """`fn` traced on one element of each operand, as `refs` name them, and evaluated on all of them."""
    values = {r.name: np.asarray(x, r.dtype.numpy) for r, x in zip(refs, operands, strict=True)}
    return _evaluate_expr(fn(*refs), values)


def _evaluate_expr(e: Expr, values: Mapping[str, Array]) -> Any:
    known: dict[int, Any] = {}
    for part in e.subexprs:
        match part:
            case Const():
                known[id(part)] = round_to(part.value, part.dtype)
            case Ref():
                known[id(part)] = values[part.name]
            case IndexValue():
                known[id(part)] = _evaluate_index(part.index, values)
            case PrimitiveCall():
                known[id(part)] = evaluate_call(part, tuple(known[id(a)] for a in part.operands))
            case _:
                raise VerifyError(f"{type(part).__name__} has no place in a structure")
    return known[id(e)]
