"""Rewrite rules: a pattern, written by calling ops on patterns, and a function that builds its replacement.

    x = any_value("x", dtype="float")

    @rewrite(ops.mul(x, ops.sigmoid(x)))
    def form_silu(m):
        \"\"\"x * sigmoid(x) -> silu(x)\"\"\"
        if m.use_count(ops.sigmoid(x)) > 1:
            return m.fail("sigmoid has other uses")
        return ops.silu(m[x])

A rule is also a pass of its name: `form-silu`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from compiler.errors import PassError
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import CONSTANT, OPERAND_KINDS, Node, Op, freeze, scalar_value
from compiler.ir.scalar import Number
from compiler.passes.base import Context, GraphPass, register_factory

MAX_SWEEPS, MAX_GROWTH = 64, 16
"""Sweeps over a graph, and growth of its number of nodes, after which rules count as divergent; chosen empirically."""


class Pattern:
    """Condition on a node and its operands; ops called on patterns build larger patterns."""

    def apply_op(self, op: Op, operands: Sequence[Pattern | Number], attrs: Mapping[str, Any]) -> Pattern:
        """Return the pattern of `op` applied to `operands`; given attributes must match, others are free."""
        unknown = sorted(set(attrs) - set(op.attr_defaults))
        if unknown:
            known = ", ".join(op.attr_defaults) or "none"
            raise PassError(f"pattern {op.name}: no attribute {', '.join(unknown)} (there are {known})")
        patterns = tuple(o if isinstance(o, Pattern) else ConstantPattern(o) for o in operands)
        return OpPattern(op, patterns, tuple(sorted((k, freeze(v)) for k, v in attrs.items())))


@dataclass(frozen=True)
class AnyValue(Pattern):
    """Any node, the same for each use; `dtype` is the name of a dtype or a kind ("float", "integer", ...)."""

    name: str
    dtype: str = "any"
    is_constant: bool = False

    def accepts(self, node: Node) -> bool:
        if isinstance(node.result_type, tuple) or (self.is_constant and node.op is not CONSTANT):
            return False
        return OPERAND_KINDS[self.dtype](node.dtype) if self.dtype in OPERAND_KINDS else node.dtype.name == self.dtype


@dataclass(frozen=True)
class OpPattern(Pattern):
    """A node of `op` whose operands match."""

    op: Op
    operands: tuple[Pattern, ...]
    attrs: tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class ConstantPattern(Pattern):
    """A constant whose elements all equal `value`; 0.0 and -0.0 differ."""

    value: Number

    def accepts(self, node: Node) -> bool:
        value = scalar_value(node)
        return value is not None and struct.pack("d", value) == struct.pack("d", self.value)


def any_value(name: str, dtype: str = "any") -> AnyValue:
    """Return a pattern for any value of a dtype or kind of dtype."""
    return AnyValue(name, dtype)


def any_constant(name: str, dtype: str = "any") -> AnyValue:
    """Return a pattern for any constant."""
    return AnyValue(name, dtype, is_constant=True)


Bindings: TypeAlias = Mapping[Pattern, Node]


def matches(pattern: Pattern, node: Node, bindings: Bindings | None = None) -> Iterator[Bindings]:
    """Yield every match of `pattern` at `node`; commutative ops match with operands in either order."""
    bindings = bindings or {}
    if pattern in bindings:
        if bindings[pattern] is node:
            yield bindings
        return
    if isinstance(pattern, (AnyValue, ConstantPattern)):
        if pattern.accepts(node):
            yield {**bindings, pattern: node}
        return
    assert isinstance(pattern, OpPattern)
    if node.op is not pattern.op or any(node.attrs.get(k) != v for k, v in pattern.attrs):
        return
    orders = [node.operands]
    if node.op.commutative and len(node.operands) == 2:
        orders.append(node.operands[::-1])
    for operands in orders:
        for match in _match_all(pattern.operands, operands, bindings):
            yield {**match, pattern: node}


def _match_all(patterns: Sequence[Pattern], nodes: Sequence[Node], bound: Bindings) -> Iterator[Bindings]:
    if not patterns or len(patterns) != len(nodes):
        if len(patterns) == len(nodes):
            yield bound
        return
    for match in matches(patterns[0], nodes[0], bound):
        yield from _match_all(patterns[1:], nodes[1:], match)


@dataclass(frozen=True)
class MatchFailure:
    """Reason why a rule declines a match."""

    reason: str


@dataclass(frozen=True)
class Match:
    """One match of a rule's pattern; `m[x]` is the node that matches subpattern `x`."""

    graph: Graph
    root: Node
    bindings: Bindings

    def __getitem__(self, pattern: Pattern) -> Node:
        return self.bindings[pattern]

    def use_count(self, pattern: Pattern) -> int:
        """Return the number of uses of the node, including graph outputs."""
        node = self.bindings[pattern]
        return len(self.graph.users[node]) + self.graph.outputs.count(node)

    def constant_value(self, pattern: Pattern) -> Number | None:
        """Return the number that all elements of a constant equal, or None."""
        return scalar_value(self.bindings[pattern])

    def fail(self, reason: str) -> MatchFailure:
        """Decline this match; the reason becomes a missed remark."""
        return MatchFailure(reason)


Replacement: TypeAlias = "Node | MatchFailure | None"


@dataclass(frozen=True)
class RewriteRule:
    """A declared rewrite: `build_replacement` returns the replacement of a match, a `MatchFailure`, or None."""

    name: str
    pattern: OpPattern
    build_replacement: Callable[[Match], Replacement]
    source_location: str
    exact: bool = False

    @property
    def summary(self) -> str:
        """First line of the rule's docstring, or its name."""
        return (self.build_replacement.__doc__ or self.name).strip().splitlines()[0]

    def apply(self, graph: Graph, node: Node) -> Replacement:
        """Return the replacement of the first match that is not declined, else the first failure, else None."""
        failure: Replacement = None
        for bound in matches(self.pattern, node) if node.op is self.pattern.op else ():
            replacement = self.build_replacement(Match(graph, node, bound))
            if isinstance(replacement, MatchFailure) or replacement is None:
                failure = failure or replacement
                continue
            if replacement.result_type != node.result_type:
                rule, types = (
                    f"rule {self.name} ({self.source_location})",
                    f"{replacement.result_type}, not {node.result_type}",
                )
                raise PassError(f"{rule} replaces {node!r} by a value of type {types}")
            return replacement
        return failure


def rewrite(pattern: Any, *, exact: bool = False) -> Callable[[Callable[[Match], Replacement]], RewriteRule]:
    """Declare a rule, and a pass of its name; `exact` claims bit-identical results."""
    if not isinstance(pattern, OpPattern):
        raise PassError("the pattern of a rule must be an op applied to patterns")

    def declare(build: Callable[[Match], Replacement]) -> RewriteRule:
        code = build.__code__
        name = build.__name__.replace("_", "-")
        rule = RewriteRule(name, pattern, build, f"{code.co_filename}:{code.co_firstlineno}", exact)

        def make() -> RulePass:
            return RulePass(name, (rule,))

        make.__module__, make.__qualname__, make.__doc__ = build.__module__, build.__qualname__, build.__doc__
        register_factory(name, make)
        return rule

    return declare


class RulePass(GraphPass):
    """Apply rules to all nodes until none of them matches; PassError if they do not converge."""

    def __init__(self, name: str, rules: Sequence[RewriteRule]) -> None:
        self.name, self.rules = name, tuple(rules)
        self.exact = all(r.exact for r in rules)

    def run(self, ir: Graph, context: Context) -> Graph:
        limit = 256 + MAX_GROWTH * len(ir.nodes)
        for _ in range(MAX_SWEEPS):
            replacements, failures = self._sweep(ir, context)
            if not replacements:
                for node, reason in failures:
                    context.missed(self, reason, node)
                return ir
            ir = ir.replace_nodes(replacements)
            if len(ir.nodes) > limit:
                break
        rules = ", ".join(f"{r.name} ({r.source_location})" for r in self.rules)
        raise PassError(f"rewriting does not converge: {rules}")

    def _sweep(self, graph: Graph, context: Context) -> tuple[dict[Node, Node], list[tuple[Node, str]]]:
        """Return the replacements of one sweep over the graph, and the declined nodes with reasons."""
        replacements: dict[Node, Node] = {}
        failures: list[tuple[Node, str]] = []
        for node in graph.nodes:
            for rule in self.rules:
                replacement = rule.apply(graph, node)
                if isinstance(replacement, Node):
                    if not context.may_apply(self, rule.summary, node):
                        continue
                    replacements[node] = (
                        replacement
                        if replacement in graph.users
                        else replacement.with_name(node.name).with_loc(node.loc)
                    )
                    context.reached(partial(graph.replace_nodes, replacements))
                    break
                if replacement is not None:
                    failures.append((node, f"{replacement.reason} ({rule.source_location})"))
        return replacements, failures
