"""Check of a rewrite rule on graphs that its own pattern describes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product

import numpy as np

from compiler.errors import TilewrightError
from compiler.ir.graph.constant import to_storage
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import OPERAND_KINDS, Node, constant_node, input_node
from compiler.ir.interpret.random_inputs import random_array
from compiler.ir.symbolic.index_expr import Dim, var
from compiler.ir.types import DTYPES, DType, TensorType
from compiler.passes.base import Context
from compiler.passes.pattern import AnyValue, ConstantPattern, OpPattern, Pattern, RewriteRule, RulePass
from compiler.testing.checks import check_equivalent, check_limits

SHAPES: tuple[tuple[Dim, ...], ...] = ((), (5,), (var("n"),), (3, 4), (var("m"), var("n")), (1, 3), (4, 4), (2, 3, 4))
"""Shapes of the values in a pattern: static, dynamic, of one element, and square ones for ops that need them."""

CHECKED_DTYPES = ("f32", "bf16", "f64", "i32", "u8", "bool")
"""Dtypes of the values in a pattern, where it accepts them."""


def check_rewrite(rule: RewriteRule, *, limits: bool = True, special: bool = True) -> int:
    """Apply `rule` to graphs of its own pattern and return their number.  Raises AssertionError if one changes its results.

    Values have several dtypes and shapes, dynamic ones with sizes 0, 1 and 3 among them; attributes that the pattern leaves open have
    their defaults.  Results are compared on random inputs, with `special` on zeros of both signs, infinities and NaN, and with
    `limits` near the limits of the dtype: bit for bit if the rule is exact, else in float64.
    """
    applied = 0
    for graph in pattern_graphs(rule.pattern):
        new = RulePass(rule.name, (rule,)).run(graph, Context())
        if new is graph:
            continue
        applied += 1
        try:
            check_equivalent(graph, new, exact=rule.exact, special=special)
            if limits:
                check_limits(graph, new)
        except AssertionError as error:
            raise AssertionError(f"rule {rule.name} ({rule.source_location}) on {graph.inputs}: {error}") from error
    assert applied, f"rule {rule.name} ({rule.source_location}) never applies to its own pattern"
    return applied


def pattern_graphs(pattern: OpPattern) -> Iterator[Graph]:
    """Yield a graph of the pattern for each shape and dtype with which it can be built."""
    for shape, name in product(SHAPES, CHECKED_DTYPES):
        try:
            nodes: dict[Pattern, Node] = {}
            root = instance(pattern, shape, DTYPES[name], nodes)
        except (TilewrightError, TypeError, ValueError):  # no such op, or no such pattern
            continue
        inputs = tuple(n for p, n in nodes.items() if isinstance(p, AnyValue) and not p.is_constant)
        yield Graph(inputs, (root,))


def instance(pattern: Pattern, shape: tuple[Dim, ...], dtype: DType, nodes: dict[Pattern, Node]) -> Node:
    """Return a node that `pattern` matches, and enter it and those below it in `nodes`; ValueError if there is none."""
    if pattern in nodes:
        return nodes[pattern]
    if isinstance(pattern, AnyValue):
        nodes[pattern] = any_value_instance(pattern, shape, dtype)
    elif isinstance(pattern, ConstantPattern):
        nodes[pattern] = constant_node(to_storage(np.asarray(pattern.value, dtype.numpy), dtype), dtype)
    elif isinstance(pattern, OpPattern):
        operands = [instance(p, shape, dtype, nodes) for p in pattern.operands]
        nodes[pattern] = pattern.op(*operands, **dict(pattern.attrs))
    return nodes[pattern]


def any_value_instance(pattern: AnyValue, shape: tuple[Dim, ...], dtype: DType) -> Node:
    """Return an input or constant of a shape and dtype; ValueError if the pattern does not accept that."""
    accepts = OPERAND_KINDS.get(pattern.dtype)
    if not (accepts(dtype) if accepts else pattern.dtype == dtype.name):
        raise ValueError(f"%{pattern.name} is not of {dtype}")
    if not pattern.is_constant:
        return input_node(pattern.name, TensorType(dtype, shape))
    if not all(isinstance(d, int) for d in shape):
        raise ValueError(f"%{pattern.name} is a constant of dynamic shape")
    array = random_array(
        TensorType(dtype, shape), np.random.default_rng(math.prod(d for d in shape if isinstance(d, int)))
    )
    return constant_node(to_storage(array, dtype), dtype)
