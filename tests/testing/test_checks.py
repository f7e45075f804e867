"""The public test kit: models against float64, and what a failing `check_pass` says."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from compiler.errors import VerifyError
from compiler.ir import ops, scalar
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import Node
from compiler.ir.scalar import Expr, PrimitiveCall
from compiler.ir.tile.kernel import Kernel, map_exprs
from compiler.passes.base import Context, GraphPass, TilePass, register
from compiler.passes.pattern import Match, any_value, rewrite
from compiler.testing import checks as testing
from compiler.testing.checks import canonical_text, check, check_equivalent, check_limits, check_pass, parse_ir

SWAPPED = "graph(%x: f32[4]) { %y = add 2.0, %x  return %y }"


class Small(torch.nn.Module):
    """A linear layer and an activation."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(self.layer(x))


def test_a_model_is_as_accurate_as_pytorch() -> None:
    torch.manual_seed(0)
    table = check(Small().eval(), (torch.randn(3, 8),))
    assert "[3, 4]" in table


def test_a_model_that_is_less_accurate_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compiler.compile", lambda *a, **k: Small())
    torch.manual_seed(0)
    with pytest.raises(AssertionError, match=r"outputs \[0\] are less accurate"):
        check(Small().eval(), (torch.randn(3, 8),))


def test_names_do_not_matter() -> None:
    a, b = (parse_ir(f"graph(%{x}: f32[4]) {{ %{y} = exp %{x}  return %{y} }}") for x, y in ("ab", "xy"))
    assert canonical_text(a) == canonical_text(b)


def test_special_values_tell_zeros_apart() -> None:
    same, other = (
        parse_ir("graph(%x: f32[20]) { return %x }"),
        parse_ir("graph(%x: f32[20]) { %y = add %x, 0.0  return %y }"),
    )
    with pytest.raises(AssertionError, match="on special inputs, output 0"):
        check_equivalent(same, other, exact=True)


def test_empty_sizes_are_tried() -> None:
    """Both give 1, but for no elements at all."""
    ones = "graph(%x: i64[n]) { %o = mul %x, 0  %p = add %o, 1  "
    product = parse_ir(ones + "%y = prod %p {dims=[0]}  return %y }")
    total = parse_ir(ones + "%s = sum %p {dims=[0]}  %y = minimum %s, 1  return %y }")
    with pytest.raises(AssertionError, match=r"on random inputs with sizes \{'n': 0\}, output 0"):
        check_equivalent(product, total)


def test_invalid_texts_are_refused() -> None:
    with pytest.raises(VerifyError, match="%y"):
        check_pass("", unchanged="kernel @k(out %y: f32[4]) { store 1.0, %y[9] }")


def test_names_beside_marks_do_not_matter() -> None:
    """`..` begins where a name ends, and `%` directly behind a value is the remainder, here by a dynamic size."""
    kernel = """kernel @k(size n in 1..9 hint 4, in %a: i64[1], out %y: f32[4]) {
      %lo.x = %a[0] %hi = %lo.x + 2 check %hi in 0..4
      for %i in %lo.x..%hi { store 1.0, %y[%i%n%4] } }"""
    renamed = kernel.replace("lo.x", "first").replace("%hi", "%end")
    assert canonical_text(parse_ir(kernel)) == canonical_text(parse_ir(renamed))


PROGRAM = """program { input %a: f32[4]  output %b: f32[4]  constant %c: f32[4] [1, 2, 3, 4]
  kernel @k(in %x: f32[4], const %w: f32[4], out %y: f32[4]) { for %i in 0..4 tile 2 { store %x[%i] * %w[%i], %y[%i] } }
  launch @k(%a, %c, %b) for "n" }"""


def test_programs_are_compared_up_to_names() -> None:
    check_pass("unroll,layout", unchanged=PROGRAM)
    assert canonical_text(parse_ir(PROGRAM)) == canonical_text(
        parse_ir(PROGRAM.replace("%a", "%input").replace("%i", "%index"))
    )
    assert canonical_text(parse_ir(PROGRAM)) != canonical_text(parse_ir(PROGRAM.replace("%x[%i] *", "%x[%i] +")))


def test_programs_are_interpreted() -> None:
    other = PROGRAM.replace("%x[%i] *", "%x[%i] +")
    check_equivalent(parse_ir(PROGRAM), parse_ir(PROGRAM), exact=True)
    with pytest.raises(AssertionError, match="on random inputs, output 0: 4 of 4 elements differ"):
        check_equivalent(parse_ir(PROGRAM), parse_ir(other))


def test_a_missing_remark_is_shown() -> None:
    with pytest.raises(AssertionError, match="no remark contains 'fused'"):
        check_pass("cse", unchanged="graph(%x: f32[4]) { %y = exp %x  return %y }", remark="fused")


@pytest.mark.parametrize("quotes", ['"', '"""'])
def test_blessing_rewrites_the_expectation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quotes: str) -> None:
    """The text written in the calling file is replaced by what the pass gives; then the test passes."""
    monkeypatch.setattr(testing, "BLESS", True)
    stale = f"{quotes}graph(%x: f32[4]) {{ return %x }}{quotes}"
    test = tmp_path / "sample.py"
    test.write_text(
        f"from compiler.testing import check_pass\n\ncheck_pass('canonicalize', before={SWAPPED!r}, after={stale})\n"
    )
    exec(compile(test.read_text(), str(test), "exec"))
    assert "add %x, 2.0" in test.read_text()
    monkeypatch.setattr(testing, "BLESS", False)
    exec(compile(test.read_text(), str(test), "exec"))


def test_a_rewrite_that_overflows_otherwise_is_refused() -> None:
    """exp(x) * exp(y) is infinite where x is large, whatever y; exp(x + y) need not be.  In float64 both agree."""
    product = parse_ir("graph(%x: f32[4], %y: f32[4]) { %a = exp %x  %b = exp %y  %z = mul %a, %b  return %z }")
    total = parse_ir("graph(%x: f32[4], %y: f32[4]) { %s = add %x, %y  %z = exp %s  return %z }")
    with pytest.raises(AssertionError, match=r"near the limits of its dtype, output 0: element \[\d\] is"):
        check_limits(product, total)
    check_limits(product, product)


y, z = any_value("y", dtype="float"), any_value("z", dtype="float")


@rewrite(ops.mul(ops.exp(y), ops.exp(z)))
def join_exponentials(m: Match) -> Node:
    """exp(y) * exp(z) -> exp(y + z)"""
    return ops.exp(ops.add(m[y], m[z]))


def test_check_pass_refuses_a_rule_that_overflows_otherwise() -> None:
    before = "graph(%x: f32[4], %y: f32[4]) { %a = exp %x  %b = exp %y  %z = mul %a, %b  return %z }"
    after = "graph(%x: f32[4], %y: f32[4]) { %s = add %x, %y  %z = exp %s  return %z }"
    with pytest.raises(AssertionError, match="near the limits of its dtype"):
        check_pass("join-exponentials", before=before, after=after)
    check_pass("join-exponentials", before=before, after=after, limits=False)


@register
@dataclass(frozen=True)
class SumOfExponents(GraphPass):
    """Replaces a product of exponentials by the exponential of a sum, not as a rule."""

    name = "test-sum-of-exponents"

    def run(self, ir: Graph, context: Context) -> Graph:
        products = [n for n in ir.nodes if n.op is ops.mul and all(o.op is ops.exp for o in n.operands)]
        allowed = [n for n in products if context.may_apply(self, "one exponential", n)]
        return ir.replace_nodes({n: ops.exp(ops.add(*(o.operands[0] for o in n.operands))) for n in allowed})


@register
@dataclass(frozen=True)
class SumOfExponentsInKernels(TilePass):
    """Does the same in kernels."""

    name = "test-sum-of-exponents-in-kernels"

    def run(self, ir: Kernel, context: Context) -> Kernel:
        def rule(e: Expr) -> Expr:
            if not (isinstance(e, PrimitiveCall) and e.primitive == "mul"):
                return e
            return scalar.exp(e.operands[0].args[0] + e.operands[1].args[0])

        return ir.with_body(map_exprs(ir.body, lambda value: scalar.transform(value, rule)))


def test_a_pass_that_overflows_otherwise_is_refused() -> None:
    """However it is written: the rule for limits holds for passes that are no rules, on graphs and kernels."""
    before = "graph(%x: f32[4], %y: f32[4]) { %a = exp %x  %b = exp %y  %z = mul %a, %b  return %z }"
    after = "graph(%x: f32[4], %y: f32[4]) { %s = add %x, %y  %z = exp %s  return %z }"
    with pytest.raises(AssertionError, match=r"near the limits of its dtype, output 0: element \[\d\] is"):
        check_pass("test-sum-of-exponents", before=before, after=after)
    check_pass("test-sum-of-exponents", before=before, after=after, limits=False, special=False)
    kernel = "kernel @k(in %x: f32[4], in %y: f32[4], out %z: f32[4]) {{ for %i in 0..4 {{ store {}, %z[%i] }} }}"
    with pytest.raises(AssertionError, match=r"near the limits of its dtype, output 0: element \[\d\] is"):
        check_pass(
            "test-sum-of-exponents-in-kernels",
            before=kernel.format("exp(%x[%i]) * exp(%y[%i])"),
            after=kernel.format("exp(%x[%i] + %y[%i])"),
        )
