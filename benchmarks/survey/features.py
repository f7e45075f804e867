"""Features of a program, read from its Graph IR: ops, and what is unusual about contractions, reductions, dtypes and sizes."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from compiler.analysis.contraction_nodes import is_contraction_node, operand_positions
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import Node
from compiler.ir.graph.structure import IndexMap, Leaf, Opaque, Reduction, index_vars, position_variables
from compiler.ir.symbolic.index_expr import Dim, variables
from compiler.ir.tile.kernel import dim_hint
from compiler.ir.types import TensorType, f32
from compiler.passes.base import Context
from compiler.passes.manager import run_pipeline
from compiler.passes.pipeline_text import parse_pipeline

FEW, SHORT_SUM, LONG_ROW = 8, 32, 10_000
"""Most rows or channels that are few, most products of a short sum, and fewest elements of a long row."""


def features(graph: Graph) -> list[str]:
    """Return the features of an imported graph in alphabetical order."""
    found = {n.op.name for n in graph.nodes if not isinstance(n.structure, Leaf | IndexMap)}
    values = [n for n in graph.nodes if isinstance(n.result_type, TensorType)]
    floats = {n.dtype for n in values if n.dtype.is_float} - {f32}
    found |= {f"dtype {d.name}" for d in floats}
    if any(isinstance(n.structure, Opaque) for n in graph.nodes):
        found.add("runs in PyTorch")
    if graph.symbols:
        found.add("dynamic size")
    for n in run_pipeline(graph, parse_pipeline("decompose"), Context()).nodes:
        if is_contraction_node(n):
            found |= set(_contraction_features(n))
        elif isinstance(n.structure, Reduction):
            found |= set(_reduction_features(n))
    return sorted(found)


def _contraction_features(n: Node) -> Iterator[str]:
    """Yield what is unusual about sums of products; rows and columns are results that read other elements of one operand alone."""
    domain = n.structure.domain(n)  # type: ignore[attr-defined]  # a reduction
    lhs, rhs = (position_variables(p) for p in operand_positions(n))
    sizes = {f"i{k}": dim_hint(d) for k, d in enumerate(n.shape)}
    rows, columns = (prod(sizes[v] for v in mine - other if v in sizes) for mine, other in ((lhs, rhs), (rhs, lhs)))
    name = "convolution" if any(_is_window(d) for p in operand_positions(n) for d in p) else "product"
    yield name
    if prod(map(dim_hint, domain.extents)) <= SHORT_SUM:
        yield f"{name}: K <= {SHORT_SUM}"
    if min(rows, columns) == 1:
        yield f"{name}: matrix-vector" if max(rows, columns) > 1 else f"{name}: depthwise or inner"
    elif min(rows, columns) <= FEW:
        yield f"{name}: <= {FEW} rows or columns"
    if not any(_is_constant(o) for o in n.operands):
        yield f"{name}: of arguments alone"


def _reduction_features(n: Node) -> Iterator[str]:
    domain = n.structure.domain(n)  # type: ignore[attr-defined]  # a reduction
    length, results = prod(map(dim_hint, domain.extents)), prod(map(dim_hint, n.shape))
    if results <= FEW and length >= LONG_ROW:
        yield f"reduction: <= {FEW} rows of >= {LONG_ROW}"
    r = {f"r{k}" for k in range(len(domain.extents))}
    (first, *_) = domain.positions(index_vars("i", n.type.rank), index_vars("r", len(domain.extents)))
    if first and not variables(first[-1]) & r and length > 1:
        yield "reduction: last dimension kept"


def _is_window(d: Dim) -> bool:
    return {v[0] for v in variables(d)} >= {"i", "r"}


def _is_constant(n: Node) -> bool:
    """Return True if `n` depends on constants alone."""
    return all(map(_is_constant, n.operands)) if n.operands else n.op.name == "constant"
