"""Rewrite rules: matching, refusing, and what errors say."""

from __future__ import annotations

import pytest

from compiler.errors import PassError
from compiler.ir import ops
from compiler.passes.pattern import Match, Replacement, any_constant, any_value, rewrite
from compiler.testing import checks
from compiler.testing.checks import check_pass

x = any_value("x", dtype="float")
y = any_value("y", dtype="float")
c = any_constant("c", dtype="float")


@rewrite(ops.mul(x, ops.sigmoid(x)))
def rule_form_silu(m: Match) -> Replacement:
    """x * sigmoid(x) -> silu(x)"""
    if m.use_count(ops.sigmoid(x)) > 1:
        return m.fail("sigmoid has other uses")
    return ops.silu(m[x])


@rewrite(ops.add(ops.mul(x, c), ops.mul(y, c)))
def rule_factor(m: Match) -> Replacement:
    """x * c + y * c -> (x + y) * c"""
    return ops.mul(ops.add(m[x], m[y]), m[c])


@rewrite(ops.mul(x, 2.0), exact=True)
def rule_double(m: Match) -> Replacement:
    """x * 2 -> x + x"""
    return ops.add(m[x], m[x])


@rewrite(ops.exp(x))
def rule_wrong_type(m: Match) -> Replacement:
    return ops.reshape(m[x], shape=(2, 2))


@rewrite(ops.neg(x))
def rule_forever(m: Match) -> Replacement:
    return ops.neg(ops.neg(ops.neg(m[x])))


DOUBLED = "graph(%x: f32[4]) { %y = mul %x, 2.0  return %y }"
SILU = "graph(%x: f32[4]) { %y = silu %x  return %y }"


@pytest.mark.parametrize("operands", ["%s, %x", "%x, %s"])
def test_commutative_operands_match_both_ways_round(operands: str) -> None:
    before = f"graph(%x: f32[4]) {{ %s = sigmoid %x  %y = mul {operands}  return %y }}"
    check_pass("rule-form-silu", before=before, after=SILU, special=False)


def test_a_refusal_is_a_remark_with_the_rule_s_place() -> None:
    shared = "graph(%x: f32[4]) { %s = sigmoid %x  %y = mul %s, %x  return %y, %s }"
    check_pass("rule-form-silu", unchanged=shared, remark="sigmoid has other uses")
    check_pass("rule-form-silu", unchanged=shared, remark="test_pattern.py:")


@pytest.mark.parametrize(
    "body",
    ["%s = sigmoid %z  %y = mul %s, %x", "%s = tanh %x  %y = mul %s, %x", "%s = sigmoid %x  %y = add %s, %x"],
)
def test_other_graphs_stay(body: str) -> None:
    check_pass("rule-form-silu", unchanged=f"graph(%x: f32[4], %z: f32[4]) {{ {body}  return %y }}")


def test_nested_choices_are_tried_again() -> None:
    """%c stands left in one product and right in the other."""
    check_pass(
        "rule-factor",
        before="""graph(%a: f32[4], %b: f32[4]) {
            %c = constant f32[4] [1, 2, 3, 4]
            %p = mul %c, %a
            %q = mul %b, %c
            %y = add %p, %q
            return %y
        }""",
        after="""graph(%a: f32[4], %b: f32[4]) {
            %s = add %a, %b
            %c = constant f32[4] [1, 2, 3, 4]
            %y = mul %s, %c
            return %y
        }""",
        limits=False,  # one side overflows where the terms cancel
        special=False,
    )


def test_literals_match_by_value() -> None:
    check_pass("rule-double", before=DOUBLED, after="graph(%x: f32[4]) { %y = add %x, %x  return %y }")
    check_pass("rule-double", unchanged="graph(%x: f32[4]) { %y = mul %x, -2.0  return %y }")


def test_rewrites_chain_until_nothing_matches() -> None:
    check_pass(
        "rule-double",
        before="graph(%x: f32[4]) { %a = mul %x, 2.0  %y = mul %a, 2.0  return %y }",
        after="graph(%x: f32[4]) { %a = add %x, %x  %y = add %a, %a  return %y }",
    )


def test_a_rule_that_changes_the_type_is_named() -> None:
    with pytest.raises(
        PassError, match=r"rule rule-wrong-type \(.*test_pattern.py:\d+\) replaces .* of type f32\[2, 2\]"
    ):
        check_pass("rule-wrong-type", unchanged="graph(%x: f32[4]) { %y = exp %x  return %y }")


def test_rules_that_never_settle_are_named() -> None:
    with pytest.raises(PassError, match=r"rewriting does not converge: rule-forever \(.*test_pattern.py:"):
        check_pass("rule-forever", unchanged="graph(%x: f32[2]) { %y = neg %x  return %y }")


def test_an_unknown_attribute_in_a_pattern_is_refused() -> None:
    with pytest.raises(PassError, match="no attribute dim"):
        ops.exp(x, dim=1)


def test_a_difference_shows_as_a_diff_with_the_rule() -> None:
    with pytest.raises(AssertionError) as caught:
        check_pass("rule-double", before=DOUBLED, after=SILU)
    message = str(caught.value)
    assert "-  %v1: f32[4] = silu %v0" in message
    assert "+  %v1: f32[4] = add %v0, %v0" in message
    assert "rule rule-double: " in message
    assert "--bless" in message


def test_a_wrong_rewrite_is_caught_by_the_interpreter() -> None:
    @rewrite(ops.tanh(x))
    def rule_wrong(m: Match) -> Replacement:
        return ops.sigmoid(m[x])

    with pytest.raises(PassError, match="pass rule-wrong changed the result"):
        check_pass("rule-wrong", before="graph(%x: f32[4]) { %y = tanh %x  return %y }", after=SILU)
    assert not checks.BLESS
