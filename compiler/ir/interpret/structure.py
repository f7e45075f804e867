"""Interpreter of the *structures* of ops in NumPy, vectorized over all positions.

Tests compare its results with the ops' references, which are written independently.  Half types are computed in f32 and
rounded once, as in lowered kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from compiler.errors import VerifyError
from compiler.ir.float_format import Array
from compiler.ir.graph.graph import Graph, expand_composite
from compiler.ir.graph.node import CONSTANT, Node
from compiler.ir.graph.structure import (
    IDENTITIES,
    Composite,
    ConstantLinear,
    CountingSort,
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
    index_vars,
)
from compiler.ir.interpret.arrays import REDUCE_UFUNCS, to_interpreter_array
from compiler.ir.interpret.primitives import evaluate_call
from compiler.ir.scalar import Const, Expr, IndexValue, PrimitiveCall, Ref, round_to
from compiler.ir.symbolic.binding import evaluate_broadcast
from compiler.ir.symbolic.index_expr import Dim, evaluate, var, variables
from compiler.ir.types import summand_dtype


def evaluate_structure(node: Node, operands: Sequence[Array]) -> Array:
    """Evaluate the structure of a single-result `node` of static shape on `operands`, arrays of `dtype.numpy`.

    VerifyError if the structure cannot be evaluated; IndexError if a lookup is out of bounds.
    """
    if isinstance(node.structure, (Fused, Composite)):
        return evaluate_graph(node.attrs.get("body") or expand_composite(node), operands)[0]
    if node.op is CONSTANT:
        return to_interpreter_array(node.attrs["value"].array, node.dtype)
    if type(node.structure) not in EVALUATORS:
        raise VerifyError(f"{node!r} has no structure to evaluate: {node.structure}")
    value = EVALUATORS[type(node.structure)](node, node.structure, operands)
    return np.array(np.broadcast_to(round_to(value, node.dtype), node.type.static_shape()))


def evaluate_graph(graph: Graph, inputs: Sequence[Array]) -> list[Array]:
    """Return the graph's outputs, every node evaluated by its structure."""
    values = dict(zip(graph.inputs, inputs, strict=True))
    for n in graph.nodes:
        if n not in values:
            values[n] = evaluate_structure(n, [values[o] for o in n.operands])
    return [values[n] for n in graph.outputs]


def _elementwise(node: Node, structure: Elementwise, operands: Sequence[Array]) -> Any:
    dtypes = [o.dtype.compute if structure.uses_compute_dtype else o.dtype for o in node.operands]
    elements = [Ref(d, f"x{k}") for k, d in enumerate(dtypes)]
    return _evaluate_fn(elements, lambda *refs: structure.fn(*refs, **node.attrs), operands)


def _generate(node: Node, structure: Generate, operands: Sequence[Array]) -> Any:
    index = index_vars("i", node.type.rank)
    grids = _index_grids(index, node.type.static_shape())
    return _evaluate_expr(structure.fn(node, index), grids)


def _index_map(node: Node, structure: IndexMap, operands: Sequence[Array]) -> Any:
    index, shape = index_vars("i", node.type.rank), node.type.static_shape()
    grids = _index_grids(index, shape)
    result = np.zeros(shape, node.dtype.numpy)
    if structure.fill is not None:
        result[...] = round_to(structure.fill(node), node.dtype)
    uncovered = np.ones(shape, np.bool_)
    for read in structure.reads(node, index):
        mask = uncovered & _guards_hold(read.guards, grids)
        result = np.where(mask, _read_elements(operands[read.operand], read.position, grids, mask), result)
        uncovered &= ~mask
    if structure.fill is None and uncovered.any():
        raise VerifyError(f"{node!r}: no guarded read covers element {np.argwhere(uncovered)[0].tolist()}")
    return result


def _gather(node: Node, structure: Gather, operands: Sequence[Array]) -> Any:
    index, shape = index_vars("i", node.type.rank), node.type.static_shape()
    grids = _index_grids(index, shape)
    position = _resolve_lookups(structure.position(node, index), operands, grids, shape)
    return _read_elements(operands[0], position, grids, np.ones(shape, np.bool_))


def _resolve_lookups(
    position: Sequence[Dim | Lookup], operands: Sequence[Array], grids: dict[str, Array], shape: tuple[int, ...]
) -> Position:
    """Replace each lookup in `position` by a variable, whose values are added to `grids`."""
    resolved: list[Dim] = []
    for axis, entry in enumerate(position):
        if isinstance(entry, Lookup):
            grids[f"at{axis}"] = _evaluate_lookup(entry, operands, grids, shape)
            entry = var(f"at{axis}")
        resolved.append(entry)
    return tuple(resolved)


def _scan(node: Node, structure: Scan, operands: Sequence[Array]) -> Any:
    """Evaluate the steps in order, each for all other dimensions at once."""
    axis, initial = structure.axis(node), structure.initial(node)
    dtypes = [o.dtype.compute for o in node.operands]
    rows = [np.moveaxis(np.asarray(x, d.numpy), axis.dim, 0) for x, d in zip(operands, dtypes, strict=True)]
    states = [Ref(c.dtype, f"s{k}") for k, c in enumerate(initial)]
    elements = [Ref(d, f"x{k}") for k, d in enumerate(dtypes)]
    step, result = structure.step(*states, *elements), structure.result(*states)
    state = {r.name: np.asarray(round_to(c.value, c.dtype)) for r, c in zip(states, initial, strict=True)}
    out = np.zeros(rows[0].shape, node.dtype.numpy)
    for k in range(len(out))[:: -1 if axis.reverse else 1]:
        previous = state
        values = {**state, **{r.name: x[k] for r, x in zip(elements, rows, strict=True)}}
        state = {r.name: np.asarray(_evaluate_expr(e, values)) for r, e in zip(states, step, strict=True)}
        out[k] = round_to(_evaluate_expr(result, previous if axis.exclusive else state), node.dtype)
    return np.moveaxis(out, 0, axis.dim)


def _scatter(node: Node, structure: Scatter, operands: Sequence[Array]) -> Any:
    """Apply the writes in order; reduced floats are rounded once, at the end."""
    writes = structure.writes(node)
    point, shape = index_vars("u", len(writes.extents)), tuple(evaluate(e, {}) for e in writes.extents)
    grids = _index_grids(point, shape)
    position = _resolve_lookups(writes.position(point), operands, grids, shape)
    source = writes.value(point)
    values = _read_elements(operands[source.operand], source.position, grids, np.ones(shape, np.bool_))
    out = np.array(operands[0])
    indices = tuple(np.broadcast_to(_evaluate_index(d, grids), shape).ravel() for d in position)
    combine = structure.combine(node)
    if combine == "set":
        out[indices] = values.ravel()
    else:
        REDUCE_UFUNCS[combine].at(out, indices, values.ravel().astype(out.dtype))
    return out


def _counting_sort(node: Node, structure: CountingSort, operands: Sequence[Array]) -> Any:
    x, keys = operands
    if keys.size and (keys.min() < 0 or keys.max() >= structure.buckets(node)):
        raise IndexError(f"a key of {node!r} is not in 0..{structure.buckets(node) - 1}")
    return np.take_along_axis(x, np.argsort(keys, axis=-1, kind="stable"), axis=-1)


def _reduction(node: Node, structure: Reduction, operands: Sequence[Array]) -> Any:
    domain = structure.domain(node)
    outer, inner = index_vars("i", node.type.rank), index_vars("r", len(domain.extents))
    shape = (*node.type.static_shape(), *(evaluate(e, {}) for e in domain.extents))
    grids = _index_grids((*outer, *inner), shape)
    mask = np.broadcast_to(_guards_hold(domain.guards(outer, inner), grids), shape)
    positions = domain.positions(outer, inner)
    reads = [_read_elements(x, position, grids, mask) for x, position in zip(operands, positions, strict=True)]
    elements = [Ref(summand_dtype(o.dtype, node.dtype), f"x{k}") for k, o in enumerate(node.operands)]
    value, dtype = _evaluate_fn(elements, structure.fn, reads), node.dtype.compute
    axes = tuple(range(len(outer), len(shape)))
    identity = np.array(IDENTITIES[structure.combine](dtype), dtype.numpy)
    summands = np.where(mask, np.asarray(value, dtype.numpy), identity)
    if not axes:
        return summands
    with np.errstate(all="ignore"):
        return REDUCE_UFUNCS[structure.combine].reduce(summands, axis=axes, dtype=dtype.numpy, initial=identity)


def _constant_linear(node: Node, structure: ConstantLinear, operands: Sequence[Array]) -> Any:
    dim, matrix = structure.axis_and_matrix(node)
    lines = np.moveaxis(operands[0], dim, -1).astype(node.dtype.compute.numpy)
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
    CountingSort: _counting_sort,
}


def _index_grids(index: Sequence[Dim], shape: Sequence[int]) -> dict[str, Array]:
    """Return the values of each index variable, an array along its own axis."""
    axes = np.ix_(*(np.arange(extent, dtype=np.int64) for extent in shape)) if shape else ()
    return {str(i): axis for i, axis in zip(index, axes, strict=True)}


def _evaluate_index(d: Dim, grids: Mapping[str, Array]) -> Array:
    return np.asarray(evaluate_broadcast(d, {name: grids[name] for name in variables(d)}), np.int64)


def _guards_hold(guards: Sequence[Guard], grids: Mapping[str, Array]) -> Any:
    holds: Any = np.True_
    for g in guards:
        index, low, high = (_evaluate_index(d, grids) for d in (g.index, g.low, g.high))
        holds = holds & (low <= index) & (index < high)
    return holds


def _read_elements(x: Array, position: Position, grids: Mapping[str, Array], mask: Array) -> Array:
    """Return the elements of `x` at `position` in the shape of `mask`; unspecified where `mask` is false."""
    if not mask.any():
        return np.zeros(mask.shape, x.dtype)
    indices = []
    for d, extent in zip(position, x.shape, strict=True):
        index = _evaluate_index(d, grids)
        if np.any(mask & ((index < 0) | (index >= extent))):
            raise VerifyError(f"index {d} is out of bounds for extent {extent}")
        indices.append(np.clip(index, 0, extent - 1))
    return np.broadcast_to(x[tuple(indices)], mask.shape)


def _evaluate_lookup(
    entry: Lookup, operands: Sequence[Array], grids: Mapping[str, Array], shape: tuple[int, ...]
) -> Array:
    """Return the values of a data-dependent index, wrapped; IndexError if one is out of bounds."""
    index = _read_elements(operands[entry.operand], entry.position, grids, np.ones(shape, np.bool_)).astype(np.int64)
    extent = evaluate(entry.extent, {})
    invalid = (index >= extent) | (index < (-extent if entry.wrap_negative else 0))
    if invalid.any():
        raise IndexError(f"index {index[invalid].flat[0]} is out of bounds for extent {extent}")
    return np.where(index < 0, index + extent, index)


def _evaluate_fn(refs: Sequence[Ref], fn: Callable[..., Expr], operands: Sequence[Array]) -> Any:
    """Trace `fn` on `refs`, one per operand, and evaluate the expression on all elements."""
    values = {r.name: np.asarray(x, r.dtype.numpy) for r, x in zip(refs, operands, strict=True)}
    return _evaluate_expr(fn(*refs), values)


def _evaluate_expr(e: Expr, values: Mapping[str, Array]) -> Any:
    """Evaluate `e`, with `values` of its refs and index variables."""
    memo: dict[int, Any] = {}
    for x in e.subexprs:
        match x:
            case Const():
                memo[id(x)] = round_to(x.value, x.dtype)
            case Ref():
                memo[id(x)] = values[x.name]
            case IndexValue():
                memo[id(x)] = _evaluate_index(x.index, values)
            case PrimitiveCall():
                memo[id(x)] = evaluate_call(x, tuple(memo[id(a)] for a in x.operands))
            case _:
                raise VerifyError(f"{type(x).__name__} is not allowed in an op's structure")
    return memo[id(e)]
