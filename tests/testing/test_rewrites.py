"""check_rewrite: rules are proved on graphs of their own pattern."""

from __future__ import annotations

import pytest

from compiler.ir import ops
from compiler.ir.graph.node import Node
from compiler.passes.base import PASSES
from compiler.passes.pattern import Match, MatchFailure, RewriteRule, any_constant, any_value, rewrite
from compiler.testing import check_rewrite

x, y, c = any_value("x", dtype="float"), any_value("y", dtype="float"), any_constant("c", dtype="float")


@rewrite(ops.neg(ops.neg(x)), exact=True)
def drop_double_negation(m: Match) -> Node:
    return m[x]


@rewrite(ops.mul(ops.mul(x, c), 2.0))
def double_constant(m: Match) -> Node:
    return ops.mul(m[x], ops.mul(m[c], 2.0))


@rewrite(ops.sub(x, x))
def difference_is_zero(m: Match) -> Node:
    return ops.mul(m[x], 0.0)


@rewrite(ops.mul(ops.exp(x), ops.exp(y)))
def one_exponential(m: Match) -> Node:
    return ops.exp(ops.add(m[x], m[y]))


@rewrite(ops.add(x, 0.0), exact=True)
def drop_zero(m: Match) -> Node:
    return m[x]


@rewrite(ops.add(x, y))
def sum_of_first_rows(m: Match) -> Node | MatchFailure:
    return ops.sub(m[x], m[y]) if m[x].shape == (4, 4) else m.fail("not square")


@rewrite(ops.mul(x, y))
def never(m: Match) -> MatchFailure:
    return m.fail("no reason")


RULES = (
    drop_double_negation,
    double_constant,
    difference_is_zero,
    one_exponential,
    drop_zero,
    sum_of_first_rows,
    never,
)
for rule in RULES:
    del PASSES[rule.name]  # other tests list the passes


def test_right_rules_pass() -> None:
    assert check_rewrite(drop_double_negation) == 24  # three float dtypes, eight shapes
    assert check_rewrite(double_constant, limits=False) == 18  # constants have no dynamic shape
    assert check_rewrite(difference_is_zero) == 24


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        (one_exponential, "near the limits of its dtype"),
        (drop_zero, "on special inputs"),
        (sum_of_first_rows, "on random inputs"),
        (never, "never applies to its own pattern"),
    ],
    ids=lambda v: getattr(v, "name", ""),
)
def test_wrong_rules_are_refused(rule: RewriteRule, problem: str) -> None:
    with pytest.raises(AssertionError, match=problem):
        check_rewrite(rule)
