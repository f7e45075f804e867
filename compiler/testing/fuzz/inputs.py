"""Random inputs of graphs: valid indices where they are indexed with, else numbers that may break an algebraic rewrite."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from compiler.ir.float_format import Array
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import Node
from compiler.ir.graph.structure import Gather, Lookup, Scatter, index_vars
from compiler.ir.interpret.random_inputs import special_values
from compiler.ir.scalar import round_to
from compiler.ir.symbolic.index_expr import evaluate
from compiler.ir.types import DType, TensorType


def index_operands(node: Node) -> dict[int, tuple[int, bool]]:
    """Return the operands of `node` used as indices, with the indexed extent and True if negative indices wrap around."""
    if isinstance(node.structure, Gather):
        position = node.structure.position(node, index_vars("i", node.type.rank))
    elif isinstance(node.structure, Scatter):
        writes = node.structure.writes(node)
        position = writes.position(index_vars("u", len(writes.extents)))
    else:
        return {}
    return {p.operand: (evaluate(p.extent, {}), p.wrap_negative) for p in position if isinstance(p, Lookup)}


def random_elements(t: TensorType, rng: np.random.Generator, special: bool = False) -> Array:
    """Draw elements from one of several distributions; with `special`, some are infinities, NaN, denormals and the like."""
    shape, dtype = t.static_shape(), t.dtype
    if dtype.kind == "bool":
        return rng.integers(0, 2, shape).astype(np.bool_)
    array = _floats(shape, dtype, rng) if dtype.is_float else _integers(shape, dtype, rng)
    if special:
        values = np.concatenate([special_values(dtype), _denormals(dtype)]) if dtype.is_float else special_values(dtype)
        array = np.where(rng.random(shape) < rng.choice((0.05, 0.3)), rng.choice(values, shape), array)
    return np.asarray(array).astype(dtype.numpy)


def _floats(shape: Sequence[int], dtype: DType, rng: np.random.Generator) -> Array:
    distribution = rng.integers(0, 5)
    if distribution == 0:
        array: Array = rng.integers(-4, 5, shape).astype(np.float64)
    elif distribution == 1:
        array = rng.uniform(0.1, 3.0, shape)
    elif distribution == 2:
        array = rng.normal(0, 1, shape) * 10.0 ** rng.integers(-2, 3)
    else:
        array = rng.uniform(-2, 2, shape)
    return np.asarray(round_to(array, dtype))


def _integers(shape: Sequence[int], dtype: DType, rng: np.random.Generator) -> Array:
    low, high = ((-4, 9), (0, 3), (-100, 100), (1, 6))[rng.integers(0, 4)]
    return rng.integers(max(low, 0) if dtype.kind == "uint" else low, high, shape)


def _denormals(dtype: DType) -> Array:
    values = {"f64": (2.0**-1074, 2.0**-1023), "f16": (2.0**-24, 2.0**-15)}.get(dtype.name, (2.0**-133, 2.0**-127))
    return np.asarray(round_to(np.array([*values, -values[1]]), dtype))


def indexed_extents(graph: Graph) -> dict[Node, int]:
    """Return the inputs used as indices, with the smallest extent that they index."""
    extents: dict[Node, int] = {}
    for node in graph.nodes:
        for k, (extent, _) in index_operands(node).items():
            source = node.operands[k]
            extents[source] = min(extent, extents.get(source, extent))
    return {n: e for n, e in extents.items() if n in graph.inputs}


def inputs_for(graph: Graph, seed: int) -> list[Array]:
    """Return an array for each input of a static graph, in the storage format of interpreters, determined by `seed`."""
    extents, arrays = indexed_extents(graph), []
    special = bool(np.random.default_rng(seed).integers(0, 3) == 0)
    for k, node in enumerate(graph.inputs):
        rng = np.random.default_rng((seed, k))
        if node in extents:
            top = max(1, min(extents[node], np.iinfo(node.dtype.numpy).max))
            arrays.append(rng.integers(0, top, node.type.static_shape()).astype(node.dtype.numpy))
        else:
            arrays.append(random_elements(node.type, rng, special))
    return arrays
