"""Rewrite rules: a pattern made by calling ops, and a function that builds what replaces it.

    x = any_value("x", dtype="float")

    @rewrite(ops.mul(x, ops.sigmoid(x)))
    def form_silu(m):
        \"\"\"x * sigmoid(x) -> silu(x)\"\"\"
        if m.uses(ops.sigmoid(x)) > 1:
            return m.refuse("sigmoid has other uses")
        return ops.silu(m[x])

A rule is also a pass of its name: `form-silu`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from compiler.errors import PassError
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import CONSTANT, OPERAND_KINDS, Node, Op, freeze, scalar_value
from compiler.ir.scalar import Number
from compiler.passes.base import Context, GraphPass, register_factory

MAX_SWEEPS, MAX_GROWTH = 64, 16
"""How often rules are applied, and how often larger a graph may become, before they are said not to settle."""


class Pattern:
    """What a node must look like; ops called on patterns make larger ones."""

    def apply_op(self, op: Op, operands: Sequence[Pattern | Number], attrs: Mapping[str, Any]) -> Pattern:
        """The pattern of `op` applied to `operands`; attributes that are given must match, others may be anything."""
        unknown = sorted(set(attrs) - set(op.attr_defaults))
        if unknown:
            raise PassError(
                f"pattern {op.name}: no attribute {', '.join(unknown)} (there are {', '.join(op.attr_defaults) or 'none'})"
            )
        parts = tuple(o if isinstance(o, Pattern) else ConstantPattern(o) for o in operands)
        return OpPattern(op, parts, tuple(sorted((k, freeze(v)) for k, v in attrs.items())))


@dataclass(frozen=True)
class AnyValue(Pattern):
    """Any node, the same one wherever the name occurs; `dtype` is a kind ("float", "integer", ...) or the name of a dtype."""

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
    """A constant that holds `value` in every element it has; 0.0 is not -0.0."""

    value: Number

    def accepts(self, node: Node) -> bool:
        found = scalar_value(node)
        return found is not None and struct.pack("d", found) == struct.pack("d", self.value)


def any_value(name: str, dtype: str = "any") -> AnyValue:
    """A pattern for any value of a dtype or kind of dtype."""
    return AnyValue(name, dtype)


def any_constant(name: str, dtype: str = "any") -> AnyValue:
    """A pattern for any constant."""
    return AnyValue(name, dtype, is_constant=True)


Bindings: TypeAlias = Mapping[Pattern, Node]


def matches(pattern: Pattern, node: Node, bindings: Bindings | None = None) -> Iterator[Bindings]:
    """Every way in which `pattern` matches at `node`; commutative ops are tried both ways round."""
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
        for found in _match_all(pattern.operands, operands, bindings):
            yield {**found, pattern: node}


def _match_all(patterns: Sequence[Pattern], nodes: Sequence[Node], bound: Bindings) -> Iterator[Bindings]:
    if not patterns or len(patterns) != len(nodes):
        if len(patterns) == len(nodes):
            yield bound
        return
    for found in matches(patterns[0], nodes[0], bound):
        yield from _match_all(patterns[1:], nodes[1:], found)


@dataclass(frozen=True)
class MatchFailure:
    """A rule's reason for leaving a match alone."""

    reason: str


@dataclass(frozen=True)
class Match:
    """One place where a rule's pattern was found; `m[x]` is the node that pattern `x` stands for."""

    graph: Graph
    root: Node
    bindings: Bindings

    def __getitem__(self, pattern: Pattern) -> Node:
        return self.bindings[pattern]

    def use_count(self, pattern: Pattern) -> int:
        """How often the node is read, the graph's outputs included."""
        node = self.bindings[pattern]
        return len(self.graph.users[node]) + self.graph.outputs.count(node)

    def constant_value(self, pattern: Pattern) -> Number | None:
        """The number a one-element constant holds, or None."""
        return scalar_value(self.bindings[pattern])

    def fail(self, reason: str) -> MatchFailure:
        """Leave this match alone; the reason becomes a remark."""
        return MatchFailure(reason)


Replacement: TypeAlias = "Node | MatchFailure | None"


@dataclass(frozen=True)
class RewriteRule:
    """A declared rewrite: where `pattern` matches, `build` gives the replacement, a refusal, or None."""

    name: str
    pattern: OpPattern
    build_replacement: Callable[[Match], Replacement]
    source_location: str
    exact: bool = False

    @property
    def summary(self) -> str:
        """The first line of the rule's docstring, or its name."""
        return (self.build_replacement.__doc__ or self.name).strip().splitlines()[0]

    def apply(self, graph: Graph, node: Node) -> Replacement:
        """What replaces `node`: the first match that is not refused decides."""
        refusal: Replacement = None
        for bound in matches(self.pattern, node) if node.op is self.pattern.op else ():
            made = self.build_replacement(Match(graph, node, bound))
            if isinstance(made, MatchFailure) or made is None:
                refusal = refusal or made
                continue
            if made.result_type != node.result_type:
                raise PassError(
                    f"rule {self.name} ({self.source_location}) replaces {node!r} by a value of type {made.result_type}"
                )
            return made
        return refusal


def rewrite(pattern: Any, *, exact: bool = False) -> Callable[[Callable[[Match], Replacement]], RewriteRule]:
    """Declare a rule, and a pass of its name; `exact` claims that results keep their bits."""
    if not isinstance(pattern, OpPattern):
        raise PassError("a rule's pattern is an op applied to patterns")

    def declare(build: Callable[[Match], Replacement]) -> RewriteRule:
        code = build.__code__
        name = build.__name__.replace("_", "-")
        rule = RewriteRule(name, pattern, build, f"{code.co_filename}:{code.co_firstlineno}", exact)

        def make() -> RulePass:
            return RulePass(name, (rule,))

        make.__module__, make.__qualname__ = build.__module__, build.__qualname__
        register_factory(name, make)
        return rule

    return declare


class RulePass(GraphPass):
    """Applies rules everywhere until none of them has anything to do."""

    def __init__(self, name: str, rules: Sequence[RewriteRule]) -> None:
        self.name, self.rules = name, tuple(rules)
        self.exact = all(r.exact for r in rules)

    def run(self, ir: Graph, context: Context) -> Graph:
        limit = 256 + MAX_GROWTH * len(ir.nodes)
        for _ in range(MAX_SWEEPS):
            replacements, refusals = self._sweep(ir, context)
            if not replacements:
                for node, reason in refusals:
                    context.missed(self, reason, node)
                return ir
            ir = ir.replace_nodes(replacements)
            if len(ir.nodes) > limit:
                break
        raise PassError(f"the rules do not settle: {', '.join(f'{r.name} ({r.source_location})' for r in self.rules)}")

    def _sweep(self, graph: Graph, context: Context) -> tuple[dict[Node, Node], list[tuple[Node, str]]]:
        """What replaces each node where a rule applies, and what was refused."""
        replacements: dict[Node, Node] = {}
        refusals: list[tuple[Node, str]] = []
        for node in graph.nodes:
            for rule in self.rules:
                made = rule.apply(graph, node)
                if isinstance(made, Node):
                    context.applied(self, rule.summary, node)
                    replacements[node] = made if made in graph.users else made.with_name(node.name).with_loc(node.loc)
                    break
                if made is not None:
                    refusals.append((node, f"{made.reason} ({rule.source_location})"))
        return replacements, refusals
